"""Reads a machine from a file that describes it: `nvidia-smi topo -m` text or NCCL XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.model.gpu import nccl_xml, smi_topo

if TYPE_CHECKING:
    from kgwe.model.gpu.catalog import GpuModel
    from kgwe.model.gpu.topology import Wiring


def is_xml(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n").startswith("<")


def parse_machine(text: str, *, model: GpuModel | None = None) -> Wiring:
    """The wiring of the machine; Permanent, with the line, when the text cannot be read."""
    return (
        nccl_xml.parse_nccl_xml(text.lstrip("\ufeff"))
        if is_xml(text)
        else smi_topo.parse_smi_topology(text, model=model)
    )

"""Whatever is fed to the parsers of topology, the answer is a wiring or a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.model.gpu import nccl_xml, smi_topo

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.model.gpu.topology import Wiring

TABLE = """\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tPXB\t0-23\t0
GPU1\tNV12\t X \tSYS\tPXB\t0-23\t0
GPU2\tSYS\tSYS\t X \tSYS\t24-47\t1
NIC0\tPXB\tPXB\tSYS\t X
"""
XML = """<system version="1">
<cpu numaid="0" affinity="0000ffff"><pci busid="0000:01:00.0" class="0x060400">
<pci busid="0000:10:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80"><nvlink target="0000:11:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80"/></pci>
<nic><net name="mlx5_0" speed="200000"/></nic></pci></cpu></system>
"""
_PIECES = st.sampled_from(
    ("", "X", "NV", "NV18", "GPU0", "GPU7", "\t", "\n", " ", "N/A", '"', "<", "/>", "-", "9", "\x00")
)


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """The text with a few pieces cut out and others put in."""
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(_PIECES) + text[at + draw(st.integers(0, 12)) :]
    return text


def check(parse: Callable[[str], Wiring], text: str) -> None:
    try:
        wiring = parse(text)
    except errors.Permanent as exc:
        assert str(exc)  # noqa: PT017 - both outcomes are right
        return
    matrix = wiring.matrix()
    assert matrix == [list(row) for row in zip(*matrix, strict=True)]


def test_the_samples_are_good():
    assert smi_topo.parse_smi_topology(TABLE).matrix()[0] == ["X", "NV12", "SYS"]
    assert nccl_xml.parse_nccl_xml(XML).matrix()[0] == ["X", "NV4"]
    assert [nic.name for nic in nccl_xml.parse_nccl_xml(XML).nics] == ["mlx5_0"]


@given(text=mangled(TABLE))
def test_a_mangled_table_is_read_or_refused(text):
    check(smi_topo.parse_smi_topology, text)


@given(text=mangled(XML))
def test_a_mangled_file_is_read_or_refused(text):
    check(nccl_xml.parse_nccl_xml, text)


@given(text=st.text())
def test_any_text_is_refused_or_read(text):
    check(smi_topo.parse_smi_topology, text)
    check(nccl_xml.parse_nccl_xml, text)

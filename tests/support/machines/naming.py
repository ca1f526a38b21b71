"""Node statuses with switches renamed, so that machines and models compare equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus, PCIeLocation


def named_alike(status: GPUNodeStatus) -> GPUNodeStatus:
    """With bridges and switches numbered in the order they are met, and without rails.

    What the kernel calls a switch is not what a model calls it, and no machine knows which network it is plugged into.
    """
    names: dict[str, str] = {}

    def place(location: PCIeLocation | None) -> PCIeLocation | None:
        if location is None:
            return None
        path = [location.rootComplex, *location.switches]
        root, *switches = (names.setdefault(each, f"{len(names)}") if each else "" for each in path)
        return msgspec.structs.replace(location, rootComplex=root, switches=tuple(switches))

    return msgspec.structs.replace(
        status,
        gpus=tuple(msgspec.structs.replace(each, pcie=place(each.pcie)) for each in status.gpus),
        nics=tuple(msgspec.structs.replace(each, pcie=place(each.pcie), rail=None) for each in status.nics),
    )

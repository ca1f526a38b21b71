"""Every machine of every fleet model, read through the C library, is reported as the model says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.unit.agent import bed

from kgwe.apps.agent.status import gpunode_status
from kgwe.hardware.nvml.driver import NvmlDriver
from kgwe.local.fleet import gpunodes
from kgwe.local.nvml.hardware import Hardware

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


@pytest.mark.parametrize("node", bed.fleet_nodes(), ids=lambda node: f"{node.fleet_name}-{node.pool.name}")
async def test_a_machine_is_reported_as_its_model(node, tmp_path):
    hardware = Hardware.create(tmp_path, node)
    driver = NvmlDriver.from_environment(hardware.environment)
    try:
        machine = await driver.machine()
    finally:
        await driver.close()
        hardware.close()
    status = gpunode_status.status(machine)
    assert named_alike(status) == named_alike(gpunodes.status(node))
    assert gpunode_status.wiring(machine, status).matrix() == node.machine.wiring.matrix()

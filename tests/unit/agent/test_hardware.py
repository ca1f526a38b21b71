"""Every machine of every fleet model, read through the C library, is reported as the model says."""

from __future__ import annotations

import pytest
from tests.support.machines import memory_driver
from tests.support.machines.naming import named_alike

from kgwe.apps.agent.status import gpunode_status
from kgwe.hardware.nvml.driver import NvmlDriver
from kgwe.local.fleet import gpunodes
from kgwe.local.nvml.hardware import Hardware


@pytest.mark.parametrize("node", memory_driver.fleet_nodes(), ids=lambda node: f"{node.fleet_name}-{node.pool.name}")
async def test_a_machine_is_reported_as_its_model(node, tmp_path):
    hardware = Hardware.create(tmp_path, node)
    driver = NvmlDriver.from_environment(hardware.environment)
    try:
        machine = await driver.machine()
    finally:
        await driver.close()
        hardware.close()
    status = gpunode_status.build_status(machine)
    assert named_alike(status) == named_alike(gpunodes.build_status(node))
    assert gpunode_status.build_wiring(machine, status).matrix() == node.machine.wiring.matrix()

"""A cluster with a few nodes of the mixed fleet whose agents are real processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.local.fleet import models
from kgwe.local.fleet.agents import AgentMachine
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster


MIXED = models.load("mixed")


NODES = 16


QUICK = {"telemetry_interval_seconds": "0.5", "discovery_interval_seconds": "1", "driver_retry_seconds": "1"}


class AgentBed:
    """What the tests ask of it."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, kubeconfig: Path, folder: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.kubeconfig = kubeconfig
        self.machines: list[AgentMachine] = []
        self._folder = folder

    def machine(self, pool: str, number: int = 0) -> AgentMachine:
        """A node of the fleet, as hardware; its agent is not started."""
        name = f"{pool}-{number:04}"
        node = next(each for each in inventory.expand_fleet(MIXED, NODES) if each.name == name)
        self.machines.append(AgentMachine(node, self._folder / name))
        return self.machines[-1]

    async def get(self, machine: AgentMachine) -> GPUNode:
        return await self.client.get(resources.GPU_NODE, machine.node.name)

    async def until(
        self, machine: AgentMachine, holds: Callable[[GPUNode], bool], timeout_s: float = PATIENCE_S
    ) -> GPUNode:
        """The GPUNode once it is so."""
        seen = None
        try:
            async with asyncio.timeout(timeout_s):
                while seen is None or not holds(seen):
                    assert machine.is_running(), machine.log.read_text()[-3000:]
                    await asyncio.sleep(0.05)
                    seen = await self.get(machine)
        except TimeoutError:
            pytest.fail(f"never became so: {seen}\n{machine.log.read_text()[-3000:]}")
        return seen

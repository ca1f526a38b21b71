"""An XID error in the driver, through the real agent on simulated hardware, to a gang that runs elsewhere.

The agents are processes of their own, each on a C library that plays the NVIDIA driver; the scheduler is one too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.integration.scheduler.broken import gang, pods_of, running, where

from kgwe.apps.agent.health_node import CONDITION
from kgwe.kube import resources
from kgwe.local import fleet, models
from kgwe.local.nvml.hardware import Hardware
from kgwe.model import inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.integration.scheduler.bed import Bed

    from kgwe.kube.api.gpunode import GPUNode

_NODES = 3
_JOULES = 1_000_000
# Long enough for a machine that does much else; what was measured is printed.
_PATIENCE_S = 120.0


class Machine:
    """One node's hardware, and the agent on it."""

    def __init__(self, folder: Path, node: inventory.FleetNode, kubeconfig: Path) -> None:
        self.name = node.name
        self.hardware = Hardware.create(folder / node.name, node)
        for card in range(len(node.cards)):
            self.hardware.set(card, energy_mj=_JOULES * 1000)
        self._log = folder / f"{node.name}.log"
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {
            "KGWE_AGENT_GRPC_BIND_ADDRESS": "",
            "KGWE_AGENT_EXPORTER_BIND_ADDRESS": "",
            "KGWE_AGENT_ENABLE_POD_RESOURCES": "false",
            "KGWE_AGENT_ENABLE_MIG": "false",
            "KGWE_AGENT_TELEMETRY_INTERVAL_SECONDS": "2",
            "KGWE_AGENT_HEARTBEAT_INTERVAL_SECONDS": "2",
        }
        argv = [sys.executable, "-m", "kgwe.cli", "agent", "--node-name", self.name]
        argv += ["--kubeconfig", str(self._kubeconfig)]
        with self._log.open("ab") as out:
            env = os.environ | settings | dict(self.hardware.environment)
            self._process = subprocess.Popen(argv, env=env, stdout=out, stderr=out)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def reset(self, uuid: str) -> None:
        subprocess.run([self.hardware.smi, "--gpu-reset", "-i", uuid], check=True, capture_output=True)

    @property
    def log(self) -> str:
        return self._log.read_text()[-3000:] if self._log.exists() else ""


@pytest.fixture
async def machines(bed: Bed, tmp_path: Path) -> AsyncIterator[dict[str, Machine]]:
    model = models.load("dgx-h100")
    await fleet.apply_fleet(bed.client, model, _NODES)
    found = {node.name: Machine(tmp_path, node, bed.cluster.kubeconfig) for node in inventory.expand(model, _NODES)}
    try:
        for machine in found.values():
            machine.start()
        for machine in found.values():
            await until_gpunode(bed, machine, lambda obj: obj.spec.source == "Agent" and obj.status.healthyGPUs == 8)
        yield found
    finally:
        for machine in found.values():
            machine.stop(signal.SIGKILL)


async def until_gpunode(bed: Bed, machine: Machine, holds: Callable[[GPUNode], bool]) -> GPUNode:
    obj: GPUNode | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                obj = await bed.client.get(resources.GPU_NODE, machine.name)
                if holds(obj):
                    return obj
                await asyncio.sleep(0.02)
    pytest.fail(f"{machine.name} is {obj and obj.status}; its agent says:\n{machine.log}")


async def until_events(bed: Bed, *wanted: str) -> None:
    """Until there is an Event with each of these texts in it."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            told = "".join(bytes(event).decode() for event in await bed.client.list(resources.EVENT, "default"))
            if all(text in told for text in wanted):
                return
            await asyncio.sleep(0.2)


async def until_condition(bed: Bed, machine: Machine, status: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            node = await bed.client.get(resources.NODE, machine.name)
            if status in [each.status for each in node.status.conditions if each.type == CONDITION]:
                return
            await asyncio.sleep(0.1)


async def until_beat(bed: Bed, machine: Machine) -> GPUNode:
    """The GPUNode once the agent that runs now has said that it is as it should be."""
    before = (await bed.client.get(resources.GPU_NODE, machine.name)).status.heartbeatTime
    return await until_gpunode(bed, machine, lambda obj: obj.status.heartbeatTime != before)


async def test_an_xid_takes_the_card_out_of_service_and_the_gang_runs_elsewhere(
    bed: Bed, machines: dict[str, Machine], record_property: Callable[[str, object], None]
) -> None:
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 2), 2)
    other, sick = (machines[before[rank].spec.nodeName] for rank in (0, 1))

    # Errors that are contained, or the application's own, move nobody.
    other.hardware.xid(0, 94)
    sick.hardware.xid(0, 31)
    await until_gpunode(bed, other, lambda obj: obj.status.gpus[0].health.state == "Degraded")
    told = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[0].health.lastXID == 31)
    assert told.status.gpus[0].health.state == "Healthy"

    begun = time.monotonic()
    sick.hardware.xid(3, 79)
    hurt = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[3].health.state == "Unhealthy")
    record_property("published_s", time.monotonic() - begun)
    await bed.until(
        lambda: len(where(bed, workload)) == 2 and where(bed, workload)[1] != sick.name, timeout_s=_PATIENCE_S
    )
    record_property("recovered_s", time.monotonic() - begun)

    assert pods_of(bed, workload)[0].metadata.uid == before[0].metadata.uid, "the pod on healthy cards stayed"
    assert await replica.metric('kgwe_recoveries_total{outcome="Replaced"}') == 1
    card = hurt.status.gpus[3]
    assert (card.health.reason, card.health.lastXID, card.health.action) == ("FallenOffTheBus", 79, "RestartNode")
    assert [each.health.state for each in hurt.status.gpus].count("Healthy") == 7
    assert hurt.status.reliability is not None
    assert hurt.status.reliability.score < 0.5
    await until_events(bed, "GPUUnhealthy", card.uuid)
    await until_condition(bed, sick, "False")

    # An agent that dies and comes back finds the card as it left it.
    sick.stop(signal.SIGKILL)
    sick.start()
    again = await until_beat(bed, sick)
    assert again.status.gpus[3].health == card.health
    assert again.status.incidents == hurt.status.incidents

    # A reset, for which the agent has to let go of the driver, is what brings it back. Its past stays.
    sick.stop()
    sick.reset(card.uuid)
    sick.start()
    well = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[3].health.state == "Healthy")
    assert well.status.gpus[3].reliability == card.reliability
    await until_condition(bed, sick, "True")

"""An XID error in the driver, through the real agent on simulated hardware, to a gang that runs elsewhere.

The agents are processes of their own, each on a C library that plays the NVIDIA driver; the scheduler is one too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.support.clusters.broken import gang, pods_of, running, where
from tests.support.patience import PATIENCE_S

from kgwe.apps.agent.health.node_condition import CONDITION
from kgwe.kube.api import resources
from kgwe.local.fleet import agents, apply, models
from kgwe.local.fleet.agents import AgentMachine
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.kube.api.kgwe.gpunode import GPUNode

_NODES = 3
_MILLIJOULES = 10**9
# Long enough for a machine that does much else; what was measured is printed.


@pytest.fixture
async def machines(bed: Bed, tmp_path: Path) -> AsyncIterator[dict[str, AgentMachine]]:
    """Every node with an agent of its own, with the rights of deploy/agent.yaml."""
    model = models.load("dgx-h100")
    await agents.install(bed.client)
    await apply.apply_fleet(bed.client, model, _NODES)
    with contextlib.ExitStack() as stack:
        found = {
            node.name: stack.enter_context(AgentMachine(node, tmp_path / node.name))
            for node in inventory.expand_fleet(model, _NODES)
        }
        for machine in found.values():
            for card in range(len(machine.node.gpus)):
                machine.hardware.set(card, energy_mj=_MILLIJOULES)
            start(bed, machine)
        for machine in found.values():
            await until_gpunode(bed, machine, lambda obj: obj.spec.source == "Agent" and obj.status.healthyGPUs == 8)
        yield found


def start(bed: Bed, machine: AgentMachine) -> None:
    machine.start(agents.write_kubeconfig(bed.cluster), telemetry_interval_seconds="1", heartbeat_interval_seconds="1")


async def until_gpunode(bed: Bed, machine: AgentMachine, holds: Callable[[GPUNode], bool]) -> GPUNode:
    obj: GPUNode | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                obj = await bed.client.get(resources.GPU_NODE, machine.node.name)
                if holds(obj):
                    return obj
                await asyncio.sleep(0.02)
    pytest.fail(f"{machine.node.name} is {obj and obj.status}; its agent says:\n{machine.log.read_text()[-3000:]}")


async def until_events(bed: Bed, *wanted: str) -> None:
    """Until there is an Event with each of these texts in it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = "".join(bytes(event).decode() for event in await bed.client.list(resources.EVENT, "default"))
            if all(text in told for text in wanted):
                return
            await asyncio.sleep(0.2)


async def until_condition(bed: Bed, machine: AgentMachine, status: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            node = await bed.client.get(resources.NODE, machine.node.name)
            if status in [each.status for each in node.status.conditions if each.type == CONDITION]:
                return
            await asyncio.sleep(0.1)


async def until_beat(bed: Bed, machine: AgentMachine) -> GPUNode:
    """The GPUNode once the agent that runs now has said that it is as it should be."""
    before = (await bed.client.get(resources.GPU_NODE, machine.node.name)).status.heartbeatTime
    return await until_gpunode(bed, machine, lambda obj: obj.status.heartbeatTime != before)


async def test_an_xid_takes_the_card_out_of_service_and_the_gang_runs_elsewhere(
    bed: Bed, machines: dict[str, AgentMachine], record_property: Callable[[str, object], None]
) -> None:
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 2), 2)
    other, sick = (machines[before[rank].spec.nodeName] for rank in (0, 1))

    # Errors that are contained, or the application's own, move nobody.
    other.hardware.report_xid(0, 94)
    sick.hardware.report_xid(0, 31)
    await until_gpunode(bed, other, lambda obj: obj.status.gpus[0].health.state == "Degraded")
    told = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[0].health.lastXID == 31)
    assert told.status.gpus[0].health.state == "Healthy"

    begun = time.monotonic()
    sick.hardware.report_xid(3, 79)
    hurt = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[3].health.state == "Unhealthy")
    record_property("published_s", time.monotonic() - begun)
    await bed.until(lambda: len(where(bed, workload)) == 2 and where(bed, workload)[1] != sick.node.name)
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
    sick.kill()
    start(bed, sick)
    again = await until_beat(bed, sick)
    # The energy counter that marks the fault is read with the next sample: the first report may lack it.
    assert replace(again.status.gpus[3].health, resetBelowJoules=None) == replace(card.health, resetBelowJoules=None)
    assert again.status.incidents == hurt.status.incidents

    # A reset, for which the agent has to let go of the driver, is what brings it back. Its past stays.
    sick.stop()
    reset = await asyncio.create_subprocess_exec(sick.hardware.smi, "--gpu-reset", "-i", card.uuid)
    assert await reset.wait() == 0
    start(bed, sick)
    well = await until_gpunode(bed, sick, lambda obj: obj.status.gpus[3].health.state == "Healthy")
    assert well.status.gpus[3].reliability == card.reliability
    await until_condition(bed, sick, "True")

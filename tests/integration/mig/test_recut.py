"""Cards are cut anew for work that waits, end to end: controller, agent on the driver library, kubelet, scheduler."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.mig import FLEET, QUICK_AGENT

from kgwe.kube.api import resources
from kgwe.local.fleet import agents, apply
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from tests.support.clusters.mig import MigBed

AS_BUILT = "3g.40gb@0 2g.20gb@4 1g.10gb@6"
BUILT = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.13}
CUT = "a100-mig-0000"
ON_CUT = {"gpu-autoscaler.io/node-pool": "a100-mig"}


async def test_a_real_agent_cuts_for_work_that_waits_and_neighbours_keep_running(bed: MigBed) -> None:
    await apply.apply_fleet(bed.client, FLEET, 4)
    machine = bed.agent(CUT)
    await bed.until(lambda: CUT in bed.gpu_nodes.store and bed.gpu_nodes.store[CUT].spec.source == "Agent")
    await bed.strategy("pool", nodeSelector=ON_CUT, profileDistribution=BUILT, allowDynamicReconfig=True)
    await bed.until(lambda: bed.ready("pool") == "Applied")
    assert bed.cuts(CUT) == [AS_BUILT] * 8, "it is what the distribution says: nothing is cut"
    # Neighbours on every 3g there is; one more workload has no place until a card is cut anew.
    for number in range(8):
        await bed.workload(f"neighbour-{number}", {"mig": {"profile": "3g.40gb", "count": 1}})
    await bed.until(lambda: len(bed.running()) == 8)
    neighbours = bed.running()
    instances = {
        cut.uuids for card in range(8) for cut in machine.hardware.list_instances(card) if cut.profile == "3g.40gb"
    }
    waiting = await bed.workload("wide", {"mig": {"profile": "3g.40gb", "count": 1}})
    await bed.until(lambda: bed.phase(waiting) == "Running")
    assert sorted(bed.cuts(CUT)).count("3g.40gb@0 3g.40gb@4") == 1
    assert bed.cuts(CUT).count(AS_BUILT) == 7, "the least was cut"
    now = bed.running()
    assert {uid: now.get(uid) for uid in neighbours} == neighbours
    kept = {cut.uuids for card in range(8) for cut in machine.hardware.list_instances(card) if cut.profile == "3g.40gb"}
    assert instances < kept, "what the neighbours have is what it was"
    node = bed.nodes.store[CUT]
    assert node.status.allocatable["nvidia.com/mig-3g.40gb"] == "9"
    # A plain pod, placed by kube-scheduler, is cut for as well, though the agent is killed when it hears of it.
    await bed.pod("small", "1g.20gb")
    await bed.until(lambda: any("1g.20gb" in place for place in bed.wished(CUT)))
    machine.kill()
    machine.start(agents.write_kubeconfig(bed.cluster), **QUICK_AGENT)
    await bed.until(lambda: bed.is_running("small"))
    assert {uid: bed.running().get(uid) for uid in neighbours} == neighbours


async def test_a_new_node_that_is_to_be_cut_is_given_to_nobody_whole(bed: MigBed) -> None:
    await bed.strategy("all", profileDistribution={"7g.80gb": 1.0})
    await bed.until(lambda: bed.ready("all") == "NoCards")
    # The controller dies, and another that stood by takes over: until then, too, nobody is given what is to be cut.
    bed.run("mig", "kgwe-mig")
    bed.processes[-2].kill()
    whole = await bed.workload("whole", {"count": 1})
    slices = await bed.workload("slices", {"mig": {"profile": "7g.80gb", "count": 2}})
    await bed.until(lambda: bed.phase(whole) == "Pending" and bed.phase(slices) == "Pending")
    held: list[str] = []
    bed.pods.on_change(lambda change: held.append(change.key) if change.new and "whole" in change.key else None)
    await apply.apply_fleet(bed.client, FLEET, 2)
    await bed.until(lambda: bed.phase(slices) == "Running")
    await bed.until(lambda: bed.ready("all") == "Applied")
    assert {cut for node in bed.gpu_nodes.store for cut in bed.cuts(node)} == {"7g.80gb@0"}
    assert held == [], "the whole cards were there for a moment, and nobody got one"
    assert bed.phase(whole) == "Pending"
    # Given back, they are given out.
    await bed.client.delete(resources.MIG_STRATEGY, "all")
    await bed.until(lambda: all(not obj.spec.cards for obj in bed.gpu_nodes.store.values()))


@pytest.mark.slow
async def test_waves_of_work_on_64_nodes_are_all_cut_for(bed: MigBed) -> None:
    """Whole cards to begin with; each wave asks for what the one before left no room for."""
    geometry = mig.GEOMETRIES["A100-80GB"]
    await apply.apply_fleet(bed.client, FLEET, 64)
    await bed.strategy(
        "all", profileDistribution={"1g.10gb": 1.0}, allowDynamicReconfig=True, gpuSelector={"model": "A100"}
    )
    await bed.until(lambda: bed.ready("all") == "Applied", 300)
    before: dict[str, str] = {}
    for wave, profile in enumerate(("7g.80gb", "3g.40gb", "2g.20gb"), 1):
        for number in range(40):
            await bed.workload(f"w-{wave}-{number}", {"mig": {"profile": profile, "count": 1}})
        await bed.until(functools.partial(_all_run, bed, 40 * wave), 300)
        now = bed.running()
        assert {uid: now.get(uid) for uid in before} == before, "neighbours keep running where they are"
        before = now
    for obj in bed.gpu_nodes.store.values():
        for device in obj.status.gpus:
            layout = [mig.parse_placement(geometry, f"{each.profile}@{each.start}") for each in device.mig.instances]
            assert mig.find_problems(geometry, layout) == []


def _all_run(bed: MigBed, pods: int) -> bool:
    return len(bed.running()) == pods

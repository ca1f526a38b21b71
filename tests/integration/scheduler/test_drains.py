"""volcano#5805: a gang of others that loses a member to a drain gets its slot back before new work of its priority."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.broken import foreign, gang, members, pods_of, racks, running, where

from kgwe.kube.api import resources
from kgwe.kube.client import eviction

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

# A Job pauses 10 s before it replaces a pod whose end it has counted.
_REPLACED_S = 60.0
_LEAVES = ("a", "b", "c", "d")


async def cordon(bed: Bed, node: str, *, on: bool = True) -> None:
    await bed.client.patch(resources.NODE, node, {"spec": {"unschedulable": on}})


async def drain(bed: Bed, pod: Any) -> None:
    """Cordon its node, evict it, and wait until it is gone."""
    await cordon(bed, pod.spec.nodeName)
    await eviction.evict_pod(bed.client, pod)
    await bed.until(lambda: pod.metadata.uid not in {each.metadata.uid for each in alive(bed)})


def alive(bed: Bed) -> list[Any]:
    return [pod for pod in bed.pods.store.values() if pod.status.phase in ("Pending", "Running")]


def of_job(bed: Bed, name: str) -> set[str]:
    return {pod.metadata.uid for pod in alive(bed) if pod.metadata.labels.get("app") == name}


async def compete(live: Live, name: str) -> None:
    """New work of the same priority that would take a node each."""
    await live.pod(f"{name}-pod", 8)
    await live.bed.submit(kgwe(f"{name}-work", 8))


async def drain_and_uncordon(live: Live, name: str, *, at_once: bool) -> None:
    """`at_once`: the node takes pods again before the Job has made the next one."""
    bed, before = live.bed, members(live.bed, name)
    lost = before[1]
    await drain(bed, lost)
    await compete(live, name)
    if not at_once:
        await bed.until(lambda: len(of_job(bed, name)) == 2, _REPLACED_S)
        await asyncio.sleep(0)
    await cordon(bed, lost.spec.nodeName, on=False)
    await bed.until(lambda: len(members(bed, name)) == 2, _REPLACED_S)
    after = members(bed, name)
    assert after[0].metadata.uid == before[0].metadata.uid
    assert after[1].spec.nodeName == lost.spec.nodeName


async def run_round(live: Live, number: int) -> None:
    """One gang of two pods per leaf of two nodes; in every leaf a node is drained, and new work comes."""
    bed = live.bed
    names = [f"drained-{number}-{leaf}" for leaf in _LEAVES]
    for name in names:
        await bed.client.create(resources.JOB, foreign(name, 2), "default")
    await bed.until(lambda: all(len(members(bed, name)) == 2 for name in names))
    tries = (drain_and_uncordon(live, name, at_once=i % 2 == 0) for i, name in enumerate(names))
    await asyncio.gather(*tries)
    rivals = [pod for pod in alive(bed) if pod.spec.nodeName and pod.metadata.labels.get("app") not in names]
    assert not rivals, "new work has the slot of a gang"
    for name in names:
        await bed.client.delete(resources.POD, f"{name}-pod", "default", grace_s=0)
        await bed.client.delete(resources.GPU_WORKLOAD, f"{name}-work", "default")
        await bed.client.delete(resources.JOB, name, "default")
    await bed.until(lambda: not alive(bed))


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.soak)])
async def test_a_gang_that_lost_a_pod_to_a_drain_gets_its_slot_back(live: Live, rounds: int):
    """Four gangs a round."""
    await racks(live.bed, dict.fromkeys(_LEAVES, 2))
    await live.scheduler()
    for number in range(rounds):
        await run_round(live, 10 * rounds + number)


async def test_a_drained_pod_goes_elsewhere_where_there_is_room(live: Live):
    bed = live.bed
    await racks(bed, {"a": 3})
    await live.scheduler()
    await bed.client.create(resources.JOB, foreign("elsewhere", 2), "default")
    await bed.until(lambda: len(members(bed, "elsewhere")) == 2)
    before = members(bed, "elsewhere")

    await drain(bed, before[1])
    await bed.until(lambda: len(members(bed, "elsewhere")) == 2, _REPLACED_S)

    after = members(bed, "elsewhere")
    assert after[1].spec.nodeName not in {pod.spec.nodeName for pod in before.values()}
    await cordon(bed, before[1].spec.nodeName, on=False)
    late = await bed.submit(kgwe("late", 8))
    assert (await bed.until_phase(late, "Running")).status.scheduledNode == before[1].spec.nodeName
    await bed.client.delete(resources.JOB, "elsewhere", "default")


async def test_a_drained_pod_of_a_workload_goes_elsewhere_or_gets_its_seat_back_with_the_node(live: Live):
    bed = live.bed
    await racks(bed, {"a": 3})
    await live.scheduler()
    workload, before = await running(bed, gang("g", 2), 2)

    await drain(bed, before[1])
    await bed.until(lambda: len(where(bed, workload)) == 2, _REPLACED_S)
    moved = pods_of(bed, workload)
    assert moved[1].spec.nodeName not in {pod.spec.nodeName for pod in before.values()}
    assert moved[0].metadata.uid == before[0].metadata.uid

    await drain(bed, moved[1])
    await compete(live, "rival")
    await cordon(bed, moved[1].spec.nodeName, on=False)
    await bed.until(lambda: len(where(bed, workload)) == 2, _REPLACED_S)
    assert where(bed, workload)[1] == moved[1].spec.nodeName
    assert (workload.metadata.uid, "Failed") not in bed.phases

"""Nodes fail under gangs that others made, and cards under work of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.broken import (
    break_nodes,
    foreign,
    gang,
    members,
    pods_of,
    racks,
    running,
    uids,
    where,
    where_of,
)

from kgwe.kube.api import resources
from kgwe.kube.client import eviction
from kgwe.local.fleet import apply, faults, models

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.clusters.bed import Bed


@pytest.fixture
async def other_job(bed: Bed) -> AsyncIterator[Callable[..., Awaitable[dict[int, Any]]]]:
    """Creates a Job of others and waits until all its pods run.

    Each has a name of its own: the Job controller counts failures by name, also those of a predecessor.
    """
    made: list[str] = []

    async def run(name: str, pods: int, gpus: int = 8, **said: str) -> dict[int, Any]:
        made.append(name)
        await bed.client.create(resources.JOB, foreign(name, pods, gpus, **said), "default")
        await bed.until(lambda: len(members(bed, name)) == pods)
        return members(bed, name)

    yield run
    for name in made:
        await bed.client.delete(resources.JOB, name, "default")


async def test_a_gang_of_others_keeps_its_leaf_and_its_healthy_pods(bed: Bed, other_job):
    await racks(bed, {"a": 2, "b": 4})
    await bed.controller()
    before = await other_job("near", 3)
    assert {node[0] for node in where_of(before)} == {"b"}
    lost = before[1].spec.nodeName

    await break_nodes(bed, lost)
    # Its owner waits ten seconds before it replaces a pod that failed.
    await bed.until(lambda: len(members(bed, "near")) == 3)

    after = members(bed, "near")
    assert after[1].spec.nodeName == ({"b0", "b1", "b2", "b3"} - set(where_of(before))).pop()
    assert {after[rank].metadata.uid for rank in (0, 2)} == {before[rank].metadata.uid for rank in (0, 2)}


async def test_a_pod_of_others_that_is_evicted_joins_the_others_again(bed: Bed, other_job):
    """Its leaf is the smaller one, which a pod planned for itself would leave alone."""
    await racks(bed, {"a": 3})
    await bed.controller()
    before = await other_job("again", 2)
    await racks(bed, {"b": 4})

    gone = before[0].metadata.uid
    await eviction.evict_pod(bed.client, before[0])
    await bed.until(lambda: len(found := members(bed, "again")) == 2 and gone not in uids(found).values())

    assert {node[0] for node in where_of(members(bed, "again"))} == {"a"}


async def test_a_gang_of_others_that_says_none_is_left_alone(bed: Bed, other_job):
    await racks(bed, {"a": 3})
    await bed.controller()
    before = await other_job("alone", 2, recovery="None")
    workload, single = await running(bed, kgwe("single", 8), 1)
    await racks(bed, {"b": 1})

    await break_nodes(bed, before[0].spec.nodeName, single[0].spec.nodeName)
    await bed.until(lambda: list(where(bed, workload).values()) == ["b0"])

    assert uids(members(bed, "alone")) == {1: before[1].metadata.uid}
    assert bed.pods.store[before[0].metadata.key].metadata.deletionTimestamp is None


# --- cards ------------------------------------------------------------------------------------------------


async def test_work_on_cards_with_errors_goes_elsewhere(bed: Bed):
    """volcano#4527: six GPUs of a node report errors; a job of eight runs on another, and so does the next."""
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 3)
    await bed.until(lambda: len(bed.nodes.store) == 3)
    try:
        await bed.controller()
        workload, before = await running(bed, kgwe("w", 8), 1)
        sick = before[0].spec.nodeName
        for card in range(6):
            await faults.gpu_xid(bed.client, sick, card, 79)

        await bed.until(lambda: where(bed, workload) and where(bed, workload)[0] != sick)
        later, _ = await running(bed, kgwe("later", 8), 1)

        assert sick not in [bed.now(each).status.scheduledNode for each in (workload, later)]
        small, _ = await running(bed, kgwe("small", 2), 1)
        assert bed.now(small).status.scheduledNode == sick, "two of its cards are well"
    finally:
        await faults.clear(bed.client)


async def test_a_sick_card_moves_its_own_pod_of_a_gang_and_no_other(bed: Bed):
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 4)
    await bed.until(lambda: len(bed.nodes.store) == 4)
    try:
        await bed.controller()
        workload, before = await running(bed, gang("g", 2), 2)

        await faults.gpu_xid(bed.client, before[1].spec.nodeName, 3, 79)
        await bed.until(lambda: len(where(bed, workload)) == 2 and where(bed, workload)[1] != before[1].spec.nodeName)

        assert pods_of(bed, workload)[0].metadata.uid == before[0].metadata.uid
        (job,) = bed.jobs_of(workload)
        assert job.status.failed == 0
    finally:
        await faults.clear(bed.client)


# --- preemption -------------------------------------------------------------------------------------------


async def test_a_gang_of_others_that_says_so_makes_way_as_a_whole(bed: Bed, other_job):
    await racks(bed, {"a": 2})
    await bed.controller()
    before = await other_job("yields", 2, preemptible="true")

    high = await bed.submit(kgwe("high", 8, priority=1000))

    await bed.until_phase(high, "Running")
    await bed.until(lambda: not set(uids(before).values()) & set(uids(members(bed, "yields")).values()))
    await bed.delete(high)
    await bed.until(lambda: len(members(bed, "yields")) == 2)


async def test_a_gang_of_others_that_does_not_say_so_stays(bed: Bed, other_job):
    await racks(bed, {"a": 2})
    await bed.controller()
    before = await other_job("stays", 2)
    high = await bed.submit(kgwe("high", 8, priority=1000))
    await bed.until_phase(high, "Pending")
    await racks(bed, {"b": 1})

    await bed.until_phase(high, "Running")
    assert uids(members(bed, "stays")) == uids(before)

"""Nodes fail under work of ours that runs: who moves, where to, and that nobody else does."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.bed import condition, kgwe
from tests.support.clusters.broken import (
    break_nodes,
    gang,
    pods_of,
    racks,
    running,
    uids,
    until_event,
    until_metric,
    where,
    where_of,
)

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.local.fleet import faults
from kgwe.placement.planning.plan import Seat

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


async def test_only_the_lost_pod_of_a_gang_moves_and_stays_in_its_leaf(bed: Bed):
    await racks(bed, {"a": 2, "b": 4})
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 3, level="leaf"), 3)
    assert {pod.spec.nodeName[0] for pod in before.values()} == {"b"}
    lost = before[1].spec.nodeName

    await break_nodes(bed, lost)
    await bed.until(lambda: len(where(bed, workload)) == 3)

    after = pods_of(bed, workload)
    assert {rank: pod.metadata.uid for rank, pod in after.items() if rank != 1} == {
        rank: pod.metadata.uid for rank, pod in before.items() if rank != 1
    }, "the others were left alone"
    assert after[1].spec.nodeName == ({"b0", "b1", "b2", "b3"} - set(where_of(before))).pop()
    assert bed.phase(workload) == "Running"
    (job,) = bed.jobs_of(workload)
    assert job.status.failed == 0, "it counts as recovery, not as failure"
    await until_metric(replica, "topology_recovery_duration_seconds_count", 1)
    assert await replica.metric('kgwe_recoveries_total{outcome="Replaced"}') == 1
    seats = [
        seat.node
        for seat in placement_annotations.decode(job.metadata.annotations[placement_annotations.PLAN_ANNOTATION])
    ]
    assert seats == [after[rank].spec.nodeName for rank in range(3)]


async def test_two_nodes_of_a_leaf_that_fail_together_are_one_question(bed: Bed):
    await racks(bed, {"a": 3, "b": 5})
    await bed.controller()
    workload, before = await running(bed, gang("g", 3, level="leaf"), 3)
    assert {node[0] for node in where_of(before)} == {"a"}

    # Leaf a has one node left: the gang can only stay together in leaf b, so the healthy pod moves too.
    await break_nodes(bed, "a0", "a1")
    await bed.until(lambda: len(where(bed, workload)) == 3 and {n[0] for n in where(bed, workload).values()} == {"b"})

    assert not set(uids(before).values()) & set(uids(pods_of(bed, workload)).values())


async def test_restart_gang_starts_the_healthy_again_where_they_are(bed: Bed):
    await racks(bed, {"a": 4})
    await bed.controller()
    workload, before = await running(bed, gang("g", 3, recoveryPolicy="RestartGang"), 3)
    lost = before[2].spec.nodeName

    await break_nodes(bed, lost)
    fresh = set(uids(before).values())
    await bed.until(lambda: len(where(bed, workload)) == 3 and not fresh & set(uids(pods_of(bed, workload)).values()))

    after = where(bed, workload)
    assert [after[0], after[1]] == where_of(before)[:2], "who could stay has its place again"
    assert after[2] == ({"a0", "a1", "a2", "a3"} - set(where_of(before))).pop()
    (job,) = bed.jobs_of(workload)
    assert job.metadata.annotations[metadata_keys.ROUND_ANNOTATION] == "1"


async def test_with_policy_none_nothing_is_done(bed: Bed):
    await racks(bed, {"a": 3})
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 2, recoveryPolicy="None"), 2)

    await break_nodes(bed, before[0].spec.nodeName)

    assert "recoveryPolicy is None, so nothing is moved" in await until_event(bed, workload, "LeftAlone")
    assert uids(pods_of(bed, workload)) == uids(before)
    assert await replica.metric('kgwe_recoveries_total{outcome="Replaced"}') == 0


async def test_a_single_pod_gets_a_new_job_elsewhere_and_is_not_counted_as_failed(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    workload, before = await running(bed, kgwe("w", 8), 1)
    (job,) = bed.jobs_of(workload)
    lost = before[0].spec.nodeName

    await break_nodes(bed, lost)
    await bed.until(lambda: list(where(bed, workload).values()) == [{"a0": "a1", "a1": "a0"}[lost]])

    (after,) = bed.jobs_of(workload)
    assert after.metadata.uid != job.metadata.uid
    done = await bed.until_phase(workload, "Running")
    assert done.status.retryCount == 0
    await bed.until(lambda: bed.now(workload).status.scheduledNode != lost)


async def test_a_repaired_gang_gets_the_first_claim_on_room(bed: Bed):
    """volcano#5805: what comes free goes to the gang that lost a node, not to work that has waited for longer."""
    await racks(bed, {"a": 3})
    await bed.controller()
    hit, before = await running(bed, gang("hit", 2), 2)
    blocker, _ = await running(bed, kgwe("blocker", 8), 1)
    fresh = await bed.submit(kgwe("fresh", 8))
    await bed.until_phase(fresh, "Pending")
    lost = before[1].spec.nodeName

    await break_nodes(bed, lost)
    await until_event(bed, hit, "Recovering")
    assert uids(pods_of(bed, hit)) == uids(before), "without room nothing is moved"
    room = bed.now(blocker).status.scheduledNode
    await bed.delete(blocker)

    await bed.until(lambda: where(bed, hit) == {0: before[0].spec.nodeName, 1: room})
    assert bed.phase(fresh) == "Pending"


async def test_a_node_that_comes_back_in_time_moves_nobody(bed: Bed):
    await racks(bed, {"a": 4})
    replica = await bed.controller(recovery_gather_seconds="3")
    calm, before = await running(bed, gang("calm", 2), 2)
    single, others = await running(bed, kgwe("single", 8), 1)

    await break_nodes(bed, before[0].spec.nodeName)
    await faults.clear(bed.client)
    # Whatever had been made of the first failure is made by the time this one, which lasts, has been dealt with.
    lost = others[0].spec.nodeName
    await break_nodes(bed, lost)
    await bed.until(lambda: lost not in where(bed, single).values() and len(where(bed, single)) == 1)

    assert uids(pods_of(bed, calm)) == uids(before)
    assert await replica.metric('kgwe_recoveries_total{outcome="Replaced"}') == 1


async def test_a_plan_that_was_stored_and_not_carried_out_is_carried_out_by_the_next_leader(bed: Bed):
    await racks(bed, {"a": 4})
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 3), 3)
    replica.kill()
    lost = before[1].spec.nodeName
    spare = ({"a0", "a1", "a2", "a3"} - set(where_of(before))).pop()
    await break_nodes(bed, lost)
    # As a scheduler leaves it that dies between storing its plan and taking the old pod away.
    (job,) = bed.jobs_of(workload)
    seats = list(placement_annotations.decode(job.metadata.annotations[placement_annotations.PLAN_ANNOTATION]))
    seats[1] = Seat(spare, seats[1].gpus)
    annotations = {
        placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(seats),
        metadata_keys.NOTE_ANNOTATION: f"node {lost} is lost",
    }
    await bed.client.patch(resources.JOB, job.metadata.name, {"metadata": {"annotations": annotations}}, "default")

    await bed.controller()

    await bed.until(lambda: where(bed, workload) == dict(enumerate(where_of(before))) | {1: spare})
    assert bed.phase(workload) == "Running"


async def test_the_status_tells_what_was_done(bed: Bed):
    await racks(bed, {"a": 3})
    await bed.controller()
    workload, before = await running(bed, gang("g", 2), 2)
    lost = before[0].spec.nodeName

    await break_nodes(bed, lost)
    await bed.until(lambda: condition(bed.now(workload), "Scheduled").reason == "Recovered")

    status = bed.now(workload).status
    assert f"Node {lost} is lost" in condition(bed.now(workload), "Scheduled").message
    assert lost not in [placement.node for placement in status.placements]
    assert status.phase == "Running"


async def test_work_that_gives_up_because_its_node_is_gone_is_started_again(bed: Bed):
    """Its processes notice before anybody else: the pods fail, and with them the Job."""
    await racks(bed, {"a": 4})
    replica = await bed.controller(recovery_gather_seconds="30")
    workload, before = await running(bed, gang("g", 2), 2)
    (first,) = bed.jobs_of(workload)
    lost = before[0].spec.nodeName

    await break_nodes(bed, lost)
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "lost rank 0"}}
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    failed = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    await bed.client.patch(resources.POD, before[1].metadata.name, failed, "default", subresource="status")
    await bed.until(lambda: len(where(bed, workload)) == 2 and lost not in where(bed, workload).values())

    (second,) = bed.jobs_of(workload)
    assert second.metadata.uid != first.metadata.uid
    assert (workload.metadata.uid, "Failed") not in bed.phases
    assert await replica.metric('kgwe_recoveries_total{outcome="Restarted"}') == 1


@pytest.mark.slow
async def test_a_scheduler_killed_at_any_moment_of_a_recovery_leaves_a_gang_that_recovers(bed: Bed):
    """Node after node fails under a gang of three while the scheduler is killed at random moments."""
    await racks(bed, {"a": 5})
    rng = random.Random(5)
    replica = await bed.controller()
    workload, _ = await running(bed, gang("g", 3), 3)
    for _ in range(6):
        lost = rng.choice(list(where(bed, workload).values()))
        await break_nodes(bed, lost)
        await asyncio.sleep(rng.uniform(0.8, 2.5))
        replica.kill()
        replica = await bed.controller()
        await bed.until(
            lambda: len(where(bed, workload)) == 3 and lost not in where(bed, workload).values(),  # noqa: B023 - awaited
            timeout_s=60,
        )
        await faults.clear(bed.client)
        assert len(set(where(bed, workload).values())) == 3
    (job,) = bed.jobs_of(workload)
    assert job.status.failed == 0
    assert bed.phase(workload) == "Running"


async def test_when_most_nodes_fall_silent_at_once_nothing_is_moved_before_they_had_time_to_return(bed: Bed):
    await racks(bed, {"a": 8})
    replica = await bed.controller(recovery_storm_hold_seconds="15")
    gangs = [await running(bed, gang(f"g{number}", 3), 3) for number in range(2)]
    silent = [node for _, before in gangs for node in where_of(before)]

    await break_nodes(bed, *silent)
    await faults.clear(bed.client)
    # One that stays silent is dealt with as ever.
    workload, before = gangs[0]
    lost = before[0].spec.nodeName
    await break_nodes(bed, lost)
    await bed.until(lambda: len(where(bed, workload)) == 3 and lost not in where(bed, workload).values())

    assert await replica.metric('kgwe_recoveries_total{outcome="Replaced"}') == 1
    other, others = gangs[1]
    assert uids(pods_of(bed, other)) == uids(others)

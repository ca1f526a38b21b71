"""Nodes and cards fail under work that runs: who moves, where to, and that nobody else does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.scheduler.bed import condition, kgwe

from kgwe.apps.scheduler import evictions, seating, strays
from kgwe.kube import resources
from kgwe.local import faults, fleet, models
from kgwe.model import amounts, inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.integration.scheduler.bed import Bed

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"


async def racks(bed: Bed, leaves: dict[str, int], gpus: int = 8) -> None:
    """So many nodes per leaf, named after it, that can be broken."""
    for leaf, count in leaves.items():
        labels = {LEAF: leaf, SPINE: "s", inventory.FLEET_LABEL: "test"}
        for number in range(count):
            await bed.node(f"{leaf}{number}", gpus, labels=labels)


def gang(name: str, pods: int, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    body = kgwe(name, pods * gpus, gpusPerPod=gpus, **spec)
    if level := spec.pop("level", ""):
        del body["spec"]["level"]
        body["spec"]["gpuRequirements"]["topology"] = {"requiredLevel": level}
    return body


def pods_of(bed: Bed, workload: Any) -> dict[int, Any]:
    """Rank -> pod that is not on its way out."""
    job = bed.jobs_of(workload)
    return {
        int(pod.metadata.annotations.get(seating.INDEX_ANNOTATION, "0")): pod
        for pod in bed.pods.store.values()
        if job
        and pod.metadata.controller is not None
        and pod.metadata.controller.uid == job[0].metadata.uid
        and pod.metadata.deletionTimestamp is None
    }


def where(bed: Bed, workload: Any) -> dict[int, str]:
    """Rank -> node, of pods that run."""
    return {
        rank: pod.spec.nodeName
        for rank, pod in sorted(pods_of(bed, workload).items())
        if pod.status.phase == "Running" and fleet.NODE_FAULT_ANNOTATION not in pod.metadata.annotations
    }


async def running(bed: Bed, body: dict[str, Any], pods: int) -> tuple[Any, dict[int, Any]]:
    """The workload once all its pods run, and those pods."""
    workload = await bed.submit(body)
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: len(where(bed, workload)) == pods)
    return workload, pods_of(bed, workload)


async def break_nodes(bed: Bed, *names: str) -> None:
    await asyncio.gather(*(faults.node_down(bed.client, name) for name in names))


def where_of(pods: dict[int, Any]) -> list[str]:
    return [pod.spec.nodeName for _, pod in sorted(pods.items())]


async def until_metric(replica: Any, name: str, value: float, timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while await replica.metric(name) != value:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.2)


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
    seats = [seat.node for seat in seating.decode(job.metadata.annotations[seating.PLAN_ANNOTATION])]
    assert seats == [after[rank].spec.nodeName for rank in range(3)]


def uids(pods: dict[int, Any]) -> dict[int, str]:
    return {rank: pod.metadata.uid for rank, pod in pods.items()}


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
    assert job.metadata.annotations[strays.ROUND_ANNOTATION] == "1"


async def test_with_policy_none_nothing_is_done(bed: Bed):
    await racks(bed, {"a": 3})
    replica = await bed.controller()
    workload, before = await running(bed, gang("g", 2, recoveryPolicy="None"), 2)

    await break_nodes(bed, before[0].spec.nodeName)

    assert "its recovery policy is to do nothing" in await until_event(bed, workload, "LeftAlone")
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


async def until_event(bed: Bed, workload: Any, reason: str, timeout_s: float = 20) -> str:
    """The note of an Event about the workload, once there is one."""
    async with asyncio.timeout(timeout_s):
        while True:
            for event in await bed.client.list(resources.EVENT, "default"):
                text = bytes(event).decode()
                if workload.metadata.uid in text and f'"reason":"{reason}"' in text:
                    return text
            await asyncio.sleep(0.2)


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
    seats = list(seating.decode(job.metadata.annotations[seating.PLAN_ANNOTATION]))
    seats[1] = seating.Seat(spare, seats[1].cards)
    annotations = {seating.PLAN_ANNOTATION: seating.encode(seats), strays.NOTE_ANNOTATION: f"node {lost} is lost"}
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
    assert f"node {lost} is lost" in condition(bed.now(workload), "Scheduled").message
    assert lost not in [placement.node for placement in status.placements]
    assert status.phase == "Running"


# --- gangs of others --------------------------------------------------------------------------------------


def foreign(name: str, pods: int, gpus: int = 8, **said: str) -> dict[str, Any]:
    """A Job of somebody else whose pods are a gang inside one leaf; `said` are further annotations of ours."""
    annotations = {
        "kgwe.nvidia.io/gang": "true",
        "kgwe.nvidia.io/topology-required": "leaf",
        "kgwe.nvidia.io/simulated-duration": "1h",
        **{f"kgwe.nvidia.io/{key}": value for key, value in said.items()},
    }
    container = {"name": "c", "image": "x", "resources": {"limits": {amounts.GPU: str(gpus)}}}
    template = {
        "metadata": {"annotations": annotations, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "schedulingGates": [{"name": seating.GATE}],
        },
    }
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignore]},
            "template": template,
        },
    }


def members(bed: Bed, name: str) -> dict[int, Any]:
    """Rank -> pod of a Job of others that runs."""
    return {
        int(pod.metadata.annotations[seating.INDEX_ANNOTATION]): pod
        for pod in bed.pods.store.values()
        if pod.metadata.labels.get("app") == name
        and pod.status.phase == "Running"
        and pod.metadata.deletionTimestamp is None
        and fleet.NODE_FAULT_ANNOTATION not in pod.metadata.annotations
    }


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
    await bed.until(lambda: len(members(bed, "near")) == 3, timeout_s=40)

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
    await evictions.evict(bed.client, before[0])
    await bed.until(lambda: len(found := members(bed, "again")) == 2 and gone not in uids(found).values(), timeout_s=40)

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
    await fleet.apply_fleet(bed.client, models.load("dgx-h100"), 3)
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
    await fleet.apply_fleet(bed.client, models.load("dgx-h100"), 4)
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

"""Pods that their kubelet rejects, and pods that are deleted, are replaced; the work does not fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import kgwe, warp
from tests.support.clusters.broken import gang, pods_of, racks, running, uids, until_event, where, where_of

from kgwe.kube.api import resources
from kgwe.local.fleet import apply

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

# The Job pauses 10 s before it replaces a pod whose end it has counted.
_REPLACED_S = 60.0


def held(body: dict[str, Any]) -> dict[str, Any]:
    """Its pods do not start before `start` is called for them."""
    body["spec"]["podTemplate"]["metadata"]["annotations"][apply.NODE_FAULT_ANNOTATION] = "Held"
    return body


async def start(bed: Bed, pod: Any) -> None:
    annotations = {"metadata": {"annotations": {apply.NODE_FAULT_ANNOTATION: None}}}
    await bed.client.patch(resources.POD, pod.metadata.name, annotations, "default")


async def reject(bed: Bed, pod: Any, reason: str = "UnexpectedAdmissionError") -> None:
    """As a kubelet does that does not admit a pod."""
    status = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {reason}"}
    await bed.client.patch(resources.POD, pod.metadata.name, {"status": status}, "default", subresource="status")


def waiting(bed: Bed, workload: Any) -> dict[int, Any]:
    """Rank -> pod that is bound and has not started."""
    return {
        rank: pod for rank, pod in pods_of(bed, workload).items() if pod.spec.nodeName and pod.status.phase == "Pending"
    }


async def next_pod(bed: Bed, workload: Any, rank: int, *before: Any) -> Any:
    """The pod of that rank, bound and not started, that is none of those before."""
    old = {pod.metadata.uid for pod in before}

    def found() -> bool:
        pod = waiting(bed, workload).get(rank)
        return pod is not None and pod.metadata.uid not in old

    await bed.until(found, _REPLACED_S)
    return waiting(bed, workload)[rank]


def never_failed(bed: Bed, workload: Any) -> bool:
    return (workload.metadata.uid, "Failed") not in bed.phases


async def test_a_pod_rejected_at_admission_is_replaced(bed: Bed):
    await racks(bed, {"a": 1})
    replica = await bed.controller()
    workload = await bed.submit(held(kgwe("w", 2)))
    first = await next_pod(bed, workload, 0)

    await reject(bed, first)
    second = await next_pod(bed, workload, 0, first)
    await start(bed, second)

    await bed.until_phase(workload, "Running")
    assert never_failed(bed, workload)
    assert "UnexpectedAdmissionError" in await until_event(bed, workload, "PodRejected")
    assert await replica.metric("kgwe_pod_rejections_total") == 1


async def test_a_rejected_pod_of_a_gang_is_replaced_and_the_others_run_on(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    workload = await bed.submit(held(gang("g", 2)))
    await bed.until(lambda: len(waiting(bed, workload)) == 2)
    before = waiting(bed, workload)
    await start(bed, before[0])

    await reject(bed, before[1], "OutOfcpu")
    second = await next_pod(bed, workload, 1, before[1])
    await start(bed, second)

    await bed.until_phase(workload, "Running")
    await bed.until(lambda: len(where(bed, workload)) == 2)
    assert pods_of(bed, workload)[0].metadata.uid == before[0].metadata.uid
    assert second.spec.nodeName == before[1].spec.nodeName
    assert never_failed(bed, workload)


async def test_work_leaves_a_node_that_rejects_it_again_and_again(bed: Bed):
    await racks(bed, {"a": 1, "b": 1})
    await bed.controller()
    workload = await bed.submit(held(kgwe("w", 8)))
    seen = [await next_pod(bed, workload, 0)]
    for _ in range(2):
        await reject(bed, seen[-1])
        seen.append(await next_pod(bed, workload, 0, *seen))
    assert len({pod.spec.nodeName for pod in seen}) == 1

    await reject(bed, seen[-1])
    elsewhere = await next_pod(bed, workload, 0, *seen)

    assert elsewhere.spec.nodeName != seen[0].spec.nodeName
    await start(bed, elsewhere)
    await bed.until_phase(workload, "Running")
    assert never_failed(bed, workload)


async def test_a_gang_that_runs_moves_only_the_seat_that_is_rejected(bed: Bed):
    await racks(bed, {"a": 3})
    await bed.controller()
    workload = await bed.submit(held(gang("g", 2)))
    await bed.until(lambda: len(waiting(bed, workload)) == 2)
    before = waiting(bed, workload)
    for pod in before.values():
        await start(bed, pod)
    await bed.until_phase(workload, "Running")
    await bed.client.delete(resources.POD, before[1].metadata.name, "default")

    seen = [await next_pod(bed, workload, 1, before[1])]
    for _ in range(3):
        await reject(bed, seen[-1])
        seen.append(await next_pod(bed, workload, 1, *seen))

    assert seen[-1].spec.nodeName not in where_of(before)
    assert pods_of(bed, workload)[0].metadata.uid == before[0].metadata.uid
    assert never_failed(bed, workload)


async def test_a_job_of_an_earlier_release_whose_pod_was_rejected_is_made_again(bed: Bed):
    """It failed while no scheduler ran, with a limit of no failures."""
    await racks(bed, {"a": 1, "b": 1})
    replica = await bed.controller()
    workload = await bed.submit(held(kgwe("w", 8)))
    first = await next_pod(bed, workload, 0)
    assert replica.stop() == 0
    (job,) = bed.jobs_of(workload)
    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"backoffLimit": 0}}, "default")
    await reject(bed, first)
    await bed.until(lambda: bed.jobs_of(workload)[0].status.failed == 1)

    await bed.controller()
    second = await next_pod(bed, workload, 0, first)

    assert second.spec.nodeName != first.spec.nodeName, "it is planned on another node where there is one"
    await start(bed, second)
    await bed.until_phase(workload, "Running")
    assert never_failed(bed, workload)


async def test_a_pod_that_is_deleted_is_replaced(bed: Bed):
    await racks(bed, {"a": 4})
    await bed.controller()
    several, before = await running(bed, gang("several", 2), 2)
    one, single = await running(bed, kgwe("one", 8), 1)
    small = await bed.submit(warp("small", 8))
    await bed.until_phase(small, "Running")
    await bed.until(lambda: len(where(bed, small)) == 1)
    tiny = pods_of(bed, small)

    for pod in (before[1], single[0], tiny[0]):
        await bed.client.delete(resources.POD, pod.metadata.name, "default")

    def replaced(workload: Any, rank: int, old: Any) -> bool:
        now = pods_of(bed, workload).get(rank)
        return now is not None and now.metadata.uid != old.metadata.uid and rank in where(bed, workload)

    deleted = ((several, 1, before[1]), (one, 0, single[0]), (small, 0, tiny[0]))
    await bed.until(lambda: all(replaced(*each) for each in deleted), _REPLACED_S)
    assert uids(pods_of(bed, several))[0] == before[0].metadata.uid
    assert all(never_failed(bed, each) for each in (several, one, small))
    assert [bed.phase(each) for each in (several, one, small)] == ["Running"] * 3


async def test_work_that_fails_by_itself_fails_at_once(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    body = gang("g", 2)
    body["spec"]["podTemplate"]["metadata"]["annotations"] |= {
        "kgwe.nvidia.io/simulated-duration": "1s",
        "kgwe.nvidia.io/simulated-outcome": "Failed",
    }
    workload = await bed.submit(body)

    await bed.until_phase(workload, "Failed")
    await bed.until(lambda: not bed.gpus_bound())

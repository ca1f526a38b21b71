"""Workloads in a queue of Kueue: the test resumes and suspends their Jobs as Kueue does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


def queued(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    body = kgwe(name, gpus, **spec)
    body["metadata"]["labels"] = {metadata_keys.QUEUE_LABEL: "team-queue"}
    return body


async def until_waiting(bed: Bed, workload: Any) -> Any:
    """Its Job, once its status says that it waits for Kueue."""

    def waits() -> bool:
        found = bed.now(workload)
        told = found is not None and found.status.conditions
        return bool(told) and condition(found, "Scheduled").reason == "AwaitingAdmission"

    await bed.until(waits)
    (job,) = bed.jobs_of(workload)
    return job


async def admit(bed: Bed, job: Any, **node_selector: str) -> None:
    spec = {"suspend": False, "template": {"spec": {"nodeSelector": node_selector}}}
    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": spec}, "default")


def nodes_of(bed: Bed, workload: Any) -> set[str]:
    uid = workload.metadata.uid
    mine = [pod for pod in bed.pods.store.values() if pod.metadata.labels.get(metadata_keys.UID_LABEL) == uid]
    return {pod.spec.nodeName for pod in mine}


async def test_a_gang_holds_nothing_until_kueue_admits_it_and_keeps_to_its_flavor(bed: Bed):
    for name in ("a0", "a1", "b0", "b1"):
        await bed.node(name, 8, labels={"pool": name[0]})
    await bed.controller()
    gang = await bed.submit(queued("gang", 16, gpusPerPod=8))
    job = await until_waiting(bed, gang)
    assert job.spec.suspend
    assert job.metadata.labels[metadata_keys.QUEUE_LABEL] == "team-queue"
    other = await bed.submit(kgwe("other", 32, gpusPerPod=8))
    await bed.until_phase(other, "Running")
    await bed.delete(other)
    await bed.until(lambda: not bed.gpus_bound())

    await admit(bed, job, pool="b")
    await bed.until_phase(gang, "Running")
    assert nodes_of(bed, gang) == {"b0", "b1"}
    plan = placement_annotations.PLAN_ANNOTATION
    await bed.until(lambda: placement_annotations.decode(bed.jobs_of(gang)[0].metadata.annotations.get(plan, "")))


async def test_an_evicted_workload_gives_up_its_place_and_is_planned_again(bed: Bed):
    for name in ("a0", "a1"):
        await bed.node(name, 8)
    await bed.controller()
    single = await bed.submit(queued("single", 8))
    job = await until_waiting(bed, single)
    await admit(bed, job)
    await bed.until_phase(single, "Running")
    (first,) = nodes_of(bed, single)

    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"suspend": True}}, "default")
    await until_waiting(bed, single)
    await bed.until(lambda: not bed.gpus_bound())
    taker = await bed.submit(kgwe("taker", 8, pod={"nodeSelector": {"kubernetes.io/hostname": first}}))
    await bed.until_phase(taker, "Running")

    await admit(bed, job)
    await bed.until_phase(single, "Running")
    assert nodes_of(bed, single) == {"a0", "a1"} - {first}

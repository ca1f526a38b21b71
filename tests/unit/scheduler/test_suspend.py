"""`spec.suspend` of a workload, with the whole scheduler on a cluster in memory.

tests/integration/scheduler/test_suspend.py has a real control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters.bed import condition, kgwe, warp
from tests.support.fakes.memory_cluster import MemoryCluster

from kgwe.apps.mig import demand
from kgwe.apps.whatif import explain, limited
from kgwe.cluster import offline
from kgwe.cluster.suspension import marks
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import GPUWorkloadStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kgwe.kube.api.resources import Resource


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as made:
        yield made


async def suspend(cluster: MemoryCluster, name: str, kind: Resource[Any] = resources.GPU_WORKLOAD) -> None:
    await cluster.client.patch(kind, name, {"spec": {"suspend": True}}, "default")


async def resume(cluster: MemoryCluster, name: str, kind: Resource[Any] = resources.GPU_WORKLOAD) -> None:
    await cluster.client.patch(kind, name, {"spec": {"suspend": False}}, "default")


def conditions(cluster: MemoryCluster, name: str, kind: Resource[Any] = resources.GPU_WORKLOAD) -> dict[str, Any]:
    status = cluster.api.call("GET", kind.path(namespace="default", name=name)).get("status", {})
    return {each["type"]: each for each in status.get("conditions", ())}


def is_suspended(cluster: MemoryCluster, name: str, kind: Resource[Any] = resources.GPU_WORKLOAD) -> bool:
    return bool(conditions(cluster, name, kind).get("Suspended", {}).get("status") == "True")


async def until_suspended(cluster: MemoryCluster, name: str, kind: Resource[Any] = resources.GPU_WORKLOAD) -> Any:
    await cluster.until(lambda: is_suspended(cluster, name, kind))
    return await cluster.client.get(kind, name, "default")


def jobs(cluster: MemoryCluster) -> list[str]:
    return [job["metadata"]["uid"] for job in cluster.objects("/apis/batch/v1/jobs")]


async def test_a_workload_created_suspended_holds_nothing_and_starts_when_it_is_resumed(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        await cluster.submit(kgwe("w", 8, suspend=True))
        found = await until_suspended(cluster, "w")
        other = await cluster.submit(kgwe("other", 8))
        await cluster.until_phase(other, "Running")
        assert len(jobs(cluster)) == 1
        assert found.status.phase == "Pending"
        assert condition(found, "Suspended").reason == "SuspendedByUser"
        assert "resume with kubectl patch gpuworkloads.kgwe.nvidia.io w -n default" in found.status.message

        await cluster.client.delete(resources.GPU_WORKLOAD, "other", "default")
        await resume(cluster, "w")
        running = await cluster.until_phase(found, "Running")
    assert "Suspended" not in {each.type for each in running.status.conditions}


async def test_a_suspended_run_is_stopped_and_its_gpus_are_free(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        first = await cluster.submit(kgwe("first", 8))
        await cluster.until_phase(first, "Running")
        await suspend(cluster, "first")
        found = await until_suspended(cluster, "first")
        assert not cluster.objects("/api/v1/pods")
        assert (found.status.phase, found.status.retryCount, found.status.scheduledNode) == ("Pending", 0, "")
        second = await cluster.submit(kgwe("second", 8))
        await cluster.until_phase(second, "Running")


async def test_the_small_kind_can_be_suspended_too(cluster: MemoryCluster):
    kind = resources.WARP_GPU_WORKLOAD
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        await cluster.client.create(kind, warp("w", 4), "default")
        await cluster.until(lambda: "Running" in conditions(cluster, "w", kind))
        await suspend(cluster, "w", kind)
        await until_suspended(cluster, "w", kind)
        assert not cluster.objects("/api/v1/pods")
        await resume(cluster, "w", kind)
        await cluster.until(lambda: "Running" in conditions(cluster, "w", kind))


async def test_a_resumed_workload_has_its_old_position_in_the_queue(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        first = await cluster.submit(kgwe("first", 8, suspend=True))
        await until_suspended(cluster, "first")
        holder = await cluster.submit(kgwe("holder", 8))
        await cluster.until_phase(holder, "Running")
        cluster.api.now = "2026-01-01T00:01:00Z"
        second = await cluster.submit(kgwe("second", 8))
        await cluster.until_phase(second, "Pending")
        await resume(cluster, "first")
        await cluster.until(lambda: conditions(cluster, "first")["Scheduled"]["reason"] == "InsufficientGPU")
        cluster.end_pods()
        await cluster.until_phase(first, "Running")
        assert (await cluster.now(second)).status.phase == "Pending"


async def test_edits_while_suspended_count_when_it_is_resumed(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 8))
        await cluster.until_phase(workload, "Running")
        await suspend(cluster, "w")
        await until_suspended(cluster, "w")
        patch = {"spec": {"gpuRequirements": {"count": 2}}}
        await cluster.client.patch(resources.GPU_WORKLOAD, "w", patch, "default")
        await resume(cluster, "w")
        running = await cluster.until_phase(workload, "Running")
        (pod,) = cluster.objects("/api/v1/pods")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert running.status.requestedGPUs == "2"


async def test_a_new_scheduler_keeps_a_workload_suspended_and_resumes_it(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 8))
        await cluster.until_phase(workload, "Running")
    await suspend(cluster, "w")  # while no scheduler runs
    async with cluster.scheduler():
        await until_suspended(cluster, "w")
        assert not jobs(cluster)
    async with cluster.scheduler():
        other = await cluster.submit(kgwe("other", 1))
        await cluster.until_phase(other, "Running")
        assert is_suspended(cluster, "w")
        assert len(jobs(cluster)) == 1
    await resume(cluster, "w")
    await cluster.client.delete(resources.GPU_WORKLOAD, "other", "default")
    async with cluster.scheduler():
        await cluster.until_phase(workload, "Running")


@pytest.mark.parametrize("last", [suspend, resume])
async def test_quick_changes_settle_to_the_last_value(cluster: MemoryCluster, last: Callable[..., Awaitable[None]]):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 8))
        await cluster.until_phase(workload, "Running")
        for change in (suspend, resume, suspend, resume, suspend, last):
            await change(cluster, "w")
        if last is suspend:
            await until_suspended(cluster, "w")
            assert not cluster.objects("/api/v1/pods")
            await resume(cluster, "w")
        await cluster.until(
            lambda: (
                "Running" in conditions(cluster, "w")
                and len([pod for pod in cluster.objects("/api/v1/pods") if pod["status"]["phase"] == "Running"]) == 1
            )
        )
        assert not is_suspended(cluster, "w")


async def test_a_suspended_workload_can_be_deleted(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        await cluster.submit(kgwe("w", 8))
        await cluster.until(lambda: jobs(cluster))
        await suspend(cluster, "w")
        await cluster.client.delete(resources.GPU_WORKLOAD, "w", "default")
        await cluster.until(lambda: not jobs(cluster) and not cluster.objects("/api/v1/pods"))
        other = await cluster.submit(kgwe("other", 8))
        await cluster.until_phase(other, "Running")


async def test_suspending_a_workload_that_succeeded_changes_nothing_and_says_so(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 8))
        await cluster.until_phase(workload, "Running")
        cluster.end_pods()
        await cluster.until_phase(workload, "Succeeded")
        await suspend(cluster, "w")
        await cluster.until(lambda: "Suspended" in conditions(cluster, "w"))
        told = conditions(cluster, "w")["Suspended"]
        assert (told["status"], told["reason"]) == ("False", "AlreadyFinished")
        await resume(cluster, "w")
        await cluster.until(lambda: "Suspended" not in conditions(cluster, "w"))
        assert (await cluster.now(workload)).status.phase == "Succeeded"
        assert len(jobs(cluster)) == 1


async def test_suspending_a_failed_workload_does_not_start_it_again_but_an_edit_does(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        bad = kgwe("w", 1, pod={"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "3"}}}]})
        workload = await cluster.submit(bad)
        await cluster.until_phase(workload, "Failed")
        await suspend(cluster, "w")
        await cluster.until(lambda: "Suspended" in conditions(cluster, "w"))
        await resume(cluster, "w")
        await cluster.until(lambda: "Suspended" not in conditions(cluster, "w"))
        await suspend(cluster, "w")
        await cluster.until(lambda: "Suspended" in conditions(cluster, "w"))
        assert (await cluster.now(workload)).status.phase == "Failed"
        assert not jobs(cluster)

        fixed = {"spec": {"gpuRequirements": {"count": 3}}}
        await cluster.client.patch(resources.GPU_WORKLOAD, "w", fixed, "default")
        await until_suspended(cluster, "w")
        await resume(cluster, "w")
        await cluster.until_phase(workload, "Running")


async def test_explain_says_that_it_is_suspended_and_how_to_resume_it(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        await cluster.submit(kgwe("w", 8, suspend=True))
        await until_suspended(cluster, "w")
    view = await offline.read(cluster.client)
    workload = next(iter(view.state.workloads.values()))
    told = explain.explain(view, workload)
    assert told.state == "Suspended"
    assert told.summary.startswith("suspended; resume with kubectl patch gpuworkloads.kgwe.nvidia.io w -n default ")
    assert told.summary.endswith(". It holds no GPUs")
    view.find_waiting()
    assert workload.meta.uid not in view.asks
    assert limited.explain_limited(view, workload, ()).state == "Suspended"


async def test_a_suspended_workload_demands_no_slices(cluster: MemoryCluster):
    workload = await cluster.submit(kgwe("w", 1, suspend=True))
    waiting = msgspec.structs.replace(workload, status=GPUWorkloadStatus(phase="Pending"))
    assert not demand.is_waiting_workload(waiting)
    resumed = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, suspend=False))
    assert demand.is_waiting_workload(resumed)


async def test_a_suspension_by_kgwe_is_told_with_its_reason_and_the_way_back(cluster: MemoryCluster):
    notes = marks.write_record("kgwe-optimizer", "2026-01-01T00:00:00Z", "IdleGPU: idle for 2 h")
    body = kgwe("w", 8, suspend=True)
    body["metadata"]["annotations"] = notes
    async with cluster.scheduler():
        await cluster.submit(body)
        found = await until_suspended(cluster, "w")
    assert condition(found, "Suspended").reason == "IdleGPU"
    assert found.status.message == (
        "suspended by kgwe-optimizer at 2026-01-01T00:00:00Z (idle for 2 h); resume with kgwe idle restore w -n default"
    )

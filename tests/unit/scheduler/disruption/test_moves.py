"""Execution of recovery plans by a whole scheduler, on an API server in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.memory_cluster import MemoryCluster

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAST: dict[str, Any] = {"recovery_gather_seconds": 0.0, "recovery_storm_share": 1.0}


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as made:
        for name in ("n1", "n2", "n3"):
            await made.node(name)
        yield made


def workload(pods: int, **spec: Any) -> dict[str, Any]:
    wanted = {"gpuRequirements": {"count": 8 * pods}, "gpusPerPod": 8, **spec}
    return {"metadata": {"name": "train"}, "spec": wanted}


def places(cluster: MemoryCluster) -> dict[str, str]:
    """Name of each pod that runs -> its node."""
    pods = cluster.objects("/api/v1/pods")
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods
        if pod.get("status", {}).get("phase") == "Running"
    }


def lose(cluster: MemoryCluster, node: str) -> None:
    conditions = [{"type": "Ready", "status": "Unknown"}]
    cluster.api.call("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": conditions}})


def notes_of_job(cluster: MemoryCluster) -> dict[str, str]:
    (job,) = cluster.objects("/apis/batch/v1/jobs")
    notes: dict[str, str] = job["metadata"]["annotations"]
    return notes


def planned_nodes(cluster: MemoryCluster) -> list[str]:
    text = notes_of_job(cluster)[placement_annotations.PLAN_ANNOTATION]
    return [seat.node for seat in placement_annotations.decode(text)]


async def start_gang(cluster: MemoryCluster, **spec: Any) -> tuple[str, str]:
    """A gang of two pods; returns the node of its second pod, and the node that is free."""
    made = await cluster.submit(workload(2, **spec))
    await cluster.until_phase(made, "Running")
    await cluster.until(lambda: len(places(cluster)) == 2)
    lost = planned_nodes(cluster)[1]
    (free,) = {"n1", "n2", "n3"} - set(planned_nodes(cluster))
    return lost, free


async def test_a_pod_on_a_lost_node_is_replaced_and_the_others_run_on(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        lost, free = await start_gang(cluster)
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.objects("/api/v1/pods")}
        lose(cluster, lost)
        await cluster.until(lambda: set(places(cluster).values()) == {planned_nodes(cluster)[0], free})
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.objects("/api/v1/pods")}
        assert sum(before[name] == after[name] for name in before) == 1, "the healthy pod runs on"
        notes = notes_of_job(cluster)
        assert f"pod 1 moves to {free}" in notes[metadata_keys.NOTE_ANNOTATION]
        assert lost in notes[metadata_keys.NOTE_ANNOTATION]
        assert metadata_keys.ROUND_ANNOTATION not in notes
        events = "/apis/events.k8s.io/v1/events"
        await cluster.until(lambda: {"Recovering", "Recovered"} <= {each["reason"] for each in cluster.objects(events)})


async def test_the_plan_is_stored_before_a_pod_is_removed(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        lost, free = await start_gang(cluster)
        cluster.api.requests.clear()
        lose(cluster, lost)
        await cluster.until(lambda: free in places(cluster).values())
    (job,) = cluster.objects("/apis/batch/v1/jobs")
    stored = ("PATCH", resources.JOB.path(namespace="default", name=job["metadata"]["name"]))
    writes = [each for each in cluster.api.requests if each[0] != "GET"]
    removed = next(i for i, (method, path) in enumerate(writes) if method == "DELETE" and "/pods/" in path)
    assert writes.index(stored) < removed


async def test_restart_gang_starts_all_pods_again(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        lost, free = await start_gang(cluster, recoveryPolicy="RestartGang")
        before = {pod["metadata"]["uid"] for pod in cluster.objects("/api/v1/pods")}
        lose(cluster, lost)

        def is_restarted() -> bool:
            now = {pod["metadata"]["uid"] for pod in cluster.objects("/api/v1/pods")}
            return len(places(cluster)) == 2 and not now & before

        await cluster.until(is_restarted)
        assert free in places(cluster).values()
        assert notes_of_job(cluster)[metadata_keys.ROUND_ANNOTATION] == "1"


async def test_a_single_pod_gets_a_new_job_at_its_new_place(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        made = await cluster.submit(workload(1))
        await cluster.until_phase(made, "Running")
        (job,) = cluster.objects("/apis/batch/v1/jobs")
        (lost,) = planned_nodes(cluster)
        lose(cluster, lost)
        await cluster.until(lambda: set(places(cluster).values()) not in ({lost}, set()))
        (again,) = cluster.objects("/apis/batch/v1/jobs")
        assert again["metadata"]["uid"] != job["metadata"]["uid"]
        assert planned_nodes(cluster) == list(places(cluster).values()) != [lost]


async def test_a_plan_that_was_stored_is_executed_by_the_next_leader(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        lost, free = await start_gang(cluster)
        lose(cluster, lost)
        await cluster.until(lambda: metadata_keys.NOTE_ANNOTATION in notes_of_job(cluster))
    assert planned_nodes(cluster)[1] == free
    async with cluster.scheduler(**FAST):
        await cluster.until(lambda: free in places(cluster).values() and lost not in places(cluster).values())
        assert len(places(cluster)) == 2


async def test_a_plan_that_cannot_be_stored_is_made_again(cluster: MemoryCluster) -> None:
    async with cluster.scheduler(**FAST):
        lost, free = await start_gang(cluster)
        cluster.api.refuse_next("PATCH", resources.JOB, 500, "etcd is away", "InternalError")
        lose(cluster, lost)
        await cluster.until(lambda: free in places(cluster).values() and lost not in places(cluster).values())

"""Replicas of inference, with the whole scheduler on a cluster in memory.

tests/integration/scheduler/test_scaling.py has a real control plane.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import condition, kgwe
from tests.support.fakes.memory_cluster import MemoryCluster

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as made:
        yield made


def service(count: int = 4, **spec: Any) -> dict[str, Any]:
    return kgwe("api", count, workloadType="Inference", **spec)


async def edit(cluster: MemoryCluster, **spec: Any) -> None:
    await cluster.client.patch(resources.GPU_WORKLOAD, "api", {"spec": spec}, "default")


def status(cluster: MemoryCluster) -> dict[str, Any]:
    path = resources.GPU_WORKLOAD.path(namespace="default", name="api")
    found: dict[str, Any] = cluster.api.call("GET", path).get("status", {})
    return found


async def until_ready(cluster: MemoryCluster, count: int) -> dict[str, Any]:
    def is_done() -> bool:
        now = status(cluster)
        counts = [now.get(each, 0) for each in ("replicas", "readyReplicas", "updatedReplicas")]
        return counts == [count] * 3 and len(live_pods(cluster)) == count

    await cluster.until(is_done)
    return status(cluster)


def live_pods(cluster: MemoryCluster) -> dict[str, str]:
    """Name of each pod that is not being deleted -> its node."""
    pods = cluster.objects("/api/v1/pods")
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
    }


def images(cluster: MemoryCluster) -> Counter[str]:
    return Counter(pod["spec"]["containers"][0]["image"] for pod in cluster.objects("/api/v1/pods"))


def template(image: str) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}


async def test_more_replicas_start_and_those_that_run_stay(cluster: MemoryCluster):
    for name in ("n1", "n2", "n3"):
        await cluster.node(name)
    async with cluster.scheduler():
        await cluster.submit(service())
        await until_ready(cluster, 1)
        before = live_pods(cluster)
        await edit(cluster, replicas=3)
        await until_ready(cluster, 3)
        assert before.items() <= live_pods(cluster).items()
        assert sorted(live_pods(cluster).values()) == ["n1", "n2", "n3"], "each on another node"
        assert status(cluster)["requestedGPUs"] == "3×4"
        await edit(cluster, replicas=1)
        now = await until_ready(cluster, 1)
        assert live_pods(cluster) == before
        assert now["requestedGPUs"] == "4"
        assert now["selector"] == "app.kubernetes.io/managed-by=kgwe-scheduler,kgwe.nvidia.io/workload=api"


async def test_scaled_to_zero_it_holds_nothing(cluster: MemoryCluster):
    await cluster.node("n1")
    async with cluster.scheduler():
        await cluster.submit(service(replicas=2))
        await until_ready(cluster, 2)
        await edit(cluster, replicas=0)
        await until_ready(cluster, 0)
        assert status(cluster)["message"] == "scaled to 0 replicas; it holds no GPUs"
        other = await cluster.submit(kgwe("other", 8))
        await cluster.until_phase(other, "Running")
        await edit(cluster, replicas=1)
        await cluster.until(lambda: "insufficient GPUs" in status(cluster).get("message", ""))


async def test_replicas_without_room_wait_and_say_so(cluster: MemoryCluster):
    await cluster.node("n1")
    async with cluster.scheduler():
        workload = await cluster.submit(service(replicas=3))
        await cluster.until(lambda: status(cluster).get("readyReplicas") == 2)
        await cluster.until(lambda: "waits" in status(cluster).get("message", ""))
        found = condition(await cluster.now(workload), "Scheduled")
        assert (found.status, found.reason) == ("False", "InsufficientGPU")
        assert found.message.startswith("2 of 3 replicas ready; replica 2 waits: ")
        await cluster.node("n2")
        await until_ready(cluster, 3)


async def test_an_update_with_room_starts_the_new_before_it_stops_the_old(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    await cluster.node("n2", 4)
    async with cluster.scheduler():
        await cluster.submit(service(replicas=2, **template("v1")))
        await until_ready(cluster, 2)
        fewest = await watch_update(cluster, 2)
        assert fewest == 2, "two replicas were ready all the time"
        assert images(cluster) == {"v2": 2}
        await edit(cluster, replicas=1, **template("v3"))
        await until_ready(cluster, 1)
        await cluster.until(lambda: images(cluster) == {"v3": 1})


async def watch_update(cluster: MemoryCluster, count: int) -> int:
    """Update all replicas; returns how many were ready at least."""
    fewest = count

    def is_done() -> bool:
        nonlocal fewest
        ready = [
            pod
            for pod in cluster.objects("/api/v1/pods")
            if pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]
        fewest = min(fewest, len(ready))
        return images(cluster) == {"v2": count} and len(ready) == count

    await edit(cluster, **template("v2"))
    await cluster.until(is_done)
    await until_ready(cluster, count)
    return fewest


async def test_an_update_without_room_goes_one_by_one_and_says_so(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        workload = await cluster.submit(service(replicas=2, **template("v1")))
        await until_ready(cluster, 2)
        said: set[str] = set()

        def note() -> bool:
            said.update(each["reason"] for each in status(cluster)["conditions"] if each["type"] == "Updating")
            return images(cluster) == {"v2": 2} and status(cluster).get("updatedReplicas") == 2

        await edit(cluster, **template("v2"))
        await cluster.until(note)
        assert "OneByOne" in said
        await until_ready(cluster, 2)
        now = await cluster.now(workload)
        assert not [each for each in now.status.conditions if each.type == "Updating"]


async def test_an_update_that_fits_no_node_leaves_the_old_replicas(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        await cluster.submit(service(replicas=2, **template("v1")))
        await until_ready(cluster, 2)
        await edit(cluster, gpuRequirements={"count": 4, "gpuModel": "H100"}, **template("v2"))
        await cluster.until(lambda: "fits no node" in status(cluster).get("message", ""))
        assert images(cluster) == {"v1": 2}
        await edit(cluster, gpuRequirements={"count": 4, "gpuModel": None}, **template("v2"))
        await cluster.until(lambda: images(cluster) == {"v2": 2})


async def test_a_new_scheduler_goes_on_in_the_middle_of_an_update(cluster: MemoryCluster):
    for name in ("n1", "n2"):
        await cluster.node(name)
    async with cluster.scheduler():
        await cluster.submit(service(replicas=3, **template("v1")))
        await until_ready(cluster, 3)
        await edit(cluster, replicas=3, **template("v2"))
        await cluster.until(lambda: images(cluster)["v2"] >= 1)
    async with cluster.scheduler():
        await cluster.until(lambda: images(cluster) == {"v2": 3})
        await until_ready(cluster, 3)


@pytest.mark.parametrize("moment", ["waiting", "running", "updating"])
async def test_deleted_at_any_moment_nothing_is_left(cluster: MemoryCluster, moment: str):
    await cluster.node("n1")
    async with cluster.scheduler():
        await cluster.submit(service(replicas=3 if moment == "waiting" else 2, **template("v1")))
        await cluster.until(lambda: status(cluster).get("readyReplicas") == 2)
        if moment == "updating":
            await edit(cluster, **template("v2"))
            await cluster.until(lambda: images(cluster)["v2"])
        await cluster.client.delete(resources.GPU_WORKLOAD, "api", "default")
        await cluster.until(lambda: not cluster.objects("/apis/apps/v1/deployments") and not live_pods(cluster))
        other = await cluster.submit(kgwe("other", 8))
        await cluster.until_phase(other, "Running")

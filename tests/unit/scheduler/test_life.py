"""The life of a workload, with the whole scheduler on a cluster in memory.

tests/integration/scheduler/test_life.py has a real control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


async def test_a_workload_runs_to_the_end(cluster: MemoryCluster):
    await cluster.node("n1")
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 4))
        await cluster.until_phase(workload, "Running")
        (pod,) = cluster.objects("/api/v1/pods")
        assert pod["spec"]["nodeName"] == "n1"
        cluster.end_pods()
        await cluster.until_phase(workload, "Succeeded")


async def test_without_room_it_says_why_and_starts_when_there_is_room(cluster: MemoryCluster):
    await cluster.node("small", 2)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 4))
        waiting = await cluster.until_phase(workload, "Pending")
        assert waiting.status.conditions
        assert not cluster.objects("/apis/batch/v1/jobs")
        await cluster.node("large", 8)
        await cluster.until_phase(workload, "Running")
        (pod,) = cluster.objects("/api/v1/pods")
        assert pod["spec"]["nodeName"] == "large"


async def test_a_deleted_workload_makes_room_for_the_next(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        first = await cluster.submit(kgwe("first", 8))
        await cluster.until_phase(first, "Running")
        second = await cluster.submit(kgwe("second", 8))
        await cluster.until_phase(second, "Pending")
        await cluster.client.delete(resources.GPU_WORKLOAD, "first", "default")
        await cluster.until_phase(second, "Running")
        assert len(cluster.objects("/apis/batch/v1/jobs")) == 1


async def test_an_edit_before_the_start_counts(cluster: MemoryCluster):
    await cluster.node("n1", 4)
    async with cluster.scheduler():
        workload = await cluster.submit(kgwe("w", 8))
        await cluster.until_phase(workload, "Pending")
        patch = {"spec": {"gpuRequirements": {"count": 2}}}
        await cluster.client.patch(resources.GPU_WORKLOAD, "w", patch, "default")
        await cluster.until_phase(workload, "Running")


async def test_a_new_scheduler_goes_on_where_the_last_one_ended(cluster: MemoryCluster):
    await cluster.node("n1", 8)
    async with cluster.scheduler():
        first = await cluster.submit(kgwe("first", 8))
        await cluster.until_phase(first, "Running")
    async with cluster.scheduler():
        second = await cluster.submit(kgwe("second", 8))
        waiting = await cluster.until_phase(second, "Pending")
        assert condition(waiting, "Scheduled").status == "False"
        cluster.end_pods()
        await cluster.until_phase(first, "Succeeded")
        await cluster.until_phase(second, "Running")

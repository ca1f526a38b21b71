"""Estimated starts of waiting workloads, with the whole scheduler on a cluster in memory."""

from __future__ import annotations

import time
from typing import Any

from tests.support.clusters.bed import kgwe
from tests.support.fakes import memory_cluster
from tests.support.fakes.memory_cluster import MemoryCluster

from kgwe.kube.api import resources, timestamp

_HOUR_S = 3600


def _told(cluster: MemoryCluster, workload: Any) -> dict[str, str] | None:
    path = resources.GPU_WORKLOAD.path(namespace=workload.metadata.namespace, name=workload.metadata.name)
    found: dict[str, str] | None = cluster.api.call("GET", path).get("status", {}).get("estimatedStart")
    return found


async def test_a_new_leader_estimates_starts_as_the_one_before(monkeypatch):
    began_s = time.time()
    monkeypatch.setattr(memory_cluster, "_NOW", timestamp.format_time(began_s))
    async with MemoryCluster() as cluster:
        await cluster.node("n1", 8)
        async with cluster.scheduler():
            first = await cluster.submit(kgwe("first", 8, expectedDurationSeconds=2 * _HOUR_S))
            await cluster.until_phase(first, "Running")
            second = await cluster.submit(kgwe("second", 8, expectedDurationSeconds=_HOUR_S))
            await cluster.until(lambda: _told(cluster, second))
            before = _told(cluster, second)
        body = {"status": {"estimatedStart": None}}
        await cluster.client.patch(resources.GPU_WORKLOAD, "second", body, "default", subresource="status")
        assert _told(cluster, second) is None
        async with cluster.scheduler():
            await cluster.until(lambda: _told(cluster, second))
            after = _told(cluster, second)
    assert before is not None
    assert after is not None
    for part in ("p50", "p90"):
        then_s, now_s = timestamp.epoch_seconds(before[part]), timestamp.epoch_seconds(after[part])
        assert then_s > began_s + _HOUR_S
        # Estimates are rounded up to a grid whose steps grow by a seventh.
        assert abs(now_s - then_s) < _HOUR_S, (before, after)

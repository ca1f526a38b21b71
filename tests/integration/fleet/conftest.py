"""A cluster with 16 nodes of the mixed fleet, whole and empty at the start of every test."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.fleet import MIXED, NODES

from kgwe import errors
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.fleet import apply, faults, gpupods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def fleet_cluster(cluster_root: Path) -> Iterator[LocalCluster]:
    """A cluster of its own: other tests count nodes."""
    name = f"test-{os.getpid()}-fleet"
    started = LocalCluster(name, state_root=cluster_root)
    try:
        yield LocalCluster.start(ClusterOptions(name, state_root=cluster_root))
    finally:
        started.stop(grace_s=2.0)


@pytest.fixture
async def client(fleet_cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.connect(fleet_cluster.kubeconfig) as connected:
        await apply.apply_fleet(connected, MIXED, NODES)
        yield connected
        await faults.clear(connected)
        for pod in await connected.list(gpupods.GPU_PODS, "default"):
            with contextlib.suppress(errors.NotFound):
                await connected.delete(gpupods.GPU_PODS, pod.metadata.name, "default", grace_s=0)

"""A cluster with 16 nodes of the mixed fleet, whole and empty at the start of every test."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.clusters.fleet import MIXED, NODES

from kgwe import errors
from kgwe.local.fleet import apply, faults, gpupods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    async with clients.connect(cluster.kubeconfig) as connected:
        await apply.apply_fleet(connected, MIXED, NODES)
        yield connected
        await faults.clear(connected)
        for pod in await connected.list(gpupods.GPU_PODS, "default"):
            with contextlib.suppress(errors.NotFound):
                await connected.delete(gpupods.GPU_PODS, pod.metadata.name, "default", grace_s=0)

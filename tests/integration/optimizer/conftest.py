"""A metered fleet, a namespace that has opted in to actions on idle GPUs, and processes that tests start."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.clusters.optimizer import FLEET, NODES, OptimizerBed

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.local.demo import install
from kgwe.local.fleet import apply, exporter
from kgwe.local.fleet.simulator import Simulator
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def optimizer_cluster(cluster: LocalCluster) -> LocalCluster:
    """A cluster with CRDs and rights."""

    async def act() -> None:
        async with clients.connect(cluster.kubeconfig) as client:
            await install.install(client)

    asyncio.run(act())
    return cluster


@pytest.fixture
async def bed(optimizer_cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[OptimizerBed]:
    """The fleet is simulated in this process; its exporter is real."""
    namespace = f"test-{os.getpid()}-optimizer{next(_numbers)}"
    async with clients.connect(optimizer_cluster.kubeconfig) as client:
        await apply.apply_fleet(client, FLEET, NODES)
        await _make_namespace(client, namespace)
        made = OptimizerBed(optimizer_cluster, client, tmp_path, namespace)
        simulator = Simulator(client)
        app = exporter.ExporterApp(simulator)
        async with simulator.run_in_background(), http.serving(app, http.Address("127.0.0.1", 0)) as port:
            made.targets = f"http://127.0.0.1:{port}/targets"
            try:
                yield made
            finally:
                for process in made.processes:
                    process.kill()
                await _clear(made)


async def _make_namespace(client: KubeClient, name: str) -> None:
    notes = {"kgwe.nvidia.io/idle-action": "suspend"}
    await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name, "annotations": notes}})
    account = {"kind": "ServiceAccount", "name": "kgwe-optimizer", "namespace": "kgwe-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kgwe-optimizer-act"}
    body = {"metadata": {"name": "kgwe-optimizer-act"}, "roleRef": role, "subjects": [account]}
    await client.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings", body=body)


async def _clear(bed: OptimizerBed) -> None:
    for workload in await bed.client.list(resources.GPU_WORKLOAD, bed.namespace):
        with contextlib.suppress(errors.NotFound):
            name = workload.metadata.name
            await bed.client.patch(resources.GPU_WORKLOAD, name, {"metadata": {"finalizers": []}}, bed.namespace)
            await bed.client.delete(resources.GPU_WORKLOAD, name, bed.namespace)
    await bed.client.request("DELETE", f"/api/v1/namespaces/{bed.namespace}")
    for pod in await bed.client.list(resources.POD, bed.namespace):
        with contextlib.suppress(errors.NotFound):
            await bed.client.delete(resources.POD, pod.metadata.name, bed.namespace, grace_s=0)
    lease = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    for name in ("kgwe-optimizer", "kgwe-scheduler", "kgwe-cost-engine"):
        with contextlib.suppress(errors.NotFound):
            await bed.client.patch(resources.LEASE, name, lease, "kgwe-system")
    await apply.apply_fleet(bed.client, FLEET, 0)

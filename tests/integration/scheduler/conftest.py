"""Fixtures of the controller tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import clients
from tests.support.clusters.bed import KINDS, Bed
from tests.support.clusters.pods import Live, gang, pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.local.cluster import extender
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.cluster.components import NO_FEATURES
from kgwe.local.demo import install
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.clusters.pool import ClusterPool

    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer


# kube-scheduler tries a pod again after a second; its usual ten are spent waiting.
_IMPATIENT = "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n"


@pytest.fixture
def prepared(
    pool: ClusterPool, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[LocalCluster, Path]:
    """A cluster with CRDs and rights, and the kubeconfig of the controller's service account.

    A module that needs features of Kubernetes that are off by default names them in FEATURES.
    """
    features = getattr(request.module, "FEATURES", NO_FEATURES)

    def prepare(cluster: LocalCluster) -> Path:
        asyncio.run(_prepare(cluster))
        path = tmp_path_factory.mktemp("controller") / "kubeconfig"
        return service_account_kubeconfig(cluster, "kgwe-system", "kgwe-scheduler", path)

    shared = pool.get(f"scheduler {features}", request.module.__name__, features=features, prepare=prepare)
    if "extender_port" not in request.fixturenames:
        shared.cluster.configure_scheduler(_IMPATIENT)
    return shared.cluster, shared.prepared


async def _prepare(cluster: LocalCluster) -> None:
    async with clients.connect(cluster.kubeconfig) as client:
        await install.install(client)
        await _until_gated(client)


async def _until_gated(client: KubeClient) -> None:
    """A policy takes effect a moment after it is stored."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            made = await client.create(resources.POD, pod("probe", 1, annotations=gang("probe", 2)), "default")
            await client.delete(resources.POD, "probe", "default", grace_s=0)
            if made.spec.schedulingGates:
                return
            await asyncio.sleep(0.1)


@pytest.fixture
async def bed(prepared: tuple[LocalCluster, Path], tmp_path: Path) -> AsyncIterator[Bed]:
    """The cluster, empty of nodes and workloads before and after."""
    cluster, kubeconfig = prepared
    async with clients.connect(cluster.kubeconfig) as client, Bed(cluster, client, kubeconfig, tmp_path) as bed:
        yield bed
        await _clear(bed)


async def _clear(bed: Bed) -> None:
    for replica in bed._replicas:
        replica.resume()
        replica.kill()
    for group, informer in bed.workloads.items():
        for workload in list(informer.store.values()):
            meta = workload.metadata
            with contextlib.suppress(errors.NotFound):
                await bed.client.patch(KINDS[group], meta.name, {"metadata": {"finalizers": []}}, meta.namespace)
        await _delete_all(bed, informer)
    runs: list[Informer[Any]] = [bed.jobs, bed.deployments]
    for informer in (*runs, bed.pods):
        await _delete_all(bed, informer)
    await bed.until(lambda: not any(informer.store for informer in (*runs, *bed.workloads.values())))
    await _delete_all(bed, bed.pods)  # created before their owner was gone
    await bed.until(lambda: not bed.pods.store)
    await _delete_all(bed, bed.nodes)
    await bed.until(lambda: not bed.nodes.store)
    lease = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    with contextlib.suppress(errors.NotFound):  # where no scheduler was started
        await bed.client.patch(resources.LEASE, "kgwe-scheduler", lease, "kgwe-system")


async def _delete_all(bed: Bed, informer: Informer[Any]) -> None:
    """One request per namespace, repeated while the server is too busy to answer it in time."""
    options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
    for namespace in {obj.metadata.namespace for obj in informer.store.values()}:
        path = informer.resource.path(namespace=namespace or None)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await bed.client.request("DELETE", path, body=options)
                except errors.Transient:
                    await asyncio.sleep(1)
                else:
                    break


@pytest.fixture(scope="session")
def extender_address() -> Iterator[int]:
    """The port of all schedulers of the session, one after the other."""
    with ports.reserve("extender") as port:
        yield port


@pytest.fixture
def extender_port(prepared: tuple[LocalCluster, Path], extender_address: int) -> int:
    """kube-scheduler asks this port about GPU pods."""
    cluster, _ = prepared
    cluster.configure_scheduler(extender.build_configuration(cluster, extender_address) + _IMPATIENT)
    return extender_address


@pytest.fixture
def live(bed: Bed, extender_port: int) -> Live:
    return Live(bed, extender_port)

"""A cluster with the MIG controller and the workload controller as real processes with their own rights, a small fleet
whose kubelets are simulated, and machines on which real agents cut."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.clusters.mig import FLEET, MigBed

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.demo import install
from kgwe.local.fleet import agents, apply
from kgwe.local.fleet.simulator import Simulator
from kgwe.local.host import assets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.local.cluster.cluster import LocalCluster


@pytest.fixture
async def bed(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[MigBed]:
    """No nodes yet; controllers run."""
    async with clients.connect(cluster.kubeconfig) as client:
        await install.install(client)
        await agents.install(client)
        await manifests.apply_manifest(client, manifests.load_manifests(assets.find_asset("deploy/mig.yaml")))
        made = MigBed(cluster, client, tmp_path)
        tasks = [asyncio.create_task(informer.run()) for informer in made.informers]
        try:
            for informer in made.informers:
                await informer.synced.wait()
            made.run("controller", "kgwe-scheduler")
            made.run("mig", "kgwe-mig")
            async with Simulator(client).run_in_background():
                yield made
        finally:
            await _clear(made)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _clear(bed: MigBed) -> None:
    for process in bed.processes:
        process.kill()
        process.wait()
    for machine in bed.machines:
        machine.__exit__()
    for workload in list(bed.workloads.store.values()):
        meta = workload.metadata
        with contextlib.suppress(errors.NotFound):
            await bed.client.patch(resources.GPU_WORKLOAD, meta.name, {"metadata": {"finalizers": []}}, meta.namespace)
            await bed.client.delete(resources.GPU_WORKLOAD, meta.name, meta.namespace)
    for name in list(bed.strategies.store):
        await bed.client.delete(resources.MIG_STRATEGY, name)
    for pod in list(bed.pods.store.values()):
        with contextlib.suppress(errors.NotFound):
            await bed.client.delete(resources.POD, pod.metadata.name, pod.metadata.namespace, grace_s=0)
    await apply.apply_fleet(bed.client, FLEET, 0)

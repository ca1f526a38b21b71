"""One workload of 16,384 GPUs on a real control plane: planned, stored, told, and known again after a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import condition, kgwe

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

NODES, CARDS = 2_048, 8
GPUS = NODES * CARDS
NAMESPACE = "large"
# Of the gang's 2,048 pods the quota lets so many exist: those show that seats are given, before and after a restart.
REAL_PODS = 32


async def make_nodes(bed: Bed) -> None:
    offers = {"cpu": "200", "memory": "2Ti", "pods": "110", amounts.GPU: str(CARDS)}
    at_once = asyncio.Semaphore(16)

    async def make(number: int) -> None:
        name = f"h100-{number:04}"
        meta = {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
        }
        async with at_once:
            await bed.client.create(resources.NODE, {"metadata": meta})
            status = {"status": {"capacity": offers, "allocatable": offers}}
            await bed.client.patch(resources.NODE, name, status, subresource="status")

    await asyncio.gather(*map(make, range(NODES)))
    await bed.until(lambda: sum(map(podspec.is_ready, bed.nodes.store.values())) == NODES, timeout_s=300)


async def allow_pods(bed: Bed, most: int) -> None:
    """Let so many pods exist in the namespace."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": str(most)}},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/pods"
    params = {"fieldManager": "test", "force": "true"}
    await bed.client.request("PATCH", path, body=quota, params=params, content_type="application/apply-patch+yaml")


def running(bed: Bed, workload: Any) -> dict[int, str]:
    """Index of each pod of the workload that runs -> its node."""
    mine = [
        pod
        for pod in bed.pods.store.values()
        if pod.metadata.labels.get(metadata_keys.UID_LABEL) == workload.metadata.uid
    ]
    return {
        int(pod.metadata.annotations[placement_annotations.INDEX_ANNOTATION]): pod.spec.nodeName
        for pod in mine
        if pod.status.phase == "Running"
    }


async def test_a_workload_of_16384_gpus_is_planned_stored_told_and_known_after_a_restart(bed: Bed):
    await bed.client.create(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
    await allow_pods(bed, REAL_PODS)
    await make_nodes(bed)
    first = await bed.controller()

    workload = await bed.submit(kgwe("huge", GPUS, gpusPerPod=CARDS), NAMESPACE)
    told = await bed.until_phase(workload, "Scheduled", timeout_s=120)
    assert (told.status.nodeCount, told.status.allocatedGPUCount) == (NODES, GPUS)
    assert len(told.status.placements) == 512
    (job,) = bed.jobs_of(workload)
    text = job.metadata.annotations[placement_annotations.PLAN_ANNOTATION]
    seats = placement_annotations.decode(text)
    assert len({seat.node for seat in seats}) == len(seats) == NODES
    await bed.until(lambda: len(running(bed, workload)) == REAL_PODS, timeout_s=120)
    assert all(seats[index].node == node for index, node in running(bed, workload).items())

    first.kill()
    second = await bed.controller()
    small = await bed.submit(kgwe("small", 1))
    waiting = await bed.until_phase(small, "Pending")
    assert condition(waiting, "Scheduled").reason == "InsufficientGPU", "every GPU is reserved, as before the restart"
    (same,) = bed.jobs_of(workload)
    assert (same.metadata.uid, same.metadata.annotations[placement_annotations.PLAN_ANNOTATION]) == (
        job.metadata.uid,
        text,
    )
    await allow_pods(bed, 2 * REAL_PODS)
    await bed.until(lambda: len(running(bed, workload)) == 2 * REAL_PODS, timeout_s=120)
    assert all(seats[index].node == node for index, node in running(bed, workload).items())
    assert second.process.poll() is None

    await bed.delete(workload)
    await bed.until_phase(small, "Running", timeout_s=120)

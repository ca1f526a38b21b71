"""Plain GPU pods in namespaces of the fair queue: one namespace's flood does not starve another's few."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

LABEL = {"kgwe.nvidia.io/fair-queue": "enabled"}
FLOOD, FEW = 48, 4


@pytest.fixture
async def fair(bed: Bed) -> Bed:
    """With the namespaces flood and few, whose pods are gated."""
    for name in ("flood", "few"):
        await bed.client.apply(resources.NAMESPACE, {"metadata": {"name": name, "labels": LABEL}})
        async with asyncio.timeout(PATIENCE_S):
            # The label takes effect a moment after it is stored, and so does the namespace's service account.
            while True:
                if await gates(bed, pod("probe", 1), name):
                    break
                await asyncio.sleep(0.1)
    return bed


async def gates(bed: Bed, body: dict[str, Any], namespace: str) -> list[str]:
    try:
        made = await bed.client.create(resources.POD, body, namespace)
    except errors.Permanent:
        return []
    await bed.client.delete(resources.POD, made.metadata.name, namespace, grace_s=0)
    return [gate.name for gate in made.spec.schedulingGates]


async def submit(bed: Bed, namespace: str, count: int, duration: str = "1h") -> None:
    said = {"kgwe.nvidia.io/simulated-duration": duration}
    for number in range(count):
        await bed.client.create(resources.POD, pod(f"p-{number:02}", 1, annotations=said), namespace)


def bound(bed: Bed, namespace: str) -> int:
    """Pods that have, or had, a node."""
    ours = [each for each in bed.pods.store.values() if each.metadata.namespace == namespace]
    return sum(bool(each.spec.nodeName) for each in ours)


async def test_plain_gpu_pods_are_gated_where_the_namespace_asks_for_it(fair: Bed):
    assert await gates(fair, pod("gpu", 1), "few") == [placement_annotations.GATE]
    assert await gates(fair, pod("gpu", 1, gated=True), "few") == [placement_annotations.GATE]
    assert await gates(fair, pod("gpu", 1, schedulingGates=[{"name": "example.com/mine"}]), "few") == [
        "example.com/mine",
        placement_annotations.GATE,
    ]
    assert await gates(fair, pod("cpu", 0), "few") == []
    assert await gates(fair, pod("other", 1, schedulerName="volcano"), "few") == []
    assert await gates(fair, pod("gpu", 1), "default") == []


async def test_a_flood_of_one_namespace_does_not_starve_another(fair: Bed, live: Live):
    await live.nodes({"a": 2})
    await submit(fair, "flood", FLOOD, "2s")
    await submit(fair, "few", FEW, "2s")
    await live.scheduler()

    await fair.until(lambda: bound(fair, "few") == FEW)

    # Sixteen GPUs in turn: the few have theirs with the first ones of the flood, though they came last.
    assert bound(fair, "flood") <= FLOOD // 2
    await fair.until(lambda: bound(fair, "flood") == FLOOD, timeout_s=120)
    assert not live.overbooked()


async def test_pods_that_run_already_count_after_a_restart(fair: Bed, live: Live):
    await live.nodes({"a": 1})
    replica = await live.scheduler()
    await submit(fair, "flood", 12)
    await fair.until(lambda: bound(fair, "flood") == 8)
    replica.kill()
    await submit(fair, "few", 2)
    await live.scheduler()
    for name in ("p-00", "p-01"):
        await fair.client.delete(resources.POD, name, "flood", grace_s=0)

    await fair.until(lambda: bound(fair, "few") == 2)
    assert bound(fair, "flood") == 6


async def test_workloads_of_such_a_namespace_run_as_elsewhere(fair: Bed, live: Live):
    await live.nodes({"a": 2})
    await live.scheduler()
    one = await fair.submit(kgwe("one", 2), "few")
    several = await fair.submit(kgwe("several", 8, gpusPerPod=4), "few")
    serving = await fair.submit(kgwe("serving", 1, workloadType="Inference"), "few")
    for workload in (one, several, serving):
        await fair.until_phase(workload, "Running")
    assert not live.overbooked()

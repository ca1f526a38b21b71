"""Workloads and their kinds are deleted while no scheduler runs, and in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.bed import KINDS, kgwe, warp

from kgwe.kube.api import resources
from kgwe.kube.crd import definitions

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

# The garbage collector looks for kinds it does not know yet every 30 s.
_COLLECTED_S = 120.0


async def test_deleting_a_workload_needs_no_scheduler(bed: Bed):
    await bed.node("n1")
    replica = await bed.controller()
    made = [await bed.submit(manifest("w", 1)) for manifest in (warp, kgwe)]
    for workload in made:
        running = await bed.until_phase(workload, "Running")
        assert running.metadata.finalizers == ()
    assert replica.stop() == 0

    for workload in made:
        await bed.delete(workload)

    await bed.until(lambda: not any(map(bed.now, made)))


async def test_the_scheduler_removes_the_finalizer_of_an_earlier_release(bed: Bed):
    """From a workload that runs, from one that has ended, and from one that was deleted while no scheduler ran."""
    await bed.node("n1")
    replica = await bed.controller()
    runs, ended, gone = [await bed.submit(warp(name, 1)) for name in ("runs", "ended", "gone")]
    for each in (runs, ended, gone):
        await bed.until_phase(each, "Running")
    (job,) = bed.jobs_of(ended)
    for pod in [pod for pod in bed.pods.store.values() if pod.metadata.labels.get("job-name") == job.metadata.name]:
        await bed.client.patch(
            resources.POD, pod.metadata.name, {"status": {"phase": "Succeeded"}}, "default", subresource="status"
        )
    await bed.until_phase(ended, "Succeeded")
    assert replica.stop() == 0
    old = {"metadata": {"finalizers": ["gpu.warp.dev/finalizer", "example.com/mine"]}}
    for each in (runs, ended, gone):
        await bed.client.patch(KINDS["gpu.warp.dev"], each.metadata.name, old, "default")
    await bed.delete(gone)

    await bed.controller()

    await bed.until(lambda: all(bed.now(each).metadata.finalizers == ("example.com/mine",) for each in (runs, ended)))
    await bed.until(lambda: bed.now(gone).metadata.finalizers == ("example.com/mine",))
    assert bed.phase(runs) == "Running"


@pytest.mark.slow
async def test_what_ran_is_deleted_with_its_workload_and_with_its_kind(bed: Bed):
    await bed.node("n1")
    replica = await bed.controller()
    made = {name: [await bed.submit(manifest(name, 1)) for manifest in (warp, kgwe)] for name in ("one", "other")}
    for workload in (*made["one"], *made["other"]):
        await bed.until_phase(workload, "Running")
    assert replica.stop() == 0

    for workload in made["one"]:
        await bed.delete(workload)
    await bed.until(lambda: not any(map(bed.jobs_of, made["one"])), _COLLECTED_S)
    try:
        for group in KINDS:
            await bed.client.delete(resources.CRD, f"gpuworkloads.{group}")
        await bed.until(lambda: not any(map(bed.now, made["other"])))
        await bed.until(lambda: not any(map(bed.jobs_of, made["other"])) and not bed.gpus_bound(), _COLLECTED_S)
    finally:
        await definitions.install(bed.client)

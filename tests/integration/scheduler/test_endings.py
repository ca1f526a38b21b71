"""How workloads end on a real cluster: at their deadline, and deleted a while after their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.bed import condition, kgwe

from kgwe import errors

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


async def test_a_workload_that_runs_too_long_fails_and_frees_its_gpus(bed: Bed):
    await bed.node("n1", 8)
    await bed.controller()
    long = await bed.submit(kgwe("long", 8, activeDeadlineSeconds=2))
    waiting = await bed.submit(kgwe("waiting", 8))
    ended = await bed.until_phase(long, "Failed")
    assert condition(ended, "Failed").reason == "DeadlineExceeded"
    await bed.until_phase(waiting, "Running")


async def test_a_workload_is_deleted_a_while_after_its_end(bed: Bed):
    await bed.node("n1", 8)
    await bed.controller()
    short = await bed.submit(kgwe("short", 1, duration="1s", ttlSecondsAfterFinished=1))
    kept = await bed.submit(kgwe("kept", 1, duration="1s"))
    asks = {"limits": {"nvidia.com/gpu": "3"}}
    container = {"name": "main", "image": "example.com/train:1", "resources": asks}
    refused = await bed.submit(kgwe("refused", 1, pod={"containers": [container]}, ttlSecondsAfterFinished=1))
    await bed.until(lambda: bed.now(short) is None and bed.now(refused) is None)
    assert (short.metadata.uid, "Succeeded") in bed.phases
    assert (refused.metadata.uid, "Failed") in bed.phases
    await bed.until(lambda: not bed.jobs_of(short))
    assert bed.phase(await bed.until_phase(kept, "Succeeded")) == "Succeeded"
    await bed.edit(kept, {"ttlSecondsAfterFinished": 0})
    await bed.until(lambda: bed.now(kept) is None)


async def test_inference_has_no_deadline_and_no_end(bed: Bed):
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        body = kgwe("serve", 1, workloadType="Inference")
        body["spec"][name] = 60
        with pytest.raises(errors.Permanent, match="runs until it is deleted"):
            await bed.submit(body)

"""`spec.suspend` on a real control plane: pods end, GPUs are free, and the last value counts, whatever is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe, warp

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


def is_suspended(bed: Bed, workload: Any) -> bool:
    found = bed.now(workload)
    return found is not None and any(
        each.type == "Suspended" and each.status == "True" for each in found.status.conditions
    )


async def until_stopped(bed: Bed, workload: Any) -> Any:
    """The workload once it is suspended and none of its pods holds a GPU."""
    await bed.until(lambda: is_suspended(bed, workload) and not bed.jobs_of(workload) and not sum_bound(bed))
    return bed.now(workload)


def sum_bound(bed: Bed) -> int:
    return sum(bed.gpus_bound().values())


async def test_a_suspended_gang_makes_room_and_comes_back_as_it_was_edited(bed: Bed):
    await bed.node("n1", 8)
    await bed.controller()
    gang = await bed.submit(kgwe("gang", 8, gpusPerPod=4))
    await bed.until_phase(gang, "Running")

    await bed.edit(gang, {"suspend": True})
    stopped = await until_stopped(bed, gang)
    assert (stopped.status.phase, stopped.status.retryCount) == ("Pending", 0)
    assert condition(stopped, "Suspended").reason == "SuspendedByUser"
    await bed.edit(gang, {"gpusPerPod": 2, "gpuRequirements": {"count": 4}})
    other = await bed.submit(kgwe("other", 8))
    await bed.until_phase(other, "Running")

    await bed.edit(gang, {"suspend": False})
    await bed.until(lambda: condition(bed.now(gang), "Scheduled").reason == "InsufficientGPU")
    await bed.delete(other)
    running = await bed.until_phase(gang, "Running")
    assert running.status.allocatedGPUCount == 4
    assert "Suspended" not in {each.type for each in running.status.conditions}


async def test_a_suspended_deployment_and_the_small_kind_end_and_start_again(bed: Bed):
    await bed.node("n1", 8)
    await bed.controller()
    serving = await bed.submit(kgwe("serving", 4, workloadType="Inference"))
    small = await bed.submit(warp("small", 4))
    for each in (serving, small):
        await bed.until_phase(each, "Running")
        await bed.edit(each, {"suspend": True})
    await bed.until(lambda: is_suspended(bed, serving) and is_suspended(bed, small) and not sum_bound(bed))
    assert not bed.deployments.store
    for each in (serving, small):
        await bed.edit(each, {"suspend": False})
    for each in (serving, small):
        await bed.until_phase(each, "Running")


async def test_schedulers_killed_between_the_steps_change_nothing(bed: Bed):
    await bed.node("n1", 8)
    replica = await bed.controller()
    workload = await bed.submit(kgwe("w", 8))
    await bed.until_phase(workload, "Running")

    await bed.edit(workload, {"suspend": True})
    replica.kill()
    replica = await bed.controller()
    await until_stopped(bed, workload)

    await bed.edit(workload, {"suspend": False})
    replica.kill()
    await bed.edit(workload, {"suspend": True})
    replica = await bed.controller()
    await until_stopped(bed, workload)

    await bed.edit(workload, {"suspend": False})
    await bed.until_phase(workload, "Running")
    await bed.edit(workload, {"suspend": True})
    await bed.until(lambda: not bed.jobs_of(workload))
    replica.kill()
    await bed.delete(workload)
    await bed.until(lambda: not bed.pods.store and bed.now(workload) is None)


async def test_a_workload_that_has_ended_is_not_suspended(bed: Bed):
    await bed.node("n1", 8)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 8, duration="1s"))
    await bed.until_phase(workload, "Succeeded")
    await bed.edit(workload, {"suspend": True})
    await bed.until(lambda: any(each.type == "Suspended" for each in bed.now(workload).status.conditions))
    told = condition(bed.now(workload), "Suspended")
    assert (told.status, told.reason) == ("False", "AlreadyFinished")
    assert bed.phase(workload) == "Succeeded"
    made = await bed.client.list(resources.JOB, "default")
    assert len(made) == 1

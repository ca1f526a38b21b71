"""What others do to the controller's objects, and what refuses its Jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.bed import condition, kgwe

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

NAMESPACE = resources.NAMESPACE


async def test_a_forged_pod_does_not_disturb_running_work(bed: Bed):
    await bed.node("n1")
    await bed.controller(placement_timeout_seconds="1")
    workload = await bed.submit(kgwe("w", 2))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)
    labels = {metadata_keys.UID_LABEL: workload.metadata.uid}
    container = {"name": "c", "image": "x", "resources": {"limits": {amounts.GPU: "64"}}}
    forged = {"metadata": {"name": "forged", "labels": labels}, "spec": {"containers": [container]}}

    await bed.client.create(resources.POD, forged, "default")
    await bed.until(lambda: "Unschedulable" in bed.pod_says("forged"))
    other = await bed.submit(kgwe("other", 1))
    await bed.until_phase(other, "Running")

    assert [j.metadata.uid for j in bed.jobs_of(workload)] == [job.metadata.uid]
    assert bed.phase(workload) == "Running"
    await bed.client.delete(resources.POD, "forged", "default", grace_s=0)


async def test_a_job_that_may_make_no_pods_gives_its_gpus_back(bed: Bed):
    await bed.node("n1")
    await bed.client.apply(NAMESPACE, {"metadata": {"name": "poor"}})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    path = "/api/v1/namespaces/poor/resourcequotas"
    await bed.client.request("POST", path, body=quota)
    await bed.controller(unscheduled_timeout_seconds="2")
    poor = await bed.submit(kgwe("poor", 8, retryPolicy={"maxRetries": 1, "backoffSeconds": 300}), "poor")
    # The quota is on pods, so the Job is made; it just never gets any.
    held = await bed.until_phase(poor, "Pending")
    rich = await bed.submit(kgwe("rich", 8))

    await bed.until_phase(rich, "Running")

    assert condition(held, "Scheduled").reason == "PodsNotCreated"
    assert held.status.message.startswith("Job created 0 of 1 pod: exceeded quota: ")
    assert bed.now(poor).status.retryCount == 0
    await bed.client.request("DELETE", f"{path}/q")


async def test_a_job_deleted_by_somebody_is_made_again(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    workload = await bed.submit(kgwe("w", 2))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)

    await bed.client.delete(resources.JOB, job.metadata.name, "default")

    await bed.until(lambda: [j.metadata.uid for j in bed.jobs_of(workload)] not in ([], [job.metadata.uid]))
    await bed.until(lambda: bed.phase(workload) == "Running" and sum(bed.gpus_bound().values()) == 2)


async def test_a_suspended_job_gives_its_gpus_to_others_and_says_so(bed: Bed):
    await bed.node("n1", 2)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 2))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)

    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"suspend": True}}, "default")
    await bed.until(lambda: "suspended" in bed.now(workload).status.message)
    other = await bed.submit(kgwe("other", 2))

    await bed.until_phase(other, "Running")


async def test_a_suspended_gang_gives_its_seats_away_and_is_planned_anew_when_it_goes_on(bed: Bed):
    for name in ("a0", "a1"):
        await bed.node(name, 8)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 16))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)
    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"suspend": True}}, "default")
    await bed.until(lambda: "suspended" in bed.now(workload).status.message)
    other = await bed.submit(kgwe("other", 8))
    await bed.until_phase(other, "Running")

    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"suspend": False}}, "default")

    waiting = await bed.until_phase(workload, "Pending")
    assert condition(waiting, "Scheduled").reason == "InsufficientGPU"
    assert bed.jobs_of(workload) == []
    await bed.delete(other)
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: bed.gpus_bound() == {"a0": 8, "a1": 8})


async def test_a_deployment_that_is_scaled_down_gives_its_seats_to_others_and_says_so(bed: Bed):
    for name in ("a0", "a1", "a2"):
        await bed.node(name, 2)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 6, gpusPerPod=2, workloadType="Inference"))
    await bed.until(lambda: sum(bed.gpus_bound().values()) == 6)
    name = f"w-job-{workload.metadata.uid[:8]}"

    await bed.client.patch(resources.DEPLOYMENT, name, {"spec": {"replicas": 1}}, "default")
    await bed.until(lambda: "scaled to 1 of 3 pods" in bed.now(workload).status.message)
    other = await bed.submit(kgwe("other", 2))
    await bed.until_phase(other, "Running")
    await bed.until(lambda: len(bed.now(workload).status.placements) == 1)
    assert condition(bed.now(workload), "Degraded").reason == "ScaledDown"

    await bed.client.patch(resources.DEPLOYMENT, name, {"spec": {"replicas": 3}}, "default")
    await bed.until(lambda: "no room yet for 1 of 3 pods" in bed.now(workload).status.message)
    await bed.until(lambda: sum(bed.gpus_bound().values()) == 6)
    await bed.delete(other)
    await bed.until(lambda: bed.now(workload).status.message == "running on 3 nodes")
    await bed.until(lambda: bed.gpus_bound() == {"a0": 2, "a1": 2, "a2": 2})


async def test_a_job_with_less_parallelism_gives_its_seats_to_others(bed: Bed):
    for name in ("a0", "a1"):
        await bed.node(name, 8)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 16))
    await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)
    await bed.client.patch(resources.JOB, job.metadata.name, {"spec": {"parallelism": 1}}, "default")
    other = await bed.submit(kgwe("other", 8))
    await bed.until_phase(other, "Running")
    assert "scaled to 1 of 2 pods" in bed.now(workload).status.message


async def test_a_gang_of_which_one_pod_is_refused_is_taken_back_whole(bed: Bed):
    for name in ("a0", "a1", "b0"):
        await bed.node(name, 8)
    container = {"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}
    taker = {"metadata": {"name": "taker"}, "spec": {"nodeName": "a0", "containers": [container]}}
    await bed.client.create(resources.POD, taker, "default")
    await bed.until(lambda: "Running" in bed.pod_says("taker"))
    await bed.controller(placement_timeout_seconds="1")

    workload = await bed.submit(kgwe("w", 16, pod={"containers": [container]}))

    running = await bed.until_phase(workload, "Running")
    assert {each.node for each in running.status.placements} == {"a1", "b0"}
    await bed.until(lambda: bed.gpus_bound() == {"a0": 0, "a1": 8, "b0": 8})
    await bed.client.delete(resources.POD, "taker", "default", grace_s=0)


async def test_a_plan_that_somebody_points_elsewhere_is_not_followed_beyond_reason(bed: Bed):
    """All seats on one node: more than it has. The gang is planned anew before anything of it is bound."""
    for name in ("a0", "a1"):
        await bed.node(name, 8)
    await bed.controller()
    workload = await bed.submit(kgwe("w", 16, pod={"schedulerName": "nobody"}))
    await bed.until(lambda: len(bed.jobs_of(workload)) == 1)
    (job,) = bed.jobs_of(workload)
    edited = {"metadata": {"annotations": {placement_annotations.PLAN_ANNOTATION: "a0=ff;a0=ff"}}}
    await bed.client.patch(resources.JOB, job.metadata.name, edited, "default")

    await bed.until(lambda: [j.metadata.uid for j in bed.jobs_of(workload)] not in ([], [job.metadata.uid]))
    (again,) = bed.jobs_of(workload)
    assert {
        seat.node
        for seat in placement_annotations.decode(again.metadata.annotations[placement_annotations.PLAN_ANNOTATION])
    } == {"a0", "a1"}


async def test_a_level_that_does_not_exist_is_told_and_the_others_go_on(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    lost = kgwe("lost", 2, gpusPerPod=1)
    lost["spec"]["gpuRequirements"]["topology"] = {"requiredLevel": "rack"}
    workload = await bed.submit(lost)
    waiting = await bed.until_phase(workload, "Pending")
    assert condition(waiting, "Scheduled").reason == "UnknownTopologyLevel"
    assert "leaf" in waiting.status.message
    await bed.until_phase(await bed.submit(kgwe("other", 2)), "Running")


async def test_a_node_that_refused_is_tried_again_when_its_time_is_over(bed: Bed):
    await bed.node("n1")
    await bed.controller(placement_timeout_seconds="1", avoid_seconds="3")
    # A port the node's only pod-to-be cannot have: kube-scheduler refuses, the plan does not look at ports.
    container = {"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}
    taker = {"metadata": {"name": "taker"}, "spec": {"nodeName": "n1", "containers": [container]}}
    await bed.client.create(resources.POD, taker, "default")
    await bed.until(lambda: "Running" in bed.pod_says("taker"))
    pod = {"containers": [container]}
    workload = await bed.submit(kgwe("w", 1, pod=pod, retryPolicy={"maxRetries": 1, "backoffSeconds": 1}))
    waiting = await bed.until_phase(workload, "Pending")
    assert condition(waiting, "Scheduled").reason in ("NodeRefused", "NoMatchingNode")

    await bed.client.delete(resources.POD, "taker", "default", grace_s=0)

    await bed.until_phase(workload, "Running")


async def test_a_very_long_refusal_still_ends_in_failed(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    containers = [{"name": f"Not_A_Label_{i}", "image": "x"} for i in range(60)]
    workload = await bed.submit(
        kgwe("w", 1, pod={"containers": containers}, retryPolicy={"maxRetries": 1, "backoffSeconds": 1})
    )
    failed = await bed.until_phase(workload, "Failed")
    assert condition(failed, "Scheduled").reason == "MaxRetriesExceeded"


async def test_an_edit_takes_effect_without_waiting_for_the_back_off(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    pod = {"containers": [{"name": "Not_A_Label", "image": "x"}]}
    workload = await bed.submit(kgwe("w", 1, pod=pod, retryPolicy={"maxRetries": 3, "backoffSeconds": 300}))
    await bed.until_phase(workload, "Scheduling")

    await bed.edit(workload, {"podTemplate": {"spec": {"containers": [{"name": "fine", "image": "x"}]}}})

    running = await bed.until_phase(workload, "Running")
    assert running.status.retryCount == 0
    assert running.status.observedGeneration == 2


async def test_nobody_may_list_what_the_role_does_not_need(bed: Bed):
    with pytest.raises(errors.Permanent, match="forbidden"):
        await bed.as_controller("/api/v1/secrets")

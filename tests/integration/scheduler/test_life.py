"""A GPUWorkload's life on a real control plane, from either kind's manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters import clients
from tests.support.clusters.bed import ROOT, condition, kgwe, warp

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


async def test_the_small_kinds_example_runs_to_the_end(bed: Bed):
    await bed.node("n1")
    await bed.controller(status_settle_seconds="30")
    (manifest,) = manifests.load_manifests(ROOT / "examples" / "warp-inference.yaml")

    workload = await bed.submit(manifest)
    done = await bed.until_phase(workload, "Succeeded")

    seen = [phase for uid, phase in bed.phases if uid == workload.metadata.uid]
    # Pending and Scheduled are written only when the pod does not run within the time given above.
    assert seen == ["Running", "Succeeded"]
    assert done.status.assignedNode == "n1"
    assert done.status.startTime
    assert done.status.completionTime
    assert done.status.observedGeneration == 1
    (job,) = bed.jobs_of(workload)
    assert done.status.jobName == job.metadata.name == f"my-inference-workload-job-{workload.metadata.uid[:8]}"


async def test_the_job_carries_model_name_and_gpu_count_and_is_owned(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    workload = await bed.submit(warp("w", 3))
    await bed.until_phase(workload, "Running")

    (job,) = bed.jobs_of(workload)
    path = resources.JOB.path(namespace="default", name=job.metadata.name)
    body = json.loads(await bed.client.request("GET", path))

    container = body["spec"]["template"]["spec"]["containers"][0]
    assert {e["name"]: e["value"] for e in container["env"]} == {"MODEL_NAME": "llama2", "GPU_COUNT": "3"}
    assert container["resources"] == {"limits": {amounts.GPU: "3"}, "requests": {amounts.GPU: "3"}}
    assert "nodeName" not in body["spec"]["template"]["spec"]
    owner = body["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GPUWorkload", workload.metadata.uid, True)
    assert body["metadata"]["annotations"]["gpu.warp.dev/created-by"]


async def test_work_that_finds_no_room_waits_with_the_reason_and_starts_when_there_is_room(bed: Bed):
    await bed.node("n1", 4)
    await bed.controller()
    first = await bed.submit(kgwe("first", 4, duration="5s"))
    await bed.until_phase(first, "Running")

    second = await bed.submit(kgwe("second", 2))
    waiting = await bed.until_phase(second, "Pending")

    assert condition(waiting, "Scheduled").reason == "InsufficientGPU"
    assert waiting.status.message.startswith("0/1 nodes available for 2 GPUs: 1 insufficient GPUs. Best: ")
    assert waiting.status.retryCount == 0, "waiting for room is not an error"
    running = await bed.until_phase(second, "Running")
    assert condition(running, "Scheduled").status == "True"


async def test_work_larger_than_any_node_waits_until_a_larger_node_comes(bed: Bed):
    await bed.node("n1", 4)
    replica = await bed.controller()
    workload = await bed.submit(kgwe("large", 8))
    waiting = await bed.until_phase(workload, "Pending")
    assert condition(waiting, "Scheduled").reason == "TooLarge"
    assert await replica.metric('warp_gpuworkload_failed_total{reason="no_suitable_node"}') == 1

    await bed.node("n2", 8)

    assert (await bed.until_phase(workload, "Running")).status.scheduledNode == "n2"
    assert await replica.metric('warp_gpuworkload_scheduled_total{strategy="score"}') == 1


async def test_many_at_once_are_never_given_the_same_gpu(bed: Bed):
    for number in range(3):
        await bed.node(f"n{number}", 8)
    await bed.controller()
    sizes = [1, 2, 3, 4, 5, 6, 7, 8] * 3
    made = [await bed.submit(kgwe(f"w{i}", gpus, schedulingStrategy="random")) for i, gpus in enumerate(sizes)]

    def settled():
        return all(bed.phase(w) in ("Running", "Pending") for w in made)

    await bed.until(settled)
    running = sum(w.spec.gpuRequirements.count for w in made if bed.phase(w) == "Running")
    await bed.until(lambda: sum(bed.gpus_bound().values()) == running)
    assert all(gpus <= 8 for gpus in bed.gpus_bound().values())
    largest_hole = 8 - min(bed.gpus_bound().values())
    waiting = [w.spec.gpuRequirements.count for w in made if bed.phase(w) == "Pending"]
    assert all(gpus > largest_hole for gpus in waiting), "nothing waits that would fit"


async def test_pods_of_others_are_counted(bed: Bed):
    await bed.node("n1", 8)
    await bed.node("n2", 8)
    gpus = {"limits": {amounts.GPU: "6"}}
    container = {"name": "c", "image": "x", "resources": gpus}
    pod = {"metadata": {"name": "other"}, "spec": {"nodeName": "n1", "containers": [container]}}
    await bed.client.create(resources.POD, pod, "default")
    await bed.until(lambda: bed.gpus_bound().get("n1") == 6)
    await bed.controller()

    workload = await bed.submit(kgwe("w", 4))

    assert (await bed.until_phase(workload, "Running")).status.scheduledNode == "n2"
    await bed.client.delete(resources.POD, "other", "default", grace_s=0)


async def test_cost_optimized_uses_the_cheap_node_then_falls_back(bed: Bed):
    await bed.node("dear", 8)
    await bed.node("cheap", 2, labels={"gpu-orchestrator/cheap-node": "true"})
    await bed.controller()
    first = await bed.submit(warp("first", 2, schedulingStrategy="costOptimized"))
    assert (await bed.until_phase(first, "Running")).status.assignedNode == "cheap"
    second = await bed.submit(warp("second", 2, schedulingStrategy="costOptimized"))
    assert (await bed.until_phase(second, "Running")).status.assignedNode == "dear"


async def test_higher_priority_starts_first_when_room_comes_free(bed: Bed):
    await bed.node("n1", 2)
    await bed.controller()
    blocker = await bed.submit(warp("blocker", 2))
    await bed.until_phase(blocker, "Running")
    low = await bed.submit(warp("low", 2, priority="low"))
    await bed.until_phase(low, "Pending")
    high = await bed.submit(warp("high", 2, priority="high"))
    await bed.until_phase(high, "Pending")

    await bed.delete(blocker)

    await bed.until_phase(high, "Running", "Succeeded")
    assert bed.phase(low) == "Pending"


async def test_a_failing_job_fails_the_workload_with_its_reason(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    body = kgwe("w", 1, duration="1s")
    body["spec"]["podTemplate"]["metadata"]["annotations"]["kgwe.nvidia.io/simulated-outcome"] = "Failed"
    workload = await bed.submit(body)

    failed = await bed.until_phase(workload, "Failed")

    assert condition(failed, "Succeeded").status == "False"
    assert failed.status.message
    await bed.until(lambda: not bed.gpus_bound())


async def test_failed_work_runs_again_after_its_spec_was_edited(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    body = kgwe("w", 1, duration="1s")
    annotations = body["spec"]["podTemplate"]["metadata"]["annotations"]
    annotations["kgwe.nvidia.io/simulated-outcome"] = "Failed"
    workload = await bed.submit(body)
    await bed.until_phase(workload, "Failed")

    del annotations["kgwe.nvidia.io/simulated-outcome"]
    cleared = {"podTemplate": {"metadata": {"annotations": {"kgwe.nvidia.io/simulated-outcome": None}}}}
    await bed.edit(workload, cleared)

    done = await bed.until_phase(workload, "Succeeded")
    assert done.status.observedGeneration == 2


async def test_an_edit_while_running_leaves_the_work_alone(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    workload = await bed.submit(kgwe("w", 1))
    running = await bed.until_phase(workload, "Running")
    (job,) = bed.jobs_of(workload)

    await bed.edit(workload, {"gpuRequirements": {"count": 2}})
    await bed.until(lambda: bed.now(workload).metadata.generation == 2)
    other = await bed.submit(kgwe("other", 1))
    await bed.until_phase(other, "Running")

    assert bed.phase(workload) == "Running"
    assert bed.now(workload).status.observedGeneration == 1
    assert [j.metadata.uid for j in bed.jobs_of(workload)] == [job.metadata.uid]
    assert running.status.jobName == job.metadata.name


@pytest.mark.parametrize("phase", ["Pending", "Scheduled", "Running", "Succeeded", "Failed"])
async def test_delete_works_in_every_phase(bed: Bed, phase: str):
    await bed.node("n1", 8)
    await bed.controller()
    body = kgwe("w", 16 if phase == "Pending" else 1, duration="1s" if phase in ("Succeeded", "Failed") else "1h")
    if phase == "Failed":
        body["spec"]["podTemplate"]["metadata"]["annotations"]["kgwe.nvidia.io/simulated-outcome"] = "Failed"
    if phase == "Scheduled":
        # No scheduler of that name: the pod is never bound.
        body["spec"]["podTemplate"]["spec"]["schedulerName"] = "nobody"
    workload = await bed.submit(body)
    await bed.until_phase(workload, phase)

    await bed.delete(workload)

    await bed.until(lambda: bed.now(workload) is None)
    await bed.until(lambda: not bed.jobs_of(workload) and not bed.gpus_bound())


async def test_a_job_the_api_server_refuses_is_retried_then_failed(bed: Bed):
    await bed.node("n1")
    replica = await bed.controller()
    # A container name that the CRD's schema allows and the Job's validation does not.
    workload = await bed.submit(
        kgwe(
            "w",
            1,
            pod={"containers": [{"name": "Not_A_Label", "image": "x"}]},
            retryPolicy={"maxRetries": 2, "backoffSeconds": 1},
        )
    )

    retried = await bed.until_phase(workload, "Scheduling")
    assert "retry 1 of 2" in retried.status.message
    assert "containers[0].name" in retried.status.message
    failed = await bed.until_phase(workload, "Failed")

    assert condition(failed, "Scheduled").reason == "MaxRetriesExceeded"
    assert failed.status.retryCount == 2
    assert await replica.metric("warp_gpuworkload_retries_total") == 2
    assert await replica.metric('warp_gpuworkload_failed_total{reason="job_creation_failed"}') == 3
    assert await replica.metric('warp_gpuworkload_failed_total{reason="no_suitable_node"}') == 0


async def test_required_node_affinity_is_part_of_the_plan(bed: Bed):
    await bed.node("a-wrong", 8, labels={"zone": "wrong"})
    await bed.node("b-right", 4, labels={"zone": "right"})
    await bed.controller()
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["right"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    workload = await bed.submit(kgwe("w", 2, pod={"affinity": {"nodeAffinity": required}}))
    assert (await bed.until_phase(workload, "Running")).status.scheduledNode == "b-right"


async def test_a_node_that_kube_scheduler_refuses_is_left_for_another(bed: Bed):
    await bed.node("a-taken", 8)
    await bed.node("b-free", 4)
    container = {"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}
    taker = {"metadata": {"name": "taker"}, "spec": {"nodeName": "a-taken", "containers": [container]}}
    await bed.client.create(resources.POD, taker, "default")
    await bed.until(lambda: "Running" in bed.pod_says("taker"))
    await bed.controller(placement_timeout_seconds="1")

    # leastLoaded picks a-taken: it has more free GPUs, and the plan does not look at ports.
    workload = await bed.submit(kgwe("w", 2, pod={"containers": [container]}, schedulingStrategy="leastLoaded"))

    assert (await bed.until_phase(workload, "Running")).status.scheduledNode == "b-free"
    await bed.client.delete(resources.POD, "taker", "default", grace_s=0)


async def test_an_unreadable_template_fails_at_once_and_says_why(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    pod = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "lots"}}}]}
    workload = await bed.submit(kgwe("w", 1, pod=pod))
    failed = await bed.until_phase(workload, "Failed")
    assert condition(failed, "Scheduled").reason == "InvalidPodTemplate"
    assert "lots" in failed.status.message


async def test_unquoted_gpu_counts_in_a_template_are_understood(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    pod = {"containers": [{"name": "c", "image": "x", "resources": {"limits": {amounts.GPU: 2}}}]}
    workload = await bed.submit(kgwe("w", 2, pod=pod))
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: bed.gpus_bound() == {"n1": 2})


async def test_mig_slices_are_placed_by_their_own_resource(bed: Bed):
    await bed.node("whole", 8)
    await bed.node("cut", 0, more={"nvidia.com/mig-1g.10gb": "7"})
    await bed.controller()
    body = kgwe("w")
    body["spec"]["gpuRequirements"] = {"mig": {"profile": "1g.10gb", "count": 2}}
    workload = await bed.submit(body)
    assert (await bed.until_phase(workload, "Running")).status.scheduledNode == "cut"


async def test_a_foreign_job_of_the_same_name_is_not_taken_over(bed: Bed):
    await bed.node("n1")
    workload = await bed.submit(kgwe("w", 1, retryPolicy={"maxRetries": 1, "backoffSeconds": 1}))
    name = f"w-job-{workload.metadata.uid[:8]}"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    await bed.client.create(resources.JOB, {"metadata": {"name": name}, "spec": {"template": template}}, "default")
    await bed.controller()

    failed = await bed.until_phase(workload, "Failed")

    assert "belongs to something else" in failed.status.message
    assert (await bed.client.get(resources.JOB, name, "default")).metadata.ownerReferences == ()
    await bed.client.delete(resources.JOB, name, "default")


async def test_the_controller_has_no_rights_beyond_its_role(bed: Bed):
    async with clients.connect(bed._kubeconfig) as limited:
        with pytest.raises(errors.Permanent, match="cannot"):
            await limited.list(resources.SECRET)
        with pytest.raises(errors.Permanent, match="cannot"):
            await limited.create(resources.POD, {"metadata": {"name": "any"}, "spec": {}}, "default")

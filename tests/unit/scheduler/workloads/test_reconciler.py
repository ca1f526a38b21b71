"""A workload from its first request to its run: the plan is delivered, and is void once it no longer applies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.builders.objects import free
from tests.support.fakes.leader_bed import NAMESPACE
from tests.support.fakes.reconciler_bed import ReconcilerBed as Bed

from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    await made.prepare()
    yield made
    await made.close()


async def test_a_workload_is_started_at_the_place_it_was_given(bed: Bed) -> None:
    await bed.place()
    assert bed.planner.has_plan(bed.uid)
    assert free(bed.state) == {"n1": 4}
    assert await bed.reconcile() == "done"
    (job,) = bed.objects(resources.JOB)
    assert job["metadata"]["ownerReferences"][0]["uid"] == bed.uid
    assert bed.state.runs[bed.uid].is_signed
    assert bed.metrics.registry.get_sample_value("warp_gpuworkload_scheduled_total", {"strategy": "score"}) == 1


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "of another object"])
async def test_deleting_a_workload_deletes_an_unseen_run_of_its_own_only(bed: Bed, *, is_own: bool) -> None:
    """The watch lags: it shows neither the Job that was just created nor one that a user created in its place."""
    await bed.place()
    bed.pause_watch()
    await bed.reconcile()
    (job,) = bed.objects(resources.JOB)
    if not is_own:
        owner = job["metadata"]["ownerReferences"][0] | {"uid": "another"}
        patch = {"metadata": {"ownerReferences": [owner]}}
        await bed.client.patch(resources.JOB, job["metadata"]["name"], patch, NAMESPACE)
    known = bed.state.workloads[bed.state.keys[bed.uid]]
    meta = msgspec.structs.replace(known.meta, deletionTimestamp="2026-11-18T00:00:00Z")
    bed.state.workloads[bed.state.keys[bed.uid]] = replace(known, meta=meta)

    assert await bed.reconcile() == "done"
    assert len(bed.objects(resources.JOB)) == (0 if is_own else 1)


async def test_a_run_that_the_watch_has_not_shown_is_not_created_again(bed: Bed) -> None:
    await bed.place()
    bed.pause_watch()
    for _ in range(2):
        await bed.reconcile()
    assert bed.api.requests.count(("POST", resources.JOB.path(namespace=NAMESPACE))) == 1
    assert bed.planner.has_plan(bed.uid)
    bed.resume_watch()
    await bed.reconcile()
    assert not bed.planner.has_plan(bed.uid), "the run shows the plan"
    assert free(bed.state) == {"n1": 4}


async def test_a_plan_for_a_spec_that_was_edited_is_discarded(bed: Bed) -> None:
    await bed.place()
    await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"gpuRequirements": {"count": 8}}}, NAMESPACE)
    await bed.place()
    assert bed.objects(resources.JOB) == []
    assert free(bed.state) == {"n1": 0}, "eight GPUs are reserved, and not twelve"
    await bed.reconcile()
    (job,) = bed.objects(resources.JOB)
    wanted = job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert wanted == {"nvidia.com/gpu": "8"}


async def test_a_plan_of_a_workload_that_is_gone_frees_its_place(bed: Bed) -> None:
    await bed.place()
    await bed.client.delete(resources.GPU_WORKLOAD, "w", NAMESPACE)
    bed.reconciler.forget(bed.uid)
    assert free(bed.state) == {"n1": 8}


async def test_a_plan_that_comes_late_is_discarded(bed: Bed) -> None:
    """The planner decides about a workload that the reconciler has forgotten."""
    await bed.place()
    bed.reconciler.forget(bed.uid)
    assert not bed.planner.has_plan(bed.uid)
    bed.reconciler.deliver_plan(bed.uid, bed.plans[0])
    assert free(bed.state) == {"n1": 8}


async def test_a_quota_gives_the_place_back_and_says_so(bed: Bed) -> None:
    await bed.place()
    bed.api.refuse_next("POST", resources.JOB, 403, "forbidden: exceeded quota: q", "Forbidden")
    assert await bed.reconcile() == "retry"
    assert free(bed.state) == {"n1": 8}
    assert bed.status["conditions"][0]["reason"] == "QuotaExceeded"
    assert [reason for reason, _ in await bed.events()] == ["QuotaExceeded"]


async def test_a_message_about_pods_that_is_written_late_is_read_again(bed: Bed) -> None:
    job = await bed.start()
    for _ in range(3):
        bed.now += 20.0
        bed.requeued.clear()
        await bed.reconcile()
    assert min(bed.requeued) < 120.0, "not only when the place is given back, minutes later"
    note = 'Error creating: pods "w-0" is forbidden: exceeded quota: gpus'
    regarding = {"uid": job["metadata"]["uid"]}
    event = {"metadata": {"name": "e"}, "reason": "FailedCreate", "note": note, "regarding": regarding}
    await bed.client.request("POST", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events", body=event)
    bed.now += min(bed.requeued)
    await bed.reconcile()
    assert "exceeded quota: gpus" in bed.status["message"]


async def test_an_error_of_the_api_server_is_retried_and_counted(bed: Bed) -> None:
    await bed.place()
    bed.api.refuse_next("POST", resources.JOB, 422, "no such field", "Invalid")
    assert await bed.reconcile() == "retry"
    assert free(bed.state) == {"n1": 8}
    assert bed.status["retryCount"] == 1
    assert "no such field" in bed.status["message"]


async def test_retries_that_are_used_up_end_the_workload(bed: Bed) -> None:
    while bed.phase != "Failed":
        bed.now += 3600.0
        await bed.place()
        bed.api.refuse_next("POST", resources.JOB, 422, "no such field", "Invalid")
        await bed.reconcile()
    assert bed.status["conditions"][0]["reason"] == "MaxRetriesExceeded"
    assert bed.status["retryCount"] == 3
    assert free(bed.state) == {"n1": 8}
    assert await bed.reconcile() == "done"


async def test_a_run_with_the_name_of_another_object_is_an_error(bed: Bed) -> None:
    await bed.place()
    bed.pause_watch()
    name = f"w-job-{bed.uid[:8]}"
    await bed.client.create(resources.JOB, {"metadata": {"name": name}, "spec": {"template": {}}}, NAMESPACE)
    bed.resume_watch()
    assert await bed.reconcile() == "retry"
    assert bed.status["message"].startswith("creating the Job failed; retry 1 of 3 in ")
    assert "belongs to something else" in bed.status["message"]


async def test_an_error_names_the_kind_that_was_being_created(bed: Bed) -> None:
    bed.uid = (await bed.workload("serving", count=1, workloadType="Inference")).metadata.uid
    await bed.place()
    bed.api.refuse_next("POST", resources.DEPLOYMENT, 422, "no such field", "Invalid")
    assert await bed.reconcile() == "retry"
    message = bed.stored(resources.GPU_WORKLOAD, "serving")["status"]["message"]
    assert message.startswith("creating the Deployment failed; retry 1 of 3 in ")


async def test_a_workload_that_is_deleted_takes_its_run_with_it(bed: Bed) -> None:
    job = await bed.start()
    await bed.client.delete(resources.GPU_WORKLOAD, "w", NAMESPACE)
    assert bed.objects(resources.JOB) == [], job["metadata"]["name"]
    assert free(bed.state) == {"n1": 8}


async def test_an_edit_before_its_pods_run_replaces_the_run(bed: Bed) -> None:
    await bed.start()
    await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"gpuRequirements": {"count": 2}}}, NAMESPACE)
    assert await bed.reconcile() == "done"
    assert bed.objects(resources.JOB) == []
    await bed.start()
    assert free(bed.state) == {"n1": 6}


async def test_a_run_whose_node_is_gone_is_replaced_elsewhere(bed: Bed) -> None:
    first = await bed.start()
    await bed.node("n2")
    await bed.client.delete(resources.NODE, "n1")
    assert await bed.reconcile() == "retry"
    assert bed.objects(resources.JOB) == []
    assert [reason for reason, _ in await bed.events()] == ["PlaceLost"]
    second = await bed.start()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert bed.state.runs[bed.uid].node == "n2"


async def test_the_end_of_a_run_is_reported(bed: Bed) -> None:
    job = await bed.start()
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}]}
    bed.set_status(resources.JOB, job["metadata"]["name"], ended)
    assert await bed.reconcile() == "done"
    assert (bed.status["phase"], bed.status["completionTime"]) == ("Succeeded", "2026-01-01T00:10:00Z")
    assert free(bed.state) == {"n1": 8}


async def test_a_failed_run_on_a_lost_node_is_deleted_once_and_asked_about_without_effect(bed: Bed) -> None:
    job = await bed.start()
    name = job["metadata"]["name"]
    bed.set_status(resources.JOB, name, {"conditions": [{"type": "Failed", "status": "True"}]})
    found, run = bed.state.workloads[bed.state.keys[bed.uid]], bed.state.runs[bed.uid]
    assert not bed.recovery.failed_on_lost_hardware(found, run)

    bed.set_ready("n1", "Unknown")
    assert bed.recovery.failed_on_lost_hardware(found, run)
    assert bed.recovery.trouble_of(bed.uid) is None, "asking changes nothing"
    assert await bed.reconcile() == "retry"
    assert bed.recovery.trouble_of(bed.uid) is not None
    assert await bed.reconcile() == "retry"
    path = resources.JOB.path(namespace=NAMESPACE, name=name)
    await bed.until(lambda: not bed.objects(resources.JOB))
    assert bed.api.requests.count(("DELETE", path)) == 1


# --- suspended ------------------------------------------------------------------------------------------


async def test_a_workload_suspended_before_the_watch_shows_its_job_keeps_its_place_until_then(bed: Bed) -> None:
    await bed.place()
    bed.pause_watch()
    assert await bed.reconcile() == "done"
    bed.resume_only(resources.GPU_WORKLOAD)
    await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"suspend": True}}, NAMESPACE)
    bed.resume_only(resources.GPU_WORKLOAD)
    assert await bed.reconcile() == "waiting"
    assert free(bed.state) == {"n1": 4}, "the Job exists: its place is not given to others"
    bed.resume_watch()
    assert await bed.reconcile() == "done"
    assert not bed.objects(resources.JOB)
    assert await bed.reconcile() == "waiting"
    assert free(bed.state) == {"n1": 8}
    assert {each["type"]: each["status"] for each in bed.status["conditions"]}["Suspended"] == "True"


async def test_a_job_that_failed_stays_and_only_an_edit_starts_the_workload_again(bed: Bed) -> None:
    job = await bed.start()
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}
    bed.set_status(resources.JOB, job["metadata"]["name"], failed)
    for suspend in (True, False):
        await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"suspend": suspend}}, NAMESPACE)
        await bed.reconcile()
        await bed.reconcile()
        assert bed.phase == "Failed"
        told = {each["type"]: each["status"] for each in bed.status["conditions"]}
        assert told.get("Suspended") == ("False" if suspend else None)
        assert len(bed.objects(resources.JOB)) == 1
    await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"priority": 5}}, NAMESPACE)
    await bed.reconcile()
    assert not bed.objects(resources.JOB)


async def test_a_run_that_is_suspended_and_resumed_at_once_goes_on_without_a_warning(bed: Bed) -> None:
    await bed.start()
    for suspend in (True, False):
        await bed.client.patch(resources.GPU_WORKLOAD, "w", {"spec": {"suspend": suspend}}, NAMESPACE)
    await bed.reconcile()
    assert len(bed.objects(resources.JOB)) == 1
    assert "SpecChangedWhileScheduled" not in {reason for reason, _ in await bed.events()}


# --- what its pods lack ---------------------------------------------------------------------------------

CLAIM: Resource[Any] = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True, type=object
)


async def refuse_pod(bed: Bed, job: dict[str, Any], message: str) -> None:
    """The Job controller creates the pod, and kube-scheduler refuses it."""
    template = job["spec"]["template"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    meta = {"name": "p0", "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    body = {"metadata": meta, "spec": template["spec"], "status": {"phase": "Pending", "conditions": [refused]}}
    await bed.client.create(resources.POD, body, NAMESPACE)


async def test_a_missing_volume_that_is_created_begins_the_next_attempt_at_once(bed: Bed) -> None:
    job = await bed.start()
    await refuse_pod(bed, job, 'persistentvolumeclaim "dataset" not found. not found')
    await bed.reconcile()
    bed.now += 100.0
    assert await bed.reconcile() == "retry"
    assert "PersistentVolumeClaim dataset does not exist" in bed.status["message"]
    assert "Next attempt at " in bed.status["message"]
    assert await bed.reconcile() == "waiting"
    assert bed.objects(resources.JOB) == []

    await bed.client.create(CLAIM, {"metadata": {"name": "dataset"}}, NAMESPACE)
    await bed.start()
    assert bed.api.requests.count(("GET", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/dataset")) == 2

"""Statuses: one patch per change, nothing when nothing changed."""

from dataclasses import replace

from kgwe.apps.controller.workload import Status, from_warp, status_patch
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.warp import WarpGPUWorkload, WarpGPUWorkloadSpec


def workload(**status):
    meta = ObjectMeta(name="w", namespace="ns", uid="u", generation=2)
    made = from_warp(WarpGPUWorkload(metadata=meta, spec=WarpGPUWorkloadSpec(modelName="m", gpuCount=1)))
    return replace(made, status=Status(**status))


def test_an_equal_status_is_not_written():
    made = workload(phase="Running", node="n1")
    assert status_patch(made, made.status) is None


def test_only_what_changed_is_written_and_under_the_kinds_own_name():
    made = workload(phase="Pending", message="waits", observed_generation=1)
    patch = status_patch(made, replace(made.status, phase="Scheduled", node="n1", message=""))
    assert patch == {"status": {"phase": "Scheduled", "assignedNode": "n1", "message": None}}


def test_a_counter_that_falls_to_zero_is_taken_away():
    made = workload(retry_count=2)
    assert status_patch(made, replace(made.status, retry_count=0)) == {"status": {"retryCount": None}}


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = Status().with_condition("Scheduled", status=False, reason="A", message="", now="t1")
    second = first.with_condition("Scheduled", status=False, reason="B", message="", now="t2")
    third = second.with_condition("Scheduled", status=True, reason="C", message="", now="t3")
    assert [s.conditions[0].lastTransitionTime for s in (first, second, third)] == ["t1", "t1", "t3"]
    assert len(third.conditions) == 1


def test_failed_work_counts_as_finished_until_its_spec_is_edited():
    assert workload(phase="Failed", observed_generation=2).finished
    assert not workload(phase="Failed", observed_generation=1).finished
    assert workload(phase="Succeeded", observed_generation=1).finished
    assert not workload(phase="Running", observed_generation=2).finished

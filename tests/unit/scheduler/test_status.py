"""Statuses: one patch per change, nothing when nothing changed."""

from dataclasses import replace

import pytest

from kgwe.apps.scheduler import phases
from kgwe.apps.scheduler.workload import Status, from_warp, status_patch
from kgwe.kube.api.core import Job
from kgwe.kube.api.meta import Condition, ObjectMeta
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


def conditions(status):
    return {c.type: (c.status, c.reason, c.lastTransitionTime) for c in status.conditions}


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = phases.pending(workload(), "A", "", "t1")
    second = phases.pending(replace(workload(), status=first), "B", "", "t2")
    third = phases.scheduled(replace(workload(), status=second), PLACED, "t3")
    assert conditions(first) == {"Scheduled": ("False", "A", "t1")}
    assert conditions(second) == {"Scheduled": ("False", "B", "t1")}
    assert conditions(third) == {"Scheduled": ("True", "Placed", "t3")}


PLACED = phases.Placement("n1", "w-job-1", 2, "leastLoaded")
COMPLETE = Condition("Complete", "True", "CompletionsReached", "", "t9")
FAILED = Condition("Failed", "True", "BackoffLimitExceeded", "pod failed", "t9")
JOB = Job(metadata=ObjectMeta(name="w-job-1"))
BUILDERS = {
    "pending": lambda w: phases.pending(w, "TooLarge", "needs more", "t1"),
    "retrying": lambda w: phases.retrying(w, 1, "refused", "t1"),
    "gave_up": lambda w: phases.gave_up(w, "MaxRetriesExceeded", "refused", "t1"),
    "scheduled": lambda w: phases.scheduled(w, PLACED, "t1"),
    "running": lambda w: phases.running(w, PLACED, "t1"),
    "succeeded": lambda w: phases.finished(w, PLACED, JOB, COMPLETE, "t1"),
    "failed": lambda w: phases.finished(w, PLACED, JOB, FAILED, "t1"),
}


@pytest.mark.parametrize("before", BUILDERS)
@pytest.mark.parametrize("after", BUILDERS)
def test_every_phase_states_all_its_conditions_whatever_was_there_before(before, after):
    fresh = BUILDERS[after](workload())
    later = BUILDERS[after](replace(workload(), status=BUILDERS[before](workload())))

    assert {t: v[:2] for t, v in conditions(later).items()} == {t: v[:2] for t, v in conditions(fresh).items()}
    assert (later.phase, later.message, later.node) == (fresh.phase, fresh.message, fresh.node)
    assert bool(later.completion_time) == (after in ("gave_up", "succeeded", "failed"))


def test_an_edit_starts_the_count_of_errors_afresh():
    made = workload(retry_count=2, observed_generation=1)
    assert phases.pending(made, "TooLarge", "", "t1").retry_count == 0
    assert phases.pending(workload(retry_count=2, observed_generation=2), "TooLarge", "", "t1").retry_count == 2


def test_messages_are_cut_to_what_the_api_server_takes():
    status = phases.pending(workload(), "TooLarge", "x" * 100_000, "t1")
    assert len(status.message) == len(status.conditions[0].message) == 1024


def test_failed_work_counts_as_finished_until_its_spec_is_edited():
    assert workload(phase="Failed", observed_generation=2).finished
    assert not workload(phase="Failed", observed_generation=1).finished
    assert workload(phase="Succeeded", observed_generation=1).finished
    assert not workload(phase="Running", observed_generation=2).finished

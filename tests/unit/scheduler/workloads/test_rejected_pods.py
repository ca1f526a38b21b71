"""Which failed pods have never started."""

from __future__ import annotations

import msgspec
import pytest

from kgwe.apps.scheduler.workloads.rejected_pods import never_started, rejection_message
from kgwe.kube.api import core


def ended(reason="", *states, phase="Failed", init=()):
    body = {
        "metadata": {"name": "p"},
        "status": {
            "phase": phase,
            "reason": reason,
            "containerStatuses": [{"state": state} for state in states],
            "initContainerStatuses": [{"state": state} for state in init],
        },
    }
    return msgspec.convert(body, core.EndedPod)


RAN = {"terminated": {"exitCode": 1, "reason": "Error"}}
WAITS = {"waiting": {"reason": "ContainerCreating"}}
UNKNOWN = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@pytest.mark.parametrize(
    "reason", ["UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity", "Terminated", ""]
)
@pytest.mark.parametrize("states", [(), (WAITS,), (UNKNOWN,)])
def test_a_pod_without_a_container_that_ran_has_never_started(reason, states):
    assert never_started(ended(reason, *states))


@pytest.mark.parametrize(
    "pod",
    [
        ended("Error", RAN),
        ended("Evicted", WAITS, RAN),
        ended("", WAITS, init=(RAN,)),
        ended("", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
        ended("", {"terminated": {"exitCode": 128, "reason": "StartError"}}),
        ended("DeadlineExceeded", WAITS),
        ended("", phase="Succeeded"),
        ended("", phase="Pending"),
    ],
)
def test_a_pod_that_ran_failed_by_itself_or_has_not_failed_is_no_rejection(pod):
    assert not never_started(pod)


def test_a_container_that_ran_before_its_last_start_has_run():
    body = {"metadata": {}, "status": {"phase": "Failed", "containerStatuses": [{"state": WAITS, "lastState": RAN}]}}
    assert not never_started(msgspec.convert(body, core.EndedPod))


def test_a_rejection_without_a_reason_says_so():
    assert rejection_message(ended()) == "no reason given"
    assert rejection_message(ended("OutOfcpu")) == "OutOfcpu"

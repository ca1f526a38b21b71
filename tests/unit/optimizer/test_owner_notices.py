"""Owners are told when their workloads start, end or lose their GPUs."""

from typing import TYPE_CHECKING

import pytest
from tests.support.builders.objects import make

from kgwe.apps.optimizer.owner_notices import OwnerNotices
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Change

if TYPE_CHECKING:
    from kgwe.notify.notification import Notification


def _workload(phase, *, notify="slack:#ml", suspend=False, reason="", name="train"):
    meta = {
        "name": name,
        "namespace": "ml",
        "uid": name,
        "annotations": {"kgwe.nvidia.io/notify": notify} if notify else {},
    }
    conditions = [{"type": "Placed", "status": "False", "reason": reason}] if reason else []
    spec = {"gpuRequirements": {"count": 1}, "suspend": suspend}
    status = {"phase": phase, "message": "a message", "conditions": conditions}
    return make(resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": spec, "status": status})


class Bed:
    def __init__(self):
        self.state = ClusterState()
        self.told: list[Notification] = []
        self.notices = OwnerNotices(self.state, self.told.append, lambda: 1000.0)

    def show(self, *workloads):
        old = None
        for each in workloads:
            self.state.on_kgwe(Change(each.metadata.key, old, each))
            old = each

    @property
    def kinds(self):
        return [each.kind for each in self.told]


@pytest.fixture
def bed():
    made = Bed()
    made.notices.start()
    return made


def test_start_and_end_are_told_to_the_owner_only(bed):
    bed.show(*(_workload(phase) for phase in ("Pending", "Scheduled", "Running", "Running", "Succeeded")))
    assert bed.kinds == ["Started", "Succeeded"]
    assert all(each.is_for_owner and each.owner == "slack:#ml" for each in bed.told)


def test_a_failure_and_a_preemption_are_warnings(bed):
    bed.show(_workload("Running"), _workload("Pending", reason="Preempted"), _workload("Running"), _workload("Failed"))
    assert bed.kinds == ["Started", "Preempted", "Started", "Failed"]
    assert [str(each.severity) for each in bed.told] == ["info", "warning", "info", "warning"]


def test_a_suspension_by_the_owner_is_no_interruption(bed):
    bed.show(_workload("Running"), _workload("Pending", suspend=True))
    assert bed.kinds == ["Started"]


def test_workloads_without_the_annotation_are_not_told_of(bed):
    bed.show(_workload("Pending", notify=""), _workload("Running", notify=""))
    assert bed.told == []


def test_what_happened_before_the_term_is_not_told():
    bed = Bed()
    bed.show(_workload("Running"))
    bed.notices.start()
    bed.show(_workload("Running"))
    bed.notices.stop()
    bed.show(_workload("Succeeded"))
    assert bed.told == []

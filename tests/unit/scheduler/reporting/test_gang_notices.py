"""Gangs that stay incomplete are told so: late, seldom, and on few objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.builders.gang_listener import Listener, member
from tests.support.builders.objects import added, make, owned_by, pod_spec, removed

from kgwe.apps.scheduler.reporting.gang_notices import INCOMPLETE, GangNotices
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.kube.client.events import Event


class Bed(Listener):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.told: list[Event] = []
        self.notices = GangNotices(self.gangs, self.told.append, after_s=10.0, clock=lambda: self.now)

    def at(self, now):
        """What is told at that time."""
        self.catch_up()
        self.now = now
        self.told.clear()
        self.notices.report_due()
        return [(event.resource.kind, event.about.name, event.note) for event in self.told]

    def come(self, count, size=8, **more):
        for number in range(count):
            self.state.on_pod(added(member(f"p{number}", size, **more)))


def test_pods_of_an_incomplete_gang_and_their_owner_hear_how_many_exist():
    bed = Bed()
    owner = owned_by("j1", "Job", "trainer")
    owner[0]["apiVersion"] = "batch/v1"
    bed.come(2, ownerReferences=owner)
    note = (
        "Gang team/g is incomplete: 2 of 8 pods exist (kgwe.nvidia.io/gang-size: 8). Create the 6 missing pods, or"
        " lower kgwe.nvidia.io/gang-size. It holds no GPUs until all exist."
    )
    assert bed.at(0.0) == bed.at(9.0) == [], "most gangs are complete within seconds"
    assert bed.at(11.0) == [("Job", "trainer", note), ("Pod", "p0", note), ("Pod", "p1", note)]
    job = bed.told[0]
    assert (job.resource.api_version, job.about.uid, job.about.namespace) == ("batch/v1", "j1", "team")
    assert {event.reason for event in bed.told} == {INCOMPLETE}
    assert {event.type for event in bed.told} == {"Warning"}


def test_notices_grow_rarer():
    bed = Bed()
    bed.come(1)
    told = [now for now in range(0, 400, 2) if bed.at(float(now))]
    assert told == [10, 30, 70, 150, 310]


def test_a_gang_that_is_complete_or_gone_is_told_nothing():
    bed = Bed()
    bed.come(3, size=3)
    assert bed.at(0.0) == bed.at(100.0) == []
    gone = Bed()
    gone.come(1)
    gone.at(0.0)
    gone.state.on_pod(removed(member("p0", 8)))
    assert gone.at(100.0) == []


def test_of_a_large_gang_few_pods_are_told():
    bed = Bed()
    bed.come(500, size=501)
    bed.at(0.0)
    told = bed.at(10.0)
    assert len(told) == 16
    assert "500 of 501 pods exist" in told[0][2]


def test_a_gang_that_cannot_be_read_is_told_why():
    bed = Bed()
    notes = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "many"}
    meta = {"name": "p", "namespace": "team", "uid": "u", "annotations": notes}
    body = {"metadata": meta, "spec": pod_spec(1), "status": {"phase": "Pending"}}
    bed.state.on_pod(added(make(resources.POD.type, body)))
    bed.at(0.0)
    ((_, _, note),) = bed.at(20.0)
    assert "many" in note

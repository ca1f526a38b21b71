"""Seats of a gang that kube-scheduler does not bind are released; it is planned again later, on its nodes."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.gangs import gangs, heard, member, state
from tests.support.builders.objects import added, free, make, node, pod_spec

from kgwe.apps.scheduler.disruption.unbound_gangs import UnboundGangs
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.settings import Settings
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan

__all__ = ["gangs", "heard", "state"]

REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no such claim"}


def changed(pod, *, says="", pin="", at="", conditions=()):
    """The pod with its seat, its pin or its node."""
    body = msgspec.to_builtins(pod)
    placement_annotations.pin_to_node(body["spec"], pin) if pin else None
    body["spec"]["nodeName"] = at
    notes = body["metadata"]["annotations"]
    for key in (placement_annotations.SEAT_ANNOTATION, placement_annotations.CARDS_ANNOTATION):
        notes.pop(key, None)
    if says:
        notes |= {placement_annotations.SEAT_ANNOTATION: says, placement_annotations.CARDS_ANNOTATION: "ff"}
    body["status"]["conditions"] = list(conditions)
    return make(resources.POD.type, body)


@pytest.fixture
def pods():
    return [member(name, phase="Pending") for name in ("p", "q")]


@pytest.fixture
def owner(state, gangs, heard, pods):
    """A gang of two with a plan, pinned to its nodes."""
    for pod in pods:
        state.on_pod(added(pod))
    heard.settle()
    plan_it(state, gangs, heard)
    owner = gangs.owner_of("uid-p")
    for number, pod in enumerate(pods):
        pods[number] = seated(state, gangs, pod)
        state.on_pod(added(pods[number]))
    assert free(state) == {"n1": 0, "n2": 0}
    return owner


def seated(state, gangs, pod, **more):
    owner, number = gangs.seat(pod.metadata.uid)
    return changed(pod, says=f"{owner}/{number}", pin=state.ledger.reserved_seat(owner, number).node, **more)


def plan_it(state, gangs, heard):
    ask = heard.asked[-1]
    found = planner.make_plan(state.fleet, ask, choosers={}, rng=random.Random(1))
    assert isinstance(found, Plan), found
    nodes = [seat.node for seat in found.seats]
    start = state.ledger.commit_plan(ask.owner, found.amounts_by_seat, found.grants, nodes, extend=True)
    gangs.assign_plan(ask.owner, replace(found, start=start))
    return nodes


def test_released_seats_are_free_and_the_gang_says_why_it_waits(state, gangs, owner, pods):
    released = gangs.release_unbound(owner, "no such claim")
    assert {pod.metadata.name for pod in released} == {"p", "q"}
    assert free(state) == {"n1": 8, "n2": 8}
    assert gangs.why_waiting(pods[0]) == "kgwe: gang waiting: no such claim"


def test_what_the_watch_still_shows_of_a_released_seat_is_not_believed(state, gangs, owner, pods):
    gangs.release_unbound(owner, "no such claim")
    for pod in pods:
        state.on_pod(added(pod))
    assert free(state) == {"n1": 8, "n2": 8}


def test_a_pod_that_was_bound_while_its_seat_was_released_has_its_place(state, gangs, owner, pods):
    gangs.release_unbound(owner, "no such claim")
    node = placement_annotations.pinned_node(pods[0].spec)
    said = pods[0].metadata.annotations[placement_annotations.SEAT_ANNOTATION]
    state.on_pod(added(changed(pods[0], says=said, at=node)))
    assert free(state)[node] == 0


def test_the_gang_is_not_planned_before_its_pause_is_over_and_then_as_the_last_on_its_nodes(
    state, gangs, heard, owner, pods
):
    before = {pod.metadata.name: placement_annotations.pinned_node(pod.spec) for pod in pods}
    first = heard.asked[-1].since
    gangs.release_unbound(owner, "no such claim")
    asked = len(heard.asked)
    for pod in pods:
        state.on_pod(added(changed(pod)))
    heard.settle()
    assert len(heard.asked) == asked

    gangs.plan_again(owner)
    heard.settle()

    assert len(heard.asked) == asked + 1
    assert heard.asked[-1].since > first
    assert not heard.asked[-1].first_claim
    plan_it(state, gangs, heard)
    after = {name: state.ledger.reserved_seat(*gangs.seat(f"uid-{name}")).node for name in before}
    assert after == before


def test_the_pause_ends_when_kube_scheduler_asks_about_all_pods(state, gangs, heard, owner, pods):
    gangs.release_unbound(owner, "no such claim")
    asked = len(heard.asked)
    for pod in pods:
        state.on_pod(added(changed(pod)))
    gangs.note_filter_call(pods[0])
    gangs.note_filter_call(pods[0])
    heard.settle()
    assert len(heard.asked) == asked, "one of two"
    gangs.note_filter_call(pods[1])
    heard.settle()
    assert len(heard.asked) == asked + 1


def test_a_bound_pod_keeps_its_seat(state, gangs, owner, pods):
    node = placement_annotations.pinned_node(pods[0].spec)
    state.on_pod(
        added(changed(pods[0], says=pods[0].metadata.annotations[placement_annotations.SEAT_ANNOTATION], at=node))
    )
    assert [pod.metadata.name for pod in gangs.release_unbound(owner, "no such claim")] == ["q"]
    other = ({"n1", "n2"} - {node}).pop()
    assert free(state) == {node: 0, other: 8}


# --- when ----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Patience:
    """`Overdue` with a clock that is set by hand."""

    def __init__(self, state, gangs) -> None:
        self.clock = Clock()
        self.revoked: list[Any] = []
        self.events: list[Any] = []
        means: Any = SimpleNamespace(
            state=state,
            gangs=gangs,
            settings=Settings(placement_timeout_seconds=30.0, unscheduled_timeout_seconds=300.0),
            events=SimpleNamespace(record=self.events.append),
            metrics=Metrics(),
            rng=random.Random(1),
        )
        self.removed: list[str] = []
        remove = lambda uid, _why: self.removed.append(uid)  # noqa: E731 - a listener
        self.overdue = UnboundGangs(means, revoke=self.revoked.append, remove=remove, clock=self.clock)

    def look_after(self, seconds: float, owner: str) -> bool:
        """Whether its seats are released by then."""
        self.clock.now += seconds
        self.overdue._look_at(owner)
        return bool(self.revoked)


@pytest.fixture
async def patience(state, gangs, owner):
    made = Patience(state, gangs)
    made.overdue.track_gang(owner)
    yield made
    made.overdue.stop()


async def test_a_refused_gang_is_released_after_the_timeout_with_events_on_pod_and_owner(
    patience, state, gangs, owner, pods
):
    state.on_pod(added(seated(state, gangs, pods[0], conditions=[REFUSED])))
    assert not patience.look_after(29, owner)
    assert patience.look_after(1, owner)
    assert {pod.metadata.name for pod in patience.revoked} == {"p", "q"}
    assert [(event.resource.kind, event.reason) for event in patience.events] == [
        ("Pod", "NodeRefused"),
        ("Job", "NodeRefused"),
    ]
    assert "no such claim" in patience.events[0].note


async def test_a_gang_without_a_word_of_kube_scheduler_has_longer(patience, state, gangs, owner, pods):
    stale = REFUSED | {"message": "0/2 nodes are available: 2 kgwe: gang waiting: being planned."}
    state.on_pod(added(seated(state, gangs, pods[0], conditions=[stale])))
    assert not patience.look_after(299, owner)
    assert patience.look_after(1, owner)
    assert patience.events[0].reason == "NotScheduled"


async def test_a_gang_whose_pods_are_being_bound_has_its_time_again(patience, state, gangs, owner, pods):
    state.on_pod(added(seated(state, gangs, pods[0], conditions=[REFUSED])))
    node = placement_annotations.pinned_node(pods[1].spec)
    state.on_pod(added(seated(state, gangs, pods[1], at=node)))
    assert not patience.look_after(30, owner)
    assert patience.look_after(30, owner)


async def test_a_gang_that_is_bound_is_left_alone(patience, state, gangs, owner, pods):
    for pod in pods:
        state.on_pod(added(seated(state, gangs, pod, at=placement_annotations.pinned_node(pod.spec))))
    assert not patience.look_after(1000, owner)


def takes(state, name):
    """Other work has the node."""
    body = {"metadata": {"name": f"on-{name}", "namespace": "x", "uid": f"uid-{name}"}, "spec": pod_spec(8, name)}
    state.on_pod(added(make(resources.POD.type, body | {"status": {"phase": "Running"}})))


async def released(patience, state, gangs, heard, owner, pods):
    """Its seats were released, its pods are pinned still, and it asks again."""
    state.on_pod(added(seated(state, gangs, pods[0], conditions=[REFUSED])))
    assert patience.look_after(30, owner)
    for pod in pods:
        state.on_pod(added(changed(pod)))
    gangs.plan_again(owner)
    heard.settle()


async def test_pinned_pods_make_room_for_new_ones_when_only_other_nodes_have_room(
    patience, state, gangs, heard, owner, pods
):
    await released(patience, state, gangs, heard, owner, pods)
    takes(state, "n1")
    patience.overdue.handle_refusal(owner)
    assert not patience.removed, "there is no room elsewhere"
    state.on_node(added(node("n3")))
    patience.overdue.handle_refusal(owner)
    assert sorted(patience.removed) == ["uid-p", "uid-q"]


async def test_pinned_pods_that_nothing_makes_again_stay(patience, state, gangs, heard, owner, pods):
    await released(patience, state, gangs, heard, owner, pods)
    for pod in pods:
        alone = msgspec.structs.replace(pod.metadata, ownerReferences=())
        state.on_pod(added(changed(msgspec.structs.replace(pod, metadata=alone))))
    takes(state, "n1")
    state.on_node(added(node("n3")))
    patience.overdue.handle_refusal(owner)
    assert not patience.removed


async def test_a_gang_that_was_never_released_is_not_replaced(patience, state, owner):
    state.on_node(added(node("n3")))
    patience.overdue.handle_refusal(owner)
    assert not patience.removed

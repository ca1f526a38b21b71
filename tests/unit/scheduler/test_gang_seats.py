"""Seats of gangs that others made: restored from what their pods say, as far as that can be believed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.builders.objects import added, free, make, node, pod_spec, removed

from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api import core
    from kgwe.placement.planning.ask import Ask


@pytest.fixture
def state():
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    return made


def member(name, gang="g", *, at="n1", says="", cards="f", **more):
    notes = {"kgwe.nvidia.io/gang": gang, "kgwe.nvidia.io/gang-size": "2"}
    if says:
        notes |= {placement_annotations.SEAT_ANNOTATION: says, placement_annotations.CARDS_ANNOTATION: cards}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes}
    return make(resources.POD.type, {"metadata": meta, "spec": pod_spec(4, at, **more), "status": {"phase": "Pending"}})


def owner_of(state, pod):
    """What the gang of the pod is called in the books."""
    probe = msgspec.structs.replace(pod)
    state.on_pod(added(probe))
    owner = state.gangs.owner_of(pod.metadata.uid)
    state.on_pod(removed(probe))
    return owner


def test_a_pod_that_says_its_seat_has_it_again_after_a_restart(state):
    owner = owner_of(state, member("p"))
    state.on_pod(added(member("p", at="", pin="n1", says=f"{owner}/1", cards="f0")))
    assert state.ledger.reserved_seat(owner, 1).node == "n1"
    assert free(state) == {"n1": 4, "n2": 8}
    state.on_pod(added(member("p", at="n1", pin="n1", says=f"{owner}/1", cards="f0")))
    assert state.ledger.pod_in(owner, 1) == "uid-p"
    assert state.ledger.fleet.holding("uid-p").gpus == 0xF0
    state.on_pod(removed(member("p", at="n1", pin="n1", says=f"{owner}/1", cards="f0")))
    assert free(state) == {"n1": 8, "n2": 8}


@pytest.mark.parametrize("cards", ["", "zz", "-1", "f" * 100])
def test_cards_that_cannot_be_read_are_guessed(state, cards):
    owner = owner_of(state, member("p"))
    state.on_pod(added(member("p", pin="n1", says=f"{owner}/0", cards=cards)))
    assert free(state) == {"n1": 4, "n2": 8}


@pytest.mark.parametrize("number", ["-1", "x", "9" * 5000, ""])
def test_a_seat_that_cannot_be_read_is_none(state, number):
    owner = owner_of(state, member("p"))
    state.on_pod(added(member("p", says=f"{owner}/{number}")))
    assert not state.ledger.has_seats(owner)
    assert free(state) == {"n1": 4, "n2": 8}


def test_a_pod_of_another_gang_does_not_take_its_seat(state):
    owner = owner_of(state, member("p"))
    state.on_pod(added(member("p", at="", pin="n1", says=f"{owner}/0")))
    state.on_pod(added(member("thief", "other", at="n2", says=f"{owner}/0")))
    assert state.ledger.pod_in(owner, 0) == ""
    assert free(state) == {"n1": 4, "n2": 4}


def test_pods_that_are_bound_while_their_gang_is_planned_are_counted_once(state):
    gangs = state.gangs
    asked: list[Ask] = []
    later: list[Callable[[], None]] = []
    gangs.start_leading(
        LeaderActions(
            request_plan=asked.append,
            withdraw_request=_ignore,
            assign_seat=_ignore,
            remove_gate=_ignore,
            call_soon=later.append,
        )
    )
    for name in ("p", "q"):
        state.on_pod(added(member(name, at="")))
    later.pop()()
    found = planner.make_plan(state.fleet, asked[-1], choosers={}, rng=random.Random(1))
    assert isinstance(found, Plan)
    where = {name: seat.node for name, seat in zip(("p", "q"), found.seats, strict=True)}
    start = state.ledger.commit_plan(asked[-1].owner, found.amounts_by_seat, found.grants, list(where.values()))
    for name, node_name in where.items():
        state.on_pod(added(member(name, at=node_name)))
    gangs.assign_plan(asked[-1].owner, replace(found, start=start))
    assert {state.ledger.pod_in(asked[-1].owner, number) for number in (0, 1)} == {"uid-p", "uid-q"}
    assert sum(free(state).values()) == 8


def test_a_term_goes_on_with_the_seats_that_the_one_before_did_not_come_to_write(state):
    gangs = state.gangs
    asked: list[Ask] = []
    later: list[Callable[[], None]] = []
    first: list[tuple[str, int]] = []
    gangs.start_leading(
        LeaderActions(
            request_plan=asked.append,
            withdraw_request=_ignore,
            assign_seat=_noting(first),
            remove_gate=_ignore,
            call_soon=later.append,
        )
    )
    for name in ("p", "q"):
        state.on_pod(added(member(name, at="")))
    later.pop()()
    owner, found = asked[-1].owner, planner.make_plan(state.fleet, asked[-1], choosers={}, rng=random.Random(1))
    assert isinstance(found, Plan)
    start = state.ledger.commit_plan(owner, found.amounts_by_seat, found.grants, [seat.node for seat in found.seats])
    gangs.assign_plan(owner, replace(found, start=start))
    (written, number), (lacking, other) = first
    gangs.stop_leading()
    pin = state.ledger.reserved_seat(owner, number).node
    state.on_pod(added(member(written, at="", pin=pin, says=f"{owner}/{number}")))

    second: list[tuple[str, int]] = []
    gangs.start_leading(
        LeaderActions(
            request_plan=asked.append,
            withdraw_request=_ignore,
            assign_seat=_noting(second),
            remove_gate=_ignore,
            call_soon=later.append,
        )
    )

    assert second == [(lacking, other)]
    assert len(asked) == 1, "and plans nothing anew"


def _noting(seats: list[tuple[str, int]]) -> Callable[[str, core.Pod, int], None]:
    return lambda _, pod, number: seats.append((pod.metadata.name, number))


def _ignore(*_):
    pass

"""Nodes whose pods hold more GPUs than there are (bound by `nodeName`): nothing is stopped there unless it helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.machines.reference import nvswitch

from kgwe.model.gpu import mig
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.placement.refusal import Reason

CARDS = 4
SHAPE = Shape(nvswitch(CARDS), "H100-SXM5-80GB", 81_920, "hopper")
NAMES = ("a", "b")

# (node, cards, priority, may be stopped)
Bound = tuple[str, int, int, bool]
bound = st.tuples(st.sampled_from(NAMES), st.integers(0, CARDS + 1), st.sampled_from([0, 1, 9]), st.booleans())
bookings = st.lists(bound, max_size=7)


def fleet_with(pods: list[Bound]) -> LiveFleet:
    fleet = LiveFleet()
    places = [domains.Place(name, ("leaf", "spine"), gb_per_s=50.0) for name in NAMES]
    fleet.set_nodes([Node(name, SHAPE, 64_000, 2**40) for name in NAMES], domains.build_tree(places, ("leaf", "spine")))
    for number, (node, cards, _, _) in enumerate(pods):
        fleet.hold(f"p{number}", Holding(node, {amounts.GPU: cards, amounts.PODS: 1}))
    return fleet


def running(fleet: LiveFleet, pods: list[Bound]) -> list[Running]:
    found = []
    for number, (_, cards, priority, preemptible) in enumerate(pods):
        (grant,) = fleet.grants(f"p{number}")
        member = Member(f"p{number}", Request(Gpus(count=cards)), grant)
        found.append(Running(f"p{number}", (member,), priority, preemptible))
    return found


def room(pods: list[Bound], left: set[str]) -> dict[str, int]:
    """Cards that nobody has, counted by hand."""
    held = dict.fromkeys(NAMES, 0)
    for number, (node, cards, _, _) in enumerate(pods):
        held[node] += cards * (f"p{number}" in left)
    return {node: max(0, CARDS - cards) for node, cards in held.items()}


def check(pods: list[Bound], cards: int, count: int) -> None:
    fleet, priority = fleet_with(pods), 5
    everyone = {f"p{number}" for number in range(len(pods))}
    lower = {f"p{number}" for number, (_, _, each, may) in enumerate(pods) if may and each < priority}
    request = Request(Gpus(count=cards))
    wanted = request if count == 1 else GangRequest.uniform(request, count)
    copy = ScratchFleet(fleet)
    copy.sync()

    made = plan_preemption(copy.fitter, fleet.tree, wanted, running(fleet, pods), 0.0, priority=priority)

    def fits(left: set[str]) -> bool:
        return sum(free // cards for free in room(pods, left).values()) >= count

    if not isinstance(made, PreemptionPlan):
        assert not fits(everyone - lower), "stopping all of them would have been enough"
        assert (made.code is Reason.NOTHING_LOWER) == (not lower)
        return
    victims = {victim.workload for victim in made.victims}
    assert victims <= lower
    assert fits(everyone - victims), "stopped for nothing"
    for victim in victims:
        assert not fits(everyone - victims | {victim}), "a victim that could be spared"
        fleet.drop(victim)
    ask = Ask("w", request, {amounts.GPU: cards, amounts.PODS: 1}, count)
    answer = make_plan(fleet, ask)
    assert isinstance(answer, Plan), f"the victims are gone and it still does not fit: {answer.message}"


@example([("a", 4, 0, True), ("a", 4, 9, False), ("b", 4, 9, False)], 4)
@example([("a", 2, 0, True), ("a", 2, 0, True), ("a", 2, 9, False), ("b", 4, 9, False)], 2)
@example([("a", 4, 9, False), ("a", 4, 0, True), ("b", 4, 9, False)], 1)
@given(bookings, st.integers(1, CARDS))
def test_victims_of_a_pod_are_stopped_only_if_it_then_fits(pods: list[Bound], cards: int):
    check(pods, cards, 1)


@example([("a", 4, 0, True), ("a", 4, 9, False), ("b", 4, 0, True)], 4, 2)
@given(bookings, st.integers(1, CARDS), st.integers(2, 4))
def test_victims_of_a_gang_are_stopped_only_if_it_then_fits(pods: list[Bound], cards: int, count: int):
    check(pods, cards, count)


@given(bookings, st.integers(1, CARDS))
def test_what_is_planned_now_fits_beside_all_who_hold_something(pods: list[Bound], cards: int):
    fleet = fleet_with(pods)
    everyone = {f"p{number}" for number in range(len(pods))}
    found = make_plan(fleet, Ask("w", Request(Gpus(count=cards)), {amounts.GPU: cards, amounts.PODS: 1}))
    assert isinstance(found, Plan) == any(free >= cards for free in room(pods, everyone).values())
    assert not isinstance(found, GangPlan)


def divided(pieces: int, cut: int) -> Node:
    """One node whose card is divided into shares, or cut into slices."""
    shape = Shape(nvswitch(1), "H100-SXM5-80GB", 81_920, "hopper")
    profile = mig.Profile("1g.10gb", 1, 1, tuple(range(cut)), cut, 10_000)
    placed = {0: tuple(mig.Placement(profile, start) for start in range(cut))} if cut else {}
    return Node("a", shape, 64_000, 2**40, shares_per_gpu=pieces, cut=placed)


@pytest.mark.parametrize("kind", ["share", "slice"])
@given(st.lists(st.booleans(), min_size=1, max_size=4), st.integers(2, 4))
def test_the_same_of_shares_and_slices(kind: str, pods: list[bool], room: int):
    """Each pod has one piece of the node's only card; `True`: it may be stopped."""
    fleet = LiveFleet()
    made = divided(room, 0) if kind == "share" else divided(0, room)
    fleet.set_nodes(
        [made], domains.build_tree([domains.Place("a", ("leaf", "spine"), gb_per_s=50.0)], ("leaf", "spine"))
    )
    resource = amounts.SHARED if kind == "share" else f"{amounts.MIG_PREFIX}1g.10gb"
    gpus = Gpus(milli=1000 // room) if kind == "share" else Gpus(profile="1g.10gb", slices=1)
    listed = []
    for number, preemptible in enumerate([*pods, *[False] * room]):
        fleet.hold(f"p{number}", Holding("a", {resource: 1, amounts.PODS: 1}))
        listed.append((f"p{number}", preemptible))
    works = []
    for key, preemptible in listed:
        grants = fleet.grants(key)
        grant = grants[0] if len(grants) == 1 else replace(grants[0], slices=grants[1].slices)
        works.append(Running(key, (Member(key, Request(gpus), grant),), 0, preemptible))

    found = plan_preemption(fleet.fitter, fleet.tree, Request(gpus), works, 0.0, priority=5)

    assert not isinstance(found, PreemptionPlan), "as many as there is room for cannot be stopped"

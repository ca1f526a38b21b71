"""Gangs that wait together get one plan: more of them start, on fewer leaves, and never worse than best fit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.racks import cards, racks

from kgwe.bench.placement.leaf_rules import Grid, best_fit
from kgwe.placement.gang.lookahead import joint_plan
from kgwe.placement.gang.lookahead.arrangement import Arrangement
from kgwe.placement.gang.lookahead.best_fit import BestFit
from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, LeafStates
from kgwe.placement.gang.lookahead.quick_fit import GangDemand
from kgwe.placement.gang.request import Following, Intent
from kgwe.placement.planning.gang_planner import GangPlan, GangRequest

GPUS_PER_POD = (8, 4, 2)
PER_LEAF, PER_SPINE = 4, 8


def capacity_of(leaves: list[list[int]]) -> FreeCapacity:
    """The free capacity of leaves with so many free GPUs on each node."""
    states = [
        tuple(
            sorted(
                Counter(
                    (free, *(free // each for each in GPUS_PER_POD)) for free in leaf if free >= GPUS_PER_POD[-1]
                ).items()
            )
        )
        for leaf in leaves
    ]
    return FreeCapacity.from_leaves(LeafStates(GPUS_PER_POD), states)


def spines_of(leaves: int) -> tuple[tuple[range, ...], ...]:
    each = PER_SPINE // PER_LEAF
    return (tuple(range(first, min(first + each, leaves)) for first in range(0, leaves, each)),)


def demands(sizes: list[tuple[int, int]], leaves: int) -> list[GangDemand]:
    """Gangs of (pods, GPUs of each); those that are alike share one demand."""
    known = {
        (pods, gpus): GangDemand(GPUS_PER_POD.index(gpus), pods, ((range(leaves),),))
        for pods, gpus in dict.fromkeys(sizes)
    }
    return [known[size] for size in sizes]


boards = st.lists(st.lists(st.integers(0, 8), min_size=PER_LEAF, max_size=PER_LEAF), min_size=2, max_size=7)
gang_sizes = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(GPUS_PER_POD)), min_size=1, max_size=9)


def place_by_best_fit(leaves: list[list[int]], sizes: list[tuple[int, int]]) -> list[set[int] | None]:
    """Leaves of each gang by the rule of the benchmark, which knows every node."""
    grid = Grid(np.array([free for leaf in leaves for free in leaf]), 8, PER_LEAF, PER_SPINE)
    found = [grid.place(best_fit, pods, gpus) for pods, gpus in sizes]
    return [None if nodes is None else {node // PER_LEAF for node in nodes} for nodes in found]


@given(leaves=boards, size=st.tuples(st.integers(1, 7), st.sampled_from(GPUS_PER_POD)))
def test_best_fit_on_a_board_is_best_fit_on_nodes(leaves, size):
    (gang,) = demands([size], len(leaves))
    parts = BestFit(spines_of(len(leaves))).place_gang(capacity_of(leaves), gang)
    (expected,) = place_by_best_fit(leaves, [size])
    assert (None if parts is None else {leaf for leaf, _ in parts}) == expected
    assert parts is None or sum(pods for _, pods in parts) == gang.pods


@given(leaves=boards, sizes=gang_sizes)
def test_a_joint_plan_is_possible_and_no_worse_than_best_fit(leaves, sizes):
    capacity, gangs, spines = capacity_of(leaves), demands(sizes, len(leaves)), spines_of(len(leaves))
    before = capacity.states[:]
    plan = joint_plan.plan_together(capacity, gangs, spines)
    assert capacity.states == before
    assert plan == joint_plan.plan_together(capacity_of(leaves), gangs, spines), "the same every time"

    trial, reference = capacity.copy(), capacity.copy()
    placed = by_best_fit = 0
    for gang, parts in zip(gangs, plan.parts, strict=True):
        if parts is not None:
            assert sum(pods for _, pods in parts) == gang.pods
            assert all(trial.room[gang.kind][leaf] >= pods for leaf, pods in parts)
            assert len(parts) == 1 or max(trial.room[gang.kind]) < gang.pods, "one leaf would do"
            trial.place_pods(gang.kind, parts, tight=plan.tight)
        other = BestFit(spines).place_gang(reference, gang)
        if other is not None:
            reference.place_pods(gang.kind, other, tight=False)
            placed += 1
            by_best_fit += len(other)
    assert plan.placed >= placed
    assert plan.placed > placed or plan.leaves <= by_best_fit


@given(leaves=boards, sizes=gang_sizes, tight=st.booleans(), spares=st.booleans())
def test_improving_an_arrangement_loses_no_gang_and_adds_no_leaf(leaves, sizes, tight, spares):
    gangs = demands(sizes, len(leaves))
    arrangement = Arrangement(capacity_of(leaves), gangs, tight=tight, spares=spares)
    for number in range(len(gangs)):
        arrangement.place_gang(number)
    before = list(arrangement.parts)
    arrangement.improve(30)
    assert [each is None for each in arrangement.parts] == [each is None for each in before]
    assert sum(len(each or ()) for each in arrangement.parts) <= sum(len(each or ()) for each in before)


def test_gangs_are_divided_so_that_none_needs_a_third_leaf():
    # In turn 14 takes 8 + 6, and what is left, 7 + 7 + 6, is three leaves for 15. Together it is 7 + 7 and 8 + 7.
    leaves = [[8] * 8, [8] * 7, [8] * 7, [8] * 7]
    plan = joint_plan.plan_together(capacity_of(leaves), demands([(14, 8), (15, 8)], 4), ())
    assert [len(parts or ()) for parts in plan.parts] == [2, 2]
    assert plan.describe() == "planned together with all 2 waiting gangs: all fit, 4 leaves in total"


def test_the_first_of_gangs_that_are_alike_gets_the_fewest_leaves():
    leaves = [[8] * 4, [8] * 3, [8] * 1, [8] * 4]
    plan = joint_plan.plan_together(capacity_of(leaves), demands([(4, 8)] * 3, 4), ())
    assert [len(parts or ()) for parts in plan.parts] == [1, 1, 2]


def test_half_nodes_are_used_so_that_a_gang_of_whole_nodes_still_fits():
    leaves = [[8, 8, 8, 8], [4, 4, 4, 4, 8, 8], [4, 4, 0, 0]]
    plan = joint_plan.plan_together(capacity_of(leaves), demands([(4, 4), (6, 8)], 3), ())
    assert plan.placed == 2
    assert plan.tight


# --- on a snapshot --------------------------------------------------------------------------------------

TWELVE = GangRequest.uniform(cards(8), 12, preferred="leaf")


def test_a_gang_goes_where_the_joint_plan_puts_it_and_says_so():
    cluster = racks({"s": {"a": [8] * 9, "b": [8] * 9, "c": [8] * 4}})
    intent = Intent((("b", 8), ("c", 4)), tight=True, reason="planned together")
    plan = cluster.planner.plan(TWELVE, following=Following(intent=intent))
    assert isinstance(plan, GangPlan)
    assert Counter(seat.node[0] for seat in plan.seats) == {"b": 8, "c": 4}
    assert plan.choice_note == "planned together"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((("b", 9), ("d", 3)), id="no such leaf"),
        pytest.param((("b", 7), ("c", 5)), id="no room"),
        pytest.param((("b", 8), ("c", 3)), id="not all pods"),
    ],
)
def test_an_intended_place_that_is_not_possible_is_passed_over(parts):
    cluster = racks({"s": {"a": [8] * 9, "b": [8] * 9, "c": [8] * 4}})
    following = Following(intent=Intent(parts, tight=True, reason="planned together"))
    plan = cluster.planner.plan(TWELVE, following=following)
    assert isinstance(plan, GangPlan)
    assert plan.leaves == 2
    assert plan.choice_note == ""


def test_a_gang_that_one_leaf_holds_is_not_spread_for_others():
    cluster = racks({"s": {"a": [8] * 12, "b": [8] * 9, "c": [8] * 4}})
    following = Following(intent=Intent((("b", 9), ("c", 3)), tight=True, reason="planned together"))
    plan = cluster.planner.plan(TWELVE, following=following)
    assert isinstance(plan, GangPlan)
    assert plan.leaves == 1


def test_gangs_that_all_fit_a_leaf_need_no_joint_plan():
    cluster = racks({"s": {"a": [8] * 12, "b": [8] * 12}})
    assert cluster.planner.arrange_gangs(Following.from_gangs([TWELVE, TWELVE])) == [None, None]


def test_a_gang_that_is_not_consolidated_has_no_intended_place():
    cluster = racks({"s": {"a": [8] * 8, "b": [8] * 8, "c": [8] * 8}})
    spread = GangRequest.uniform(cards(8), 3, strategy="Distributed")
    intents = cluster.planner.arrange_gangs(Following.from_gangs([spread, TWELVE, TWELVE]))
    assert intents[0] is None
    assert isinstance(intents[1], Intent)
    assert sum(pods for _, pods in intents[1].parts) == 12

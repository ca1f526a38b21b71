"""Exposed workloads avoid unreliable nodes if that costs nothing, use them if they must, and say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders.racks import H100, Racks, cards, placed, racks

from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Node
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.gang import reliability as caution
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.planning.gang_planner import GangPlanner, GangRequest
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.fit import Fitter

DAY_S = 86_400.0


def flaky(bed: Racks, **scores: float) -> GangPlanner:
    """The same racks with these reliabilities."""
    nodes = [replace(node, reliability=scores.get(node.name, 1.0)) for node in bed.snapshot.nodes]
    snapshot = Snapshot.from_nodes(nodes)
    snapshot.commit_all(list(bed.held.values()))
    return GangPlanner(Fitter(snapshot), bed.tree)


def long_gang(pods: int, required: str = "") -> GangRequest:
    return GangRequest.uniform(cards(8), pods, exposed=True, required=required)


def test_large_or_long_work_is_exposed():
    assert not caution.is_exposed(8, None)
    assert caution.is_exposed(16, None), "an hour is taken where nobody said"
    assert caution.is_exposed(1, DAY_S)
    assert not caution.is_exposed(64, 60)


@pytest.mark.parametrize("bad", ["a1", "a2", "a3", "a4"])
def test_of_equal_nodes_the_flaky_one_is_left(bad):
    bed = racks({"s": {"a": [8, 8, 8, 8]}})
    plan = placed(flaky(bed, **{bad: 0.4}), long_gang(3))
    assert bad not in plan.nodes


@pytest.mark.parametrize("bad", ["a1", "a2", "a3", "a4"])
def test_work_that_is_not_exposed_does_not_care(bad):
    bed = racks({"s": {"a": [8, 8, 8, 8]}})
    gang = GangRequest.uniform(cards(8), 3)
    assert placed(flaky(bed, **{bad: 0.4}), gang).nodes == bed.place(gang).nodes


def test_the_flaky_node_is_used_when_nothing_else_fits_and_the_plan_says_so():
    bed = racks({"s": {"a": [8, 8, 8, 8]}})
    plan = placed(flaky(bed, a2=0.4), long_gang(4))
    assert set(plan.nodes) == {"a1", "a2", "a3", "a4"}
    assert "uses unreliable node a2 (reliability 0.40): no other place is as good" in plan.describe()


def test_the_plan_says_what_it_was_kept_off():
    bed = racks({"s": {"a": [8, 8, 8, 8]}})
    before = bed.place(long_gang(3)).nodes
    plan = placed(flaky(bed, **{before[0]: 0.42}), long_gang(3))
    assert f"avoids unreliable node {before[0]} (reliability 0.42)" in plan.describe()


def test_another_leaf_is_as_good_as_one_with_a_flaky_node():
    bed = racks({"s": {"a": [8, 8], "b": [8, 8, 8]}})
    assert set(bed.place(long_gang(2)).nodes) == {"a1", "a2"}, "the tight fit, if all is well"
    plan = placed(flaky(bed, a1=0.4), long_gang(2))
    assert plan.level == "leaf"
    assert {node[0] for node in plan.nodes} == {"b"}


def test_nearness_is_worth_more_than_reliability():
    bed = racks({"s": {"a": [8, 8], "b": [8]}})
    plan = placed(flaky(bed, a1=0.1), long_gang(2))
    assert set(plan.nodes) == {"a1", "a2"}, "one leaf rather than two"


def test_a_required_level_is_never_given_up():
    bed = racks({"s": {"a": [8, 8], "b": [8, 0], "c": [8, 0]}})
    plan = placed(flaky(bed, a1=0.1, a2=0.1), long_gang(2, required="leaf"))
    assert set(plan.nodes) == {"a1", "a2"}


def test_of_flaky_nodes_the_least_flaky():
    bed = racks({"s": {"a": [8, 8, 8, 8]}})
    plan = placed(flaky(bed, a1=0.1, a2=0.1, a3=0.8), long_gang(2))
    assert set(plan.nodes) == {"a3", "a4"}


def test_a_domain_with_trouble_scores_less_for_everybody():
    bed = racks({"s": {"a": [8, 8], "b": [8, 8]}})
    gang = GangRequest.uniform(cards(8), 2)
    assert bed.place(gang).domain == "a"
    assert bed.place(gang).score.history == 0, "where all is well nothing is counted"
    plan = placed(flaky(bed, a2=0.4), gang)
    assert (plan.domain, plan.score.history) == ("b", 10)


# --- one pod --------------------------------------------------------------------------------------------


def fleet(**scores: float) -> LiveFleet:
    bed = racks({"s": {"a": [8, 8, 8]}})
    found = LiveFleet()
    nodes = [Node(node.name, node.shape, 64_000, 2**40, reliability=scores.get(node.name, 1.0)) for node in
             bed.snapshot.nodes]  # fmt: skip
    found.set_nodes(nodes, bed.tree)
    return found


def planned(place: LiveFleet, ask: Ask) -> Plan:
    plan = planner.make_plan(place, ask)
    assert isinstance(plan, Plan), plan
    return plan


def test_a_long_pod_goes_to_a_reliable_node_and_a_short_one_anywhere():
    place = fleet(a1=0.4)
    ask = Ask("w", cards(8), {amounts.GPU: 8})
    assert planned(place, ask).seats[0].node == "a1"
    plan = planned(place, replace(ask, expected_s=DAY_S))
    assert plan.seats[0].node == "a2"
    assert "avoids unreliable node a1 (reliability 0.40)" in plan.message


def test_a_long_pod_takes_the_flaky_node_when_there_is_no_other():
    place = fleet(a1=0.4, a2=0.2, a3=0.5)
    plan = planned(place, Ask("w", cards(8), {amounts.GPU: 8}, expected_s=DAY_S))
    assert plan.seats[0].node in ("a1", "a3"), "not the worst"


def test_other_cards_are_not_as_good():
    place = fleet(a1=0.4)
    older = replace(H100, model="A100-SXM4-80GB")
    nodes = [node if node.name == "a1" else replace(node, shape=older) for node in place.snapshot.nodes]
    place.set_nodes(nodes, place.tree)
    plan = planned(place, Ask("w", cards(8), {amounts.GPU: 8}, expected_s=DAY_S))
    assert plan.seats[0].node == "a1"


def test_whoever_asks_for_the_cheapest_gets_it():
    place = fleet(a1=0.4)
    ask = Ask("w", cards(8), {amounts.GPU: 8}, strategy="costOptimized", expected_s=DAY_S)
    assert planned(place, ask).seats[0].node == "a1"


def test_a_gang_of_an_ask_is_exposed_by_its_size_or_its_time():
    ask = Ask("w", cards(4), {amounts.GPU: 4}, pods=2, nearness=TopologyRequest(required="leaf"))
    assert not planner.gang_request(ask).exposed
    assert planner.gang_request(replace(ask, expected_s=DAY_S)).exposed
    assert planner.gang_request(replace(ask, pods=4)).exposed

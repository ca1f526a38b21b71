"""Where gangs go, on clusters small enough to draw: numbers are free cards of 8."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from tests.support.builders.racks import H100, cards, placed, racks

from kgwe import errors
from kgwe.model.network import domains
from kgwe.model.network.domains import Place, Speed
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.gang_planner import (
    NODE,
    NVLINK,
    DomainWeights,
    GangPlanner,
    GangRequest,
    Hardware,
    Role,
    Segment,
    SizeClass,
    Strategy,
)
from kgwe.placement.pod.fit import Fitter


def on(plan):
    """Node -> pods."""
    return dict(Counter(seat.node for seat in plan.seats))


# --- which domain ---------------------------------------------------------------------------------------
#
#             spine s                  spine t
#        leaf a       leaf b           leaf c
#       8 8 8 8      8 8 2 0          8 8 8 8

DRAWN = {"s": {"a": [8, 8, 8, 8], "b": [8, 8, 2, 0]}, "t": {"c": [8, 8, 8, 8]}}


@pytest.mark.parametrize(
    ("pods", "each", "level", "domain"),
    [
        pytest.param(2, 1, "node", "b3", id="the tightest node that holds all"),
        pytest.param(2, 4, "node", "b1", id="one whole node, in the leaf that is used already"),
        pytest.param(2, 8, "leaf", "b", id="the tightest leaf keeps whole leaves whole"),
        pytest.param(4, 8, "leaf", "c", id="a complete leaf, in the spine with the smaller hole"),
        pytest.param(6, 8, "spine", "s", id="two leaves below one spine"),
        pytest.param(10, 8, "cluster", "cluster", id="everything"),
    ],
)
def test_the_lowest_domain_that_holds_the_gang_is_taken(pods, each, level, domain):
    plan = racks(DRAWN).place(GangRequest.uniform(cards(each), pods, preferred="leaf"))
    assert (plan.level, plan.domain) == (level, domain)
    assert plan.preferred_met is (level in {"node", "leaf"})


@pytest.mark.parametrize(("pods", "each"), [(2, 4), (2, 8), (6, 8), (10, 8)])
def test_the_seats_of_a_plan_are_described_as_the_plan_describes_them(pods, each):
    cluster = racks(DRAWN)
    gang = GangRequest.uniform(cards(each), pods, preferred="leaf")
    plan = cluster.place(gang)
    seats = [(seat.node, seat.grant.gpus) for seat in plan.seats]
    site = cluster.planner.survey(gang, seats)
    assert site is not None
    assert (site.level, site.domain, site.ring) == (plan.level, plan.domain, plan.ring)
    assert site.missed_level == ("" if plan.preferred_met else "leaf")
    assert site.describe().splitlines()[0] == plan.describe().splitlines()[0]


def test_seats_on_cards_that_are_not_known_have_no_known_ring():
    cluster = racks(DRAWN)
    gang = GangRequest.uniform(cards(8), 2)
    site = cluster.planner.survey(gang, [("a1", 0), ("a2", 0)])
    assert site is not None
    assert site.ring is None
    assert cluster.planner.survey(gang, [("a1", 255), ("gone", 255)]) is None


def test_a_required_level_is_never_left():
    cluster = racks(DRAWN)
    refusal = cluster.refuse(GangRequest.uniform(cards(8), 7, required="spine"))
    assert (refusal.level, refusal.domain, refusal.room, refusal.short) == ("spine", "s", 6, 1)
    assert cluster.place(GangRequest.uniform(cards(8), 7)).level == "cluster"


def test_a_plan_says_level_by_level_why_it_is_not_lower():
    plan = racks(DRAWN).place(GangRequest.uniform(cards(8), 6))
    assert [(look.level, look.holding, look.most, look.needed) for look in plan.level_reports] == [
        ("node", 0, 1, 6),
        ("leaf", 0, 4, 6),
        ("spine", 1, 6, 6),
    ]
    assert "leaf: 0/3 available, at most 4 of 6 pods fit in one" in plan.describe()


def test_the_faster_network_wins_before_the_score():
    nodes = [Node(f"n{i}", H100, 64_000, 2**40) for i in range(4)]
    places = [Place(f"n{i}", ("slow" if i < 2 else "fast",), gb_per_s=25.0 if i < 2 else 50.0) for i in range(4)]
    planner = GangPlanner(Fitter(Snapshot.from_nodes(nodes)), domains.build_tree(places, ("leaf",)))
    plan = placed(planner, GangRequest.uniform(cards(8), 2))
    assert (plan.domain, plan.ring.gb_per_s) == ("fast", 50.0)


def test_a_place_that_is_not_known_never_beats_a_known_one():
    nodes = [Node(f"n{i}", H100, 64_000, 2**40) for i in range(3)]
    places = [Place("n0"), Place("n1", ("a",), gb_per_s=50.0), Place("n2", ("a",), gb_per_s=50.0)]
    planner = GangPlanner(Fitter(Snapshot.from_nodes(nodes)), domains.build_tree(places, ("leaf",)))
    assert placed(planner, GangRequest.uniform(cards(8), 2)).nodes == ("n1", "n2")
    across = placed(planner, GangRequest.uniform(cards(8), 3))
    assert (across.level, across.ring.gb_per_s) == ("cluster", 0.0), "a ring with an unknown step is unknown"


def test_one_model_on_two_leaves_is_better_than_two_models_in_one():
    #    leaf a         leaf b
    #    H100 A100      A100
    slower = dataclasses.replace(H100, model="A100-SXM4-80GB")
    nodes = [Node(f"n{i}", shape, 64_000, 2**40) for i, shape in enumerate((H100, slower, slower))]
    tree = domains.build_tree([Place(f"n{i}", (leaf,), gb_per_s=50.0) for i, leaf in enumerate("aab")], ("leaf",))
    planner = GangPlanner(Fitter(Snapshot.from_nodes(nodes)), tree)
    assert placed(planner, GangRequest.uniform(cards(8), 2)).nodes == ("n1", "n2")
    assert placed(planner, GangRequest.uniform(cards(8), 2, hardware=Hardware.ANY)).nodes == ("n0", "n1")
    assert placed(planner, GangRequest.uniform(cards(8), 2, required="leaf")).nodes == ("n0", "n1"), (
        "mixed if it must be"
    )


def test_nodes_the_tree_does_not_know_are_used_last_and_near_nothing():
    nodes = [Node(f"n{i}", H100, 64_000, 2**40) for i in range(3)]
    tree = domains.build_tree([Place(f"n{i}", ("a",), gb_per_s=50.0) for i in (1, 2)], ("leaf",))
    planner = GangPlanner(Fitter(Snapshot.from_nodes(nodes)), tree)
    assert placed(planner, GangRequest.uniform(cards(8), 2)).domain == "a"
    assert placed(planner, GangRequest.uniform(cards(8), 3)).nodes == ("n1", "n2", "n0")


def test_a_good_past_decides_between_equals():
    cluster = racks({"s": {"a": [8, 8], "b": [8, 8]}})
    fitter = Fitter(cluster.snapshot)
    past = np.array([np.nan, np.nan, 0.9, 0.9])
    plan = placed(GangPlanner(fitter, cluster.tree, history=past), GangRequest.uniform(cards(8), 2))
    assert plan.domain == "b"
    assert plan.score.history == pytest.approx(9.0)
    plain = GangPlanner(fitter, cluster.tree, weights=DomainWeights(50, 30, 20, 0), history=past)
    assert placed(plain, GangRequest.uniform(cards(8), 2)).domain == "a"


def test_weights_that_do_not_sum_to_100_are_refused():
    with pytest.raises(ValueError, match="sum to 100"):
        DomainWeights(50, 50, 50, 0)


# --- how it is split ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaves", "pods", "split"),
    [
        pytest.param([10, 10], 12, [10, 2], id="10+2: 20 pairs are apart, with 6+6 it is 36"),
        pytest.param([10, 8, 4], 12, [10, 0, 2], id="the rest goes to the tightest"),
        pytest.param([10, 4], 12, [10, 2], id="the largest is filled"),
        pytest.param([10, 9, 7, 4], 13, [10, 0, 0, 3], id="the tightest that holds the rest, not the next largest"),
        pytest.param([5, 5, 5], 13, [5, 5, 3], id="over three when two do not hold it"),
    ],
)
def test_a_gang_that_must_be_split_goes_to_the_fewest_leaves_with_the_fewest_pairs_apart(leaves, pods, split):
    drawn = {"s": {chr(ord("a") + i): [8] * room for i, room in enumerate(leaves)}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), pods))
    found = Counter(seat.node[0] for seat in plan.seats)
    assert sorted(found.values()) == sorted(n for n in split if n)
    if 0 in split:
        assert set(found) == {chr(ord("a") + i) for i, n in enumerate(split) if n}


def test_a_balanced_gang_is_split_evenly():
    drawn = {"s": {"a": [8] * 10, "b": [8] * 10}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 12, strategy=Strategy.BALANCED))
    assert Counter(seat.node[0] for seat in plan.seats) == {"a": 6, "b": 6}


def test_leaves_are_chosen_from_all_spines_at_once():
    #  no spine holds 9; two leaves do: those with 5 and 4, not three of the roomier spine
    drawn = {"s": {"a": [8] * 3, "b": [8] * 3, "c": [8] * 2}, "t": {"d": [8] * 5}, "u": {"e": [8] * 4}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 9, preferred="leaf"))
    assert Counter(seat.node[0] for seat in plan.seats) == {"d": 5, "e": 4}
    assert plan.leaves == 2


def test_of_spines_that_hold_a_gang_the_one_with_fewer_leaves_is_taken():
    #  s is tighter, with three leaves; t needs two
    drawn = {"s": {"a": [8] * 3, "b": [8] * 2, "c": [8] * 2}, "t": {"d": [8] * 4, "e": [8] * 4}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 7, preferred="leaf"))
    assert (plan.domain, plan.leaves) == ("t", 2)


def test_segments_are_divided_as_groups_over_the_fewest_leaves():
    drawn = {"s": {"a": [8] * 7, "b": [8] * 6, "c": [8] * 4}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 8, segments=(Segment(4, "leaf"),)))
    assert Counter(seat.node[0] for seat in plan.seats) in ({"a": 4, "b": 4}, {"a": 4, "c": 4}, {"b": 4, "c": 4})
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 10, segments=(Segment(2, "leaf"),)))
    found = Counter(seat.node[0] for seat in plan.seats)
    assert (found["c"], sorted(found.values())) == (4, [4, 6])


def test_groups_that_are_bound_to_a_spine_stay_in_it():
    #  Four of a kind in one spine: the leaves are pooled in each spine, not over both.
    drawn = {"s": {"a": [8] * 3, "b": [8] * 2}, "t": {"c": [8] * 3, "d": [8] * 2}}
    plan = racks(drawn).place(GangRequest.uniform(cards(8), 8, segments=(Segment(4, "spine"),)))
    spines = ["s" if seat.node[0] in "ab" else "t" for seat in plan.seats]
    assert spines == ["s"] * 4 + ["t"] * 4
    assert Counter(seat.node[0] for seat in plan.seats) == {"a": 3, "b": 1, "c": 3, "d": 1}


def test_roles_are_split_over_the_fewest_leaves():
    drawn = {"s": {"a": [8] * 5, "b": [8] * 4, "c": [8] * 2}}
    roles = (Role("leader", cards(8), 1), Role("worker", cards(8), 6))
    plan = racks(drawn).place(GangRequest(roles, preferred="leaf"))
    assert plan.leaves == 2


def test_nvlink_domains_are_filled_one_after_the_other():
    names = {f"a{number}": "x" if number <= 3 else "y" for number in range(1, 7)}
    cluster = racks({"s": {"a": [8] * 6}}, nvlink=names)
    plan = cluster.place(GangRequest.uniform(cards(8), 4, required="leaf", preferred=NVLINK))
    assert sorted(Counter(names[seat.node] for seat in plan.seats).values()) == [1, 3]


def test_nodes_are_split_evenly():
    plan = racks({"s": {"a": [8, 8, 8]}}).place(GangRequest.uniform(cards(2), 6))
    assert on(plan) == {"a1": 3, "a2": 3}


def test_strategies_differ_in_how_far_they_spread():
    #        spine s                spine t
    #     a: 8 8    b: 8 8       c: 8 8    d: 8 8
    drawn = {"s": {"a": [8, 8], "b": [8, 8]}, "t": {"c": [8, 8], "d": [8, 8]}}

    def spread(strategy, **more):
        return on(racks(drawn).place(GangRequest.uniform(cards(2), 4, strategy=strategy, **more)))

    assert spread(Strategy.CONSOLIDATED) == {"a1": 4}
    assert spread(Strategy.BALANCED) == {"a1": 2, "a2": 2}
    assert sorted(node[0] for node in spread(Strategy.DISTRIBUTED)) == ["a", "b", "c", "d"]
    assert sorted(node[0] for node in spread(Strategy.DISTRIBUTED, required="spine")) == ["a", "a", "b", "b"]
    assert spread(Strategy.PACK) == {"a1": 4}


def test_distributed_takes_the_emptiest_domain():
    plan = racks({"s": {"a": [8, 8]}, "t": {"b": [8, 4]}}).place(
        GangRequest.uniform(cards(4), 2, required="leaf", strategy=Strategy.DISTRIBUTED)
    )
    assert plan.domain == "a"


# --- size classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "size"),
    [
        (1, SizeClass.SINGLE_NODE),
        (3, SizeClass.SINGLE_DOMAIN),
        (4, SizeClass.COMPLETE_DOMAIN),
        (5, SizeClass.ADJACENT_DOMAINS),
        (9, SizeClass.MULTIPLE_DOMAINS),
    ],
)
def test_size_classes_come_from_what_leaves_hold(pods, size):
    plan = racks({"s": {"a": [8] * 4, "b": [8] * 4}, "t": {"c": [8] * 4}}).place(GangRequest.uniform(cards(8), pods))
    assert plan.size_class is size


# --- segments, roles, limits ----------------------------------------------------------------------------


def test_groups_of_ranks_stay_inside_a_leaf():
    #   a: 8 8 8      b: 8 8 8       six pods in groups of two: room for 3 is room for 2
    cluster = racks({"s": {"a": [8, 8, 8], "b": [8, 8, 8]}})
    gang = GangRequest.uniform(cards(8), 4, segments=(Segment(2, "leaf"),))
    plan = cluster.place(gang)
    for first, second in zip(plan.seats[::2], plan.seats[1::2], strict=True):
        assert first.node[0] == second.node[0]
    refusal = cluster.refuse(GangRequest.uniform(cards(8), 6, segments=(Segment(2, "leaf"),)))
    assert (refusal.reason, refusal.room) == ("SegmentsDoNotFit", 4)


def test_groups_nest_in_nodes_and_nvlink_domains():
    #   leaf a, NVLink domains x and y      a1 a2 | a3 a4       two cards each, all of four
    nvlink = {"a1": "x", "a2": "x", "a3": "y", "a4": "y"}
    cluster = racks({"s": {"a": [8, 8, 8, 8]}}, nvlink=nvlink)
    gang = GangRequest.uniform(cards(4), 8, segments=(Segment(2, NODE), Segment(4, NVLINK)))
    nodes = [seat.node for seat in cluster.place(gang).seats]
    assert all(a == b for a, b in zip(nodes[::2], nodes[1::2], strict=True))
    for group in range(0, 8, 4):
        assert len({nvlink[node] for node in nodes[group : group + 4]}) == 1


def test_an_nvlink_domain_is_lower_than_its_leaf_and_faster():
    nvlink = {"a3": "x", "a4": "x"}
    plan = racks({"s": {"a": [8, 8, 8, 8]}}, nvlink=nvlink).place(GangRequest.uniform(cards(8), 2))
    assert (plan.level, plan.domain, plan.nodes) == ("nvlink", "x", ("a3", "a4"))
    assert plan.ring.gb_per_s > 300


def test_an_nvlink_domain_across_leaves_counts_when_it_is_asked_for():
    nvlink = {"a2": "x", "b1": "x"}
    cluster = racks({"s": {"a": [8, 8], "b": [8, 8]}}, nvlink=nvlink)
    assert cluster.place(GangRequest.uniform(cards(8), 2)).level == "leaf"
    assert set(cluster.place(GangRequest.uniform(cards(8), 2, required=NVLINK)).nodes) == {"a2", "b1"}
    both = GangRequest.uniform(cards(8), 2, required="leaf", segments=(Segment(2, NVLINK),))
    assert cluster.refuse(both).reason == "SegmentsDoNotFit"


def test_a_preferred_level_never_costs_a_gang_its_required_one():
    nvlink = {"a2": "x", "b1": "x", "b2": "x"}
    cluster = racks({"s": {"a": [8, 8], "b": [8, 8]}}, nvlink=nvlink)
    plan = cluster.place(GangRequest.uniform(cards(8), 3, required=NVLINK, preferred="leaf"))
    assert (plan.level, plan.preferred_met) == (NVLINK, False)
    near = cluster.place(GangRequest.uniform(cards(8), 2, required=NVLINK, preferred="leaf"))
    assert (set(near.nodes), near.preferred_met) == ({"b1", "b2"}, True)


def test_a_leader_sits_beside_its_first_worker():
    #   a: 8 8 8     a leader of one card, five workers of four
    gang = GangRequest((Role("leader", cards(1), 1), Role("worker", cards(4), 5)), preferred="leaf")
    plan = racks({"s": {"a": [8, 8, 8]}}).place(gang)
    assert [seat.role for seat in plan.seats] == ["leader", *["worker"] * 5]
    assert plan.seats[0].node == plan.seats[1].node
    assert plan.replicas == {"leader": 1, "worker": 5}


def test_roles_are_placed_together_or_not_at_all():
    gang = GangRequest((Role("leader", cards(1), 1), Role("worker", cards(4), 6)))
    cluster = racks({"s": {"a": [8, 8, 8]}})
    refusal = cluster.refuse(gang)
    assert (refusal.reason, refusal.proven) == ("RolesDoNotFitTogether", False)
    assert cluster.snapshot.free.tolist() == [255, 255, 255]


def test_an_elastic_gang_takes_as_many_as_fit_and_no_fewer_than_it_needs():
    cluster = racks(DRAWN)
    plan = cluster.place(GangRequest.uniform(cards(8), 9, min_replicas=2, required="spine"))
    assert (plan.replicas, plan.domain) == ({"worker": 6}, "s")
    refusal = cluster.refuse(GangRequest.uniform(cards(8), 9, min_replicas=7, required="spine"))
    assert (refusal.needed, refusal.room) == (7, 6)


def test_elastic_roles_grow_one_after_the_other():
    gang = GangRequest((Role("leader", cards(4), 1), Role("worker", cards(4), 9, 1)))
    plan = racks({"s": {"a": [8, 8]}}).place(gang)
    assert plan.replicas == {"leader": 1, "worker": 3}


def test_at_most_so_many_nodes_per_leaf():
    cluster = racks({"s": {"a": [8, 8, 8, 8], "b": [8, 8, 8]}})
    plan = cluster.place(GangRequest.uniform(cards(8), 4, max_nodes_per_leaf=2))
    assert Counter(seat.node[0] for seat in plan.seats) == {"a": 2, "b": 2}
    assert cluster.refuse(GangRequest.uniform(cards(8), 5, max_nodes_per_leaf=2)).reason == "TooManyPerDomain"


def test_at_most_so_many_gpus_per_leaf():
    #   a: 8 8 8 8   b: 8 8 8
    cluster = racks({"s": {"a": [8, 8, 8, 8], "b": [8, 8, 8]}})
    plan = cluster.place(GangRequest.uniform(cards(4), 5, max_gpus_per_leaf=12))
    assert Counter(seat.node[0] for seat in plan.seats) in ({"a": 3, "b": 2}, {"a": 2, "b": 3})
    refusal = cluster.refuse(GangRequest.uniform(cards(4), 7, max_gpus_per_leaf=12))
    assert (refusal.reason, refusal.room, refusal.is_hopeless) == ("TooManyPerDomain", 6, True)
    assert refusal.changes[0].text == "raise the limit of GPUs per leaf"
    assert cluster.refuse(GangRequest.uniform(cards(4), 4, required="leaf", max_gpus_per_leaf=12)).room == 3


def test_gpus_per_leaf_are_counted_over_all_roles_and_in_parts_of_cards():
    cluster = racks({"s": {"a": [8, 8], "b": [8, 8]}})
    roles = (Role("server", cards(8), 1), Role("client", Request(Gpus(milli=500)), 4))
    plan = cluster.place(GangRequest(roles, required="spine", max_gpus_per_leaf=9))
    leaf_of_server = plan.seats[0].node[0]
    assert sum(seat.node[0] == leaf_of_server for seat in plan.seats[1:]) <= 2
    assert cluster.refuse(GangRequest(roles, required="leaf", max_gpus_per_leaf=9)).reason == "TooManyPerDomain"


# --- network --------------------------------------------------------------------------------------------


def test_a_demand_on_the_network_is_kept_and_unknown_does_not_meet_it():
    #   leaf to spine four to one: 50 GB/s in a leaf, 12.5 between leaves
    drawn = {"s": {"a": [8, 8], "b": [8, 8]}}
    cluster = racks(drawn, speeds={"leaf": Speed(oversubscription=4.0)})
    assert cluster.place(GangRequest.uniform(cards(8), 2, min_network_gb_per_s=40)).level == "leaf"
    refusal = cluster.refuse(GangRequest.uniform(cards(8), 3, min_network_gb_per_s=40))
    assert refusal.reason == "NetworkTooSlow"
    assert cluster.place(GangRequest.uniform(cards(8), 3, min_network_gb_per_s=12.5)).ring.gb_per_s == 12.5
    unknown = racks(drawn, gb_per_s=0.0)
    assert unknown.refuse(GangRequest.uniform(cards(8), 2, min_network_gb_per_s=1)).reason == "NetworkTooSlow"
    assert unknown.place(GangRequest.uniform(cards(4), 2, min_network_gb_per_s=1)).level == "node"


def test_the_ring_names_its_slowest_step():
    plan = racks({"s": {"a": [8], "b": [8]}}, speeds={"leaf": Speed(oversubscription=2.0)}).place(
        GangRequest.uniform(cards(8), 2)
    )
    assert (plan.ring.gb_per_s, plan.ring.step, set(plan.ring.nodes)) == (25.0, "Network", {"a1", "b1"})
    inside = racks({"s": {"a": [8]}}).place(GangRequest.uniform(cards(4), 2))
    assert (inside.ring.step, inside.ring.nodes) == ("InsideNode", ("a1",))
    alone = racks({"s": {"a": [8]}}).place(GangRequest.uniform(cards(1), 1))
    assert alone.ring.describe() == "not needed (one GPU)"


def test_pods_without_cards_are_placed_and_wait_for_no_ring():
    plan = racks({"s": {"a": [0, 0]}}).place(GangRequest.uniform(Request(Gpus(), cpu_milli=40_000), 2))
    assert on(plan) == {"a1": 1, "a2": 1}
    assert plan.ring.step == "None"


# --- bad requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GangRequest(()), "at least one role"),
        (lambda: GangRequest.uniform(cards(1), 0), "at least 1"),
        (lambda: GangRequest.uniform(cards(1), 2, min_replicas=3), "between 0 and replicas"),
        (lambda: GangRequest.uniform(cards(1), 6, segments=(Segment(4, NODE),)), "multiples of each other"),
        (lambda: GangRequest.uniform(cards(1), 6, segments=(Segment(0, NODE),)), "at least one rank"),
        (lambda: GangRequest.uniform(cards(1), 1, max_nodes_per_leaf=-1), "must not be negative"),
        (lambda: GangRequest.uniform(cards(1), 1, max_gpus_per_leaf=-1), "must not be negative"),
    ],
)
def test_a_gang_that_makes_no_sense_is_refused_in_words(build, words):
    with pytest.raises(errors.Permanent, match=words):
        build()


def test_a_level_that_does_not_exist_is_named():
    with pytest.raises(
        errors.Permanent, match=r"No topology level is named 'row'\. Levels of this cluster: node, nvlink, leaf, spine"
    ):
        racks(DRAWN).place(GangRequest.uniform(cards(8), 2, required="row"))

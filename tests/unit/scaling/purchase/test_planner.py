"""Purchases: the cheapest whole plan, by the scheduler's own fit code."""

from __future__ import annotations

import random

import pytest
from tests.support.builders.purchases import CUT, DOLLAR, ask, draw_asks, draw_pool, pool, verify

from kgwe import errors
from kgwe.placement.fleet.node import Gpus, SpotPolicy
from kgwe.placement.fleet.taints import Taint
from kgwe.scaling.purchase.exact import HighsCover, load_highs
from kgwe.scaling.purchase.planner import PurchasePlanner
from kgwe.scaling.purchase.pools import UnmetReason


def buy(pools, asks, **options):
    plan = PurchasePlanner(pools, **options).plan(asks)
    verify(plan, asks, pools, options.get("in_flight", ()))
    return plan


def test_a_pod_with_3_gpus_buys_a_node_with_4():
    plan = buy([pool("one", 1, 1.0), pool("four", 4, 4.5), pool("eight", 8, 8.0)], [ask("a", 3)])
    assert plan.count_by_pool() == {"four": 1}


def test_two_pods_with_1_gpu_do_not_buy_a_node_with_4_at_more_than_twice_the_price():
    plan = buy([pool("one", 1, 1.0), pool("four", 4, 2.5)], [ask("a"), ask("b")])
    assert plan.count_by_pool() == {"one": 2}


def test_four_pods_buy_one_larger_node_where_it_is_cheaper():
    plan = buy([pool("one", 1, 1.0), pool("four", 4, 2.5)], [ask(f"a{n}") for n in range(4)])
    assert plan.count_by_pool() == {"four": 1}


def test_a_reservation_comes_before_spot_and_spot_before_on_demand():
    pools = [
        pool("reserved", 1, 0.0, limit=1),
        pool("spot", 1, 0.5, limit=1, spot=True),
        pool("on-demand", 1, 1.5),
    ]
    plan = buy(pools, [ask(f"a{n}") for n in range(3)])
    assert plan.count_by_pool() == {"reserved": 1, "spot": 1, "on-demand": 1}


def test_spot_is_not_bought_for_pods_that_avoid_it():
    pools = [pool("spot", 1, 0.5, spot=True), pool("on-demand", 1, 1.5)]
    assert buy(pools, [ask("a", spot=SpotPolicy.AVOID)]).count_by_pool() == {"on-demand": 1}
    assert buy(pools[:1], [ask("a", spot=SpotPolicy.AVOID)]).count_by_pool() == {"spot": 1}


def test_a_gang_that_no_pool_can_complete_buys_nothing():
    plan = buy([pool("eight", 8, 20.0, limit=12, leaf_nodes=12)], [ask("gang", 8, pods=16)])
    assert not plan.nodes
    assert [each.reason for each in plan.unmet] == [UnmetReason.LIMIT]


def test_a_gang_in_one_leaf_is_bought_only_where_the_leaf_is_promised():
    near, far = pool("near", 8, 25.0, leaf_nodes=16), pool("far", 8, 20.0)
    plan = buy([near, far], [ask("gang", 8, pods=16, required="leaf")])
    assert plan.count_by_pool() == {"near": 16}
    assert buy([near, far], [ask("gang", 8, pods=16)]).count_by_pool() == {"far": 16}
    refused = buy([far], [ask("gang", 8, pods=16, required="leaf")])
    assert not refused.nodes
    assert refused.unmet[0].reason is UnmetReason.TOPOLOGY


def test_single_pods_use_the_room_that_a_gang_leaves():
    plan = buy([pool("eight", 8, 20.0), pool("one", 1, 3.0)], [ask("gang", 6, pods=2), ask("a", 2), ask("b", 2)])
    assert plan.count_by_pool() == {"eight": 2}


def test_nodes_in_flight_are_used_before_anything_is_bought():
    four = pool("four", 4, 4.0)
    plan = buy([four], [ask(f"a{n}") for n in range(5)], in_flight=[four.make_node(7000)])
    assert plan.count_by_pool() == {"four": 1}


def test_a_gang_whose_nodes_are_in_flight_is_not_bought_twice():
    eight = pool("eight", 8, 20.0, leaf_nodes=16)
    gang = ask("gang", 8, pods=4, required="leaf")
    coming = [eight.make_node(7000 + number) for number in range(4)]
    together = {node.name: "group-1" for node in coming}
    assert not buy([eight], [gang], in_flight=coming, groups=together).nodes
    second = buy([eight], [gang, ask("other", 8, pods=4, required="leaf")], in_flight=coming, groups=together)
    assert second.count_by_pool() == {"eight": 4}
    # Nodes that were not bought together promise no leaf.
    assert buy([eight], [gang], in_flight=coming).count_by_pool() == {"eight": 4}


def test_mig_and_shares_are_bought_as_the_node_will_offer_them():
    pools = [
        pool("cut", 1, 2.0, cut={0: CUT}),
        pool("shared", 1, 1.0, shares_per_gpu=4),
        pool("whole", 1, 1.5, shares_per_gpu=0),
    ]
    slices = [ask(f"s{n}", Gpus(profile="1g.10gb", slices=1)) for n in range(2)]
    shares = [ask(f"q{n}", Gpus(milli=250)) for n in range(5)]
    assert buy(pools, slices).count_by_pool() == {"cut": 2}
    assert buy(pools, shares).count_by_pool() == {"shared": 2}
    assert buy(pools, [ask("w")]).count_by_pool() == {"whole": 1}


def test_taints_models_and_limits_are_respected():
    pools = [
        pool("tainted", 1, 0.5, taints=(Taint("team", "other", "NoSchedule"),)),
        pool("l4", 1, 0.6, model="NVIDIA-L4"),
        pool("a100", 1, 2.0, limit=1),
    ]
    plan = buy(pools, [ask("a", model="A100"), ask("b", model="A100"), ask("c", model="H100")])
    assert plan.count_by_pool() == {"a100": 1}
    assert {each.reason for each in plan.unmet} == {UnmetReason.LIMIT, UnmetReason.NO_POOL}


def test_a_gang_that_fits_on_no_pool_names_the_pools():
    (unmet,) = buy([pool("burst", 8, 1.0)], [ask("gang", 16, pods=4)]).unmet
    assert unmet.message == (
        "nodes are bought for all 4 pods of the gang, or for none: pool burst has nodes with fewer than 16 whole GPUs"
    )
    (short,) = buy([pool("a", 1, 1.0), pool("b", 1, 1.0)], [ask("pod", 1, cpu_milli=9000)]).unmet
    assert short.message.endswith("pools a, b have nodes with insufficient CPU")


def test_a_budget_stops_purchases_and_never_splits_a_gang():
    pools = [pool("one", 1, 1.0)]
    plan = buy(pools, [ask(f"a{n}") for n in range(4)], budget=2 * DOLLAR)
    assert plan.price == 2 * DOLLAR
    assert {each.reason for each in plan.unmet} == {UnmetReason.BUDGET}
    refused = buy(pools, [ask("gang", 1, pods=3)], budget=2 * DOLLAR)
    assert not refused.nodes
    assert refused.unmet[0].reason is UnmetReason.BUDGET


def test_without_pools_everything_is_unmet():
    plan = buy([], [ask("a"), ask("gang", 1, pods=2)])
    assert {each.reason for each in plan.unmet} == {UnmetReason.NO_POOL}


def test_a_pool_without_a_price_is_refused():
    with pytest.raises(errors.Permanent):
        pool("p", 1, 1.0, limit=-1)


def check_random_cases(first: int, count: int) -> None:
    for seed in range(first, first + count):
        random_ = random.Random(seed)
        pools = [draw_pool(random_, number) for number in range(random_.randint(1, 5))]
        coming = [each.make_node(7000 + number) for number, each in enumerate(pools) if random_.random() < 0.3]
        buy(pools, draw_asks(random_, 14), in_flight=coming)


def test_the_engine_accepts_what_the_plan_promises():
    check_random_cases(0, 60)


@pytest.mark.slow
def test_the_engine_accepts_what_10000_plans_promise():
    check_random_cases(1000, 10_000)


@pytest.mark.skipif(load_highs() is None, reason="needs highspy")
def test_the_plan_by_classes_is_hardly_dearer_than_the_exact_one():
    ratios = []
    for seed in range(40):
        random_ = random.Random(seed)
        pools = [draw_pool(random_, number) for number in range(random_.randint(2, 4))]
        asks = draw_asks(random_, 8, gangs=False)
        exact = buy(pools, asks, exact=HighsCover())
        quick = buy(pools, asks)
        assert len(exact.unmet) <= len(quick.unmet)
        if len(exact.unmet) == len(quick.unmet) and exact.price:
            ratios.append(quick.price / exact.price)
    assert ratios
    assert min(ratios) >= 1 - 1e-9, "nothing is cheaper than the exact plan"
    assert sum(ratios) / len(ratios) < 1.02


@pytest.mark.skipif(load_highs() is None, reason="needs highspy")
def test_an_instance_too_large_for_the_exact_plan_is_planned_by_classes():
    pools, asks = [pool("one", 1, 1.0), pool("four", 4, 2.5)], [ask(f"a{n}") for n in range(6)]
    assert buy(pools, asks, exact=HighsCover(most_per_pool=1)).price == buy(pools, asks).price


@pytest.mark.skipif(load_highs() is None, reason="needs highspy")
def test_the_exact_plan_keeps_the_limits_of_pools():
    pools = [pool("cheap", 1, 1.0, limit=1), pool("dear", 1, 3.0)]
    plan = buy(pools, [ask("a"), ask("b")], exact=HighsCover())
    assert plan.count_by_pool() == {"cheap": 1, "dear": 1}

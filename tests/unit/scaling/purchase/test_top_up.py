"""Gangs that use free nodes of the fleet, and buy only the rest."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support.builders.purchases import DOLLAR, ask, draw_pool, pool

from kgwe.model.network.domains import Place, build_tree
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.purchase.planner import PurchasePlanner
from kgwe.scaling.purchase.pools import UnmetReason


class Fleet:
    def __init__(self, nodes):
        self.snapshot = Snapshot.from_nodes(nodes)
        places = [Place(node.name, (f"leaf{number // 2}",)) for number, node in enumerate(nodes)]
        self.tree = build_tree(places, ("leaf",))


def make_fleet(count, each=None):
    made = each or pool("old", 8, 20.0)
    return ScratchFleet(Fleet([replace(made.template, name=f"old-{number}") for number in range(count)]))


def test_a_gang_buys_only_the_nodes_that_are_missing():
    fleet = make_fleet(3)
    before = fleet.snapshot.free.copy()
    plan = PurchasePlanner([pool("new", 8, 20.0)], existing=fleet).plan([ask("gang", 8, pods=5)])
    assert plan.count_by_pool() == {"new": 2}
    assert len({seat.node for seat in plan.seats["gang"]}) == 5
    assert (fleet.snapshot.free == before).all(), "the fleet is as it was"


def test_two_gangs_do_not_use_the_same_free_node():
    plan = PurchasePlanner([pool("new", 8, 20.0)], existing=make_fleet(3)).plan(
        [ask("a", 8, pods=2), ask("b", 8, pods=2)]
    )
    assert plan.count_by_pool() == {"new": 2}, "the first gang is asked for as refused; it has 2 of the 3 nodes"


def test_a_gang_in_one_leaf_is_bought_whole():
    plan = PurchasePlanner([pool("new", 8, 20.0, leaf_nodes=8)], existing=make_fleet(3)).plan(
        [ask("gang", 8, pods=4, required="leaf")]
    )
    assert plan.count_by_pool() == {"new": 4}


def test_limits_and_budgets_hold():
    gang = ask("gang", 8, pods=5)
    limited = PurchasePlanner([pool("new", 8, 20.0, limit=1)], existing=make_fleet(3)).plan([gang])
    assert (limited.nodes, limited.unmet[0].reason) == ((), UnmetReason.LIMIT)
    poor = PurchasePlanner([pool("new", 8, 20.0)], existing=make_fleet(3), budget=30 * DOLLAR).plan([gang])
    assert (poor.nodes, poor.unmet[0].reason) == ((), UnmetReason.BUDGET)
    enough = PurchasePlanner([pool("new", 8, 20.0)], existing=make_fleet(3), budget=40 * DOLLAR).plan([gang])
    assert enough.count_by_pool() == {"new": 2}


def check_random_cases(first, count):
    """What is promised on free and on new nodes, the fit code accepts; no more is bought than without the fleet."""
    for seed in range(first, first + count):
        random_ = random.Random(seed)
        pools = [draw_pool(random_, number) for number in range(random_.randint(1, 3))]
        fleet = make_fleet(random_.randint(1, 5), pool("old", random_.choice((2, 4, 8)), 9.0))
        fitter = Fitter(fleet.snapshot)
        for number in range(len(fleet.snapshot)):
            if random_.random() < 0.5 and (grant := fitter.find_grant(ask("x", 1).request, number)) is not None:
                fleet.snapshot.commit(grant)
        asks = [ask(f"g{n}", random_.choice((1, 2, 4, 8)), pods=random_.randint(2, 6)) for n in range(3)]
        plan = PurchasePlanner(pools, existing=fleet).plan(asks)
        nodes = [*fleet.snapshot.nodes, *(node for _, node in plan.nodes)]
        joined = Snapshot.from_nodes(nodes)
        width = fleet.snapshot.milli.shape[1]
        joined.free[: len(fleet.snapshot)] = fleet.snapshot.free
        joined.milli[: len(fleet.snapshot), :width] = fleet.snapshot.milli
        joined.cpu_milli[: len(fleet.snapshot)] = fleet.snapshot.cpu_milli
        joined.memory_bytes[: len(fleet.snapshot)] = fleet.snapshot.memory_bytes
        check = Fitter(joined)
        for each in asks:
            seats = plan.seats.get(each.owner, ())
            assert len(seats) in {0, each.pods}
            for seat in seats:
                node = joined.index[seat.node]
                assert check.check_nodes(each.request, np.array([node]))[0] == FitStatus.FITS, seed
                joined.commit(replace(seat.grant, node=node))
        assert len(plan.seats) >= len(PurchasePlanner(pools).plan(asks).seats), seed


def test_the_engine_accepts_what_is_promised_beside_existing_nodes():
    check_random_cases(0, 25)


@pytest.mark.slow
def test_the_engine_accepts_300_such_plans():
    check_random_cases(100, 300)

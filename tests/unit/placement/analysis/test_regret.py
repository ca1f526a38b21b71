"""What work lost by where it was put."""

from __future__ import annotations

import pytest
from tests.support.builders.places import Place
from tests.support.builders.plans import Fleet, whole

from kgwe.placement.analysis.regret import Hindsight, Regret
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.refusal import Refusal
from kgwe.records import rows


def look_back(fleet: Fleet, name: str, ask: Ask, mix=None) -> Regret:
    work = next(each for each in fleet.running if each.name == name)
    grants = [member.grant for member in work.members if member.grant is not None]
    before = rows.digest(fleet.snapshot)
    found = Hindsight(Place(fleet)).measure_regret(ask, grants, mix or {ask.request: 1})
    assert rows.digest(fleet.snapshot) == before
    assert isinstance(found, Regret), found
    return found


def test_a_gang_over_two_leaves_that_one_could_hold_regrets_its_network() -> None:
    fleet = Fleet("ab cd", cards=4)
    fleet.run("gang", "ac", 4)
    found = look_back(fleet, "gang", Ask("gang", whole(4), pods=2))
    assert (found.actual.leaves, found.best.leaves, found.leaves) == (2, 1, 1)
    assert found.actual.gb_per_s is not None
    assert found.best.gb_per_s is not None
    assert found.best.gb_per_s >= found.actual.gb_per_s > 0
    assert not found.is_none


def test_what_is_where_the_planner_would_put_it_regrets_nothing() -> None:
    fleet = Fleet("ab cd", cards=4)
    fleet.run("gang", "ab", 4)
    found = look_back(fleet, "gang", Ask("gang", whole(4), pods=2))
    assert found.is_none
    assert (found.gb_per_s, found.leaves, found.islands, found.fragmented) == (0.0, 0, 0, 0.0)


def test_a_pod_divided_over_nodes_loses_what_one_node_gives() -> None:
    fleet = Fleet("ab", cards=4)
    fleet.run("gang", "ab", 2)
    found = look_back(fleet, "gang", Ask("gang", whole(2), pods=2))
    assert (found.actual.nodes, found.best.nodes) == (2, 1)
    assert found.gb_per_s > 0


def test_a_single_card_that_breaks_an_island_is_counted() -> None:
    fleet = Fleet("ab", cards=4)
    fleet.run("other", "a", 1)
    fleet.run("pod", "b", 1)
    found = look_back(fleet, "pod", Ask("pod", whole(1)))
    assert found.best.islands == 0
    assert found.islands == found.actual.islands > 0
    assert found.plan.nodes == ("a",)


def test_cards_that_others_can_no_longer_use_are_fragmentation() -> None:
    fleet = Fleet("ab", cards=4)
    fleet.run("other", "a", 2)
    fleet.run("pod", "b", 2)
    found = look_back(fleet, "pod", Ask("pod", whole(2)), {whole(4): 1})
    # Beside the other it would have left a whole node free for the four that are asked for.
    assert (found.actual.fragmented, found.best.fragmented) == (4000.0, 0.0)


def test_one_card_alone_has_no_ring() -> None:
    fleet = Fleet("a", cards=4)
    fleet.run("pod", "a", 1)
    found = look_back(fleet, "pod", Ask("pod", whole(1)))
    assert found.actual.gb_per_s is None
    assert found.gb_per_s == 0.0


def test_work_the_planner_would_have_refused_is_said_to_be_so() -> None:
    fleet = Fleet("a b", cards=4)
    fleet.run("gang", "ab", 4)
    grants = [member.grant for member in fleet.running[0].members if member.grant is not None]
    ask = Ask("gang", whole(4), pods=2, nearness=TopologyRequest(required="leaf"))
    found = Hindsight(Place(fleet)).measure_regret(ask, grants, {})
    assert isinstance(found, Refusal)
    assert found.code == "TooLarge"


@pytest.mark.parametrize("at", ["ab", "ac", "ad", "cd"])
def test_the_planners_own_choice_is_never_slower_or_wider(at: str) -> None:
    fleet = Fleet("ab cd", cards=4)
    fleet.run("gang", at, 4)
    found = look_back(fleet, "gang", Ask("gang", whole(4), pods=2))
    assert found.best.leaves <= found.actual.leaves
    assert (found.best.gb_per_s or 0) >= (found.actual.gb_per_s or 0)

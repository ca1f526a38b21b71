"""Gangs that are there in part: the rest goes where the gang stays together, and nobody moves."""

from __future__ import annotations

import pytest
from tests.support.builders.racks import cards, racks

from kgwe.model.units import amounts
from kgwe.placement.disruption.partial_gang import PartialGang, PartialMember, complete_gang
from kgwe.placement.gang.request import GangRequest, Segment
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Refusal


def partial(*nodes: str, gpus: int = 8, least: int | None = None, **gang) -> PartialGang:
    members = tuple(PartialMember(f"p{rank}", cards(gpus), node) for rank, node in enumerate(nodes))
    return PartialGang(members, GangRequest.uniform(cards(gpus), len(nodes), **gang), least)


def places(cluster, part: PartialGang) -> dict[str, str]:
    found = complete_gang(Fitter(cluster.snapshot), cluster.tree, part)
    return {pod: move.node for pod, move in found.items()}


def test_the_missing_pod_joins_the_domain_of_the_others():
    """a: two nodes, one of them the gang's; b: four empty nodes, where a gang of its own would go."""
    cluster = racks({"s": {"a": [0, 8], "b": [8, 8, 8, 8]}})
    assert places(cluster, partial("a1", "", required="leaf")) == {"p1": "a2"}


def test_without_room_there_it_goes_nowhere_though_there_is_room_elsewhere():
    cluster = racks({"s": {"a": [0, 4], "b": [8, 8]}})
    assert places(cluster, partial("a1", "", required="leaf")) == {}
    assert places(cluster, partial("a1", "")) == {"p1": "b1"}, "nothing is required: as near as can be"


def test_each_joins_its_own_segment():
    cluster = racks({"s": {"a": [0, 8], "b": [8, 0]}})
    part = partial("a1", "", "", "b2", segments=(Segment(2, "leaf"),))
    assert places(cluster, part) == {"p1": "a2", "p2": "b1"}


def test_who_has_a_place_is_never_moved():
    """The leaf is full but for half a node: the gang would fit into the other leaf, if all of it moved."""
    cluster = racks({"s": {"a": [0, 4], "b": [8, 8]}})
    assert places(cluster, partial("a1", "", required="leaf")) == {}


def test_an_elastic_gang_takes_what_there_is():
    cluster = racks({"s": {"a": [0, 8]}})
    assert places(cluster, partial("a1", "", "")) == {}
    assert places(cluster, partial("a1", "", "", least=2)) == {"p1": "a2"}


def test_a_pod_whose_node_is_gone_has_no_place_and_gets_none_here():
    cluster = racks({"s": {"a": [0, 8]}})
    assert places(cluster, partial("a1", "gone")) == {}


class Scene:
    """A cluster to make_plan on."""

    def __init__(self, cluster) -> None:
        self.snapshot, self.tree, self.gangs = cluster.snapshot, cluster.tree, cluster.planner
        self.fitter = Fitter(cluster.snapshot)
        self.engine = Engine(cluster.snapshot, fitter=self.fitter)


def ask(part: PartialGang) -> Ask:
    return Ask("g", cards(8), {amounts.GPU: 8}, pods=part.missing, gang=GangRequest.uniform(cards(8), 1), partial=part)


def test_a_plan_says_whose_its_seats_are():
    cluster = racks({"s": {"a": [0, 8], "b": [8, 8]}})
    found = make_plan(Scene(cluster), ask(partial("a1", "", required="leaf")))
    assert isinstance(found, Plan)
    assert (found.pods, found.nodes) == (("p1",), ("a2",))
    assert found.amounts_by_seat[0][amounts.GPU] == 8


def test_a_refusal_says_what_it_cannot_join():
    cluster = racks({"s": {"a": [0, 4], "b": [8, 8]}})
    found = make_plan(Scene(cluster), ask(partial("a1", "", required="leaf")))
    assert isinstance(found, Refusal)
    assert found.message == "No room for 1 of 2 gang members near the 1 already placed."


def test_gangs_with_different_neighbours_are_different_shapes():
    assert ask(partial("a1", "")).without_identity() != ask(partial("b1", "")).without_identity()


@pytest.mark.parametrize(
    ("nodes", "least", "broken"),
    [(("n", ""), None, True), (("n", "n"), None, False), (("n", "n", ""), 2, False), (("n", "", ""), 2, True)],
)
def test_a_gang_is_broken_while_it_has_fewer_places_than_it_can_go_on_with(nodes, least, broken):
    assert partial(*nodes, least=least).is_broken is broken

"""The live fleet: who holds which cards when nodes and holders come, change and go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import small_fleet
from tests.support.builders.plans import state
from tests.support.machines.reference import nvswitch

from kgwe import errors
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.pod.engine import Decision

TREE = domains.build_tree((), ())


def fleet(*nodes):
    made = LiveFleet()
    made.set_nodes(nodes or [small_fleet.node(0), small_fleet.node(1)], TREE)
    return made


def cards(count, node="n0", known=0):
    return Holding(node, {amounts.GPU: count, amounts.PODS: 1}, known)


def slices(profile, count, known=()):
    return Holding("n0", {f"{amounts.MIG_PREFIX}{profile}": count, amounts.PODS: 1}, slices=known)


def free(made):
    return {node.name: int(made.snapshot.free[i]).bit_count() for i, node in enumerate(made.snapshot.nodes)}


def check(made):
    assert state(made.recount()) == state(made.snapshot)


class TestHolding:
    def test_a_pod_holds_cards_until_it_is_dropped(self):
        made = fleet()
        assert made.hold("p", cards(3))
        assert free(made) == {"n0": 1, "n1": 4}
        assert not made.hold("p", cards(3)), "said again, it is no news"
        assert made.drop("p")
        assert not made.drop("p")
        assert free(made) == {"n0": 4, "n1": 4}

    def test_what_is_known_of_its_cards_is_believed(self):
        made = fleet()
        made.hold("p", cards(2, known=0b1010))
        assert made.holding("p").gpus == 0b1010
        assert made.grants("p")[0].gpus == 0b1010

    def test_a_mask_that_names_too_many_cards_gives_only_those_it_holds(self):
        made = fleet()
        made.hold("p", cards(1, known=0b1111))
        assert free(made)["n0"] == 3

    def test_a_mask_that_names_too_few_is_filled_up(self):
        made = fleet()
        made.hold("p", cards(3, known=0b1000))
        assert made.holding("p").gpus & 0b1000
        assert free(made)["n0"] == 1

    def test_a_guess_gives_way_to_what_is_known(self):
        made = fleet()
        made.hold("guess", cards(2))
        taken = made.holding("guess").gpus
        made.hold("known", cards(2, known=taken))
        assert made.holding("known").gpus == taken
        assert made.holding("guess").gpus == 0b1111 & ~taken
        check(made)

    def test_of_two_that_are_known_to_have_one_card_the_first_keeps_it(self):
        made = fleet()
        made.hold("first", cards(1, known=1))
        made.hold("second", cards(1, known=1))
        assert made.holding("first").gpus == 1
        assert made.grants("second")[0].gpus not in (0, 1)

    def test_who_is_known_to_have_a_card_gets_it_when_the_other_who_is_has_gone(self):
        made = fleet()
        made.hold("first", replace(cards(1, known=1), observed=True))
        made.hold("second", replace(cards(1, known=1), observed=True))
        assert made.holding("second").gpus != 1
        made.drop("first")
        assert made.holding("second").gpus == 1
        check(made)

    def test_a_plan_gives_way_to_what_the_kubelet_says(self):
        made = fleet()
        made.hold("seat", cards(2, known=0b0011))
        made.hold("guess", cards(1))
        made.hold("p", replace(cards(2, known=0b0011), observed=True))
        assert made.holding("p").gpus == 0b0011
        assert {made.holding(key).gpus.bit_count() for key in ("seat", "guess")} == {1}
        assert not made.is_fully_booked("seat") or not made.is_fully_booked("guess"), "five cards of four"
        made.hold("seat", replace(cards(2, known=0b0011), observed=True))
        assert made.holding("p").gpus == 0b0011, "of two that are certain the first keeps it"
        made.drop("guess")
        assert made.holding("seat").gpus == 0b1100
        check(made)

    def test_two_pods_that_got_each_others_cards(self):
        made = fleet()
        made.hold("a", cards(2, known=0b0011))
        made.hold("b", cards(2, known=0b1100))
        assert made.hold("a", replace(cards(2, known=0b1100), observed=True))
        assert made.hold("b", replace(cards(2, known=0b0011), observed=True))
        assert (made.holding("a").gpus, made.holding("b").gpus) == (0b1100, 0b0011)
        check(made)

    def test_that_a_plan_came_true_is_remembered(self):
        made = fleet()
        made.hold("p", cards(2, known=0b0011))
        assert made.hold("p", replace(cards(2, known=0b0011), observed=True))
        made.hold("late", cards(2, known=0b0011))
        assert made.holding("p").gpus == 0b0011
        assert made.holding("late").gpus == 0b1100

    def test_more_than_there_is_is_counted_as_far_as_it_goes_and_filled_up_later(self):
        made = fleet()
        made.hold("a", cards(3))
        made.hold("b", cards(3))
        assert free(made)["n0"] == 0
        assert not made.is_fully_booked("b")
        made.drop("a")
        assert made.is_fully_booked("b")
        assert free(made)["n0"] == 1
        check(made)

    def test_cpu_may_be_overbooked(self):
        made = fleet()
        made.hold("p", Holding("n0", {amounts.CPU: 100_000, amounts.PODS: 1}))
        assert made.snapshot.cpu_milli[0] == 64_000 - 100_000

    def test_a_pod_on_a_node_that_nobody_knows_counts_when_the_node_comes(self):
        made = fleet()
        made.hold("p", cards(2, "n5"))
        assert free(made) == {"n0": 4, "n1": 4}
        assert not made.is_fully_booked("p")
        made.set_nodes([*made.snapshot.nodes, small_fleet.node(5)], TREE)
        assert free(made)["n5"] == 2


class TestMoving:
    def test_a_place_changes_its_holder_and_nothing_else(self):
        made = fleet()
        made.hold("seat", cards(2))
        held = made.holding("seat").gpus
        made.move("seat", "pod", cards(2))
        assert "seat" not in made
        assert made.holding("pod").gpus == held

    def test_nobody_who_waits_for_cards_gets_in_between(self):
        made = fleet()
        made.hold("seat", cards(4))
        made.hold("greedy", cards(4))
        made.move("seat", "pod", cards(4))
        assert made.is_fully_booked("pod")
        assert not made.is_fully_booked("greedy")

    def test_one_that_was_counted_already_is_counted_once(self):
        made = fleet()
        made.hold("seat", cards(2, known=0b0011))
        made.hold("pod", cards(2))
        made.move("seat", "pod", cards(2, known=0b0011))
        assert free(made)["n0"] == 2
        assert made.holding("pod").gpus == 0b0011

    def test_another_place_frees_the_old_one(self):
        made = fleet()
        made.hold("p", cards(2))
        made.hold("p", cards(2, "n1"))
        assert free(made) == {"n0": 4, "n1": 2}


class TestPlans:
    def test_all_of_a_plan_is_reserved_or_nothing(self):
        made = fleet()
        first = made.engine.decide(Request(Gpus(count=3)))
        assert isinstance(first, Decision)
        before = state(made.snapshot)
        with pytest.raises(errors.InvariantBroken):
            made.reserve_plan({"a": {}, "b": {}}, [first.grant, first.grant])
        assert state(made.snapshot) == before
        assert "a" not in made

    def test_nobody_holds_two_places(self):
        made = fleet()
        found = made.engine.decide(Request(Gpus(count=1)))
        assert isinstance(found, Decision)
        made.hold("p", cards(1))
        with pytest.raises(errors.InvariantBroken, match="two places"):
            made.reserve_plan({"p": {}}, [found.grant])
        check(made)


class TestNodes:
    def test_what_runs_on_nodes_that_did_not_change_stays_as_it_was(self):
        made = fleet()
        made.hold("p", cards(2, known=0b0110))
        first, second = made.snapshot.nodes
        made.set_nodes([first, replace(second, ready=False)], TREE)
        assert made.holding("p").gpus == 0b0110
        check(made)

    @pytest.mark.parametrize("width", [2, 8])
    def test_a_node_may_become_narrower_or_wider_beside_others(self, width):
        made = fleet()
        made.hold("p", cards(2))
        first, second = made.snapshot.nodes
        other = replace(second.shape, wiring=nvswitch(width))
        made.set_nodes([first, replace(second, shape=other)], TREE)
        assert free(made) == {"n0": 2, "n1": width}
        check(made)

    def test_the_last_slices_of_a_profile_may_go(self):
        made = fleet(small_fleet.node(0), small_fleet.node(1, cut=1))
        first, second = made.snapshot.nodes
        made.set_nodes([first, replace(second, cut={})], TREE)
        assert made.snapshot.slices == {}
        check(made)

    def test_a_guess_is_kept_when_a_node_changes_and_gives_way_when_its_card_dies(self):
        made = fleet(small_fleet.node(0))
        made.hold("p", cards(1))
        had = made.holding("p").gpus
        (node,) = made.snapshot.nodes
        made.set_nodes([replace(node, ready=False)], TREE)
        assert made.holding("p").gpus == had
        made.set_nodes([replace(node, healthy=0b1111 & ~had)], TREE)
        assert made.grants("p")[0].gpus not in (0, had)
        assert free(made)["n0"] == 2

    def test_known_cards_are_booked_first_when_a_node_comes_back(self):
        made = fleet(small_fleet.node(0))
        made.hold("guess", cards(2))
        made.hold("known", cards(2, known=0b0011))
        (node,) = made.snapshot.nodes
        made.set_nodes([], TREE)
        made.set_nodes([node], TREE)
        assert made.holding("known").gpus == 0b0011
        check(made)


class TestSlices:
    def test_slices_are_held_by_profile_and_place(self):
        made = fleet(small_fleet.node(0, cut=2))
        made.hold("p", slices("1g.10gb", 1, known=((1, 6),)))
        assert made.holding("p").slices == ((1, 6),)
        made.hold("q", slices("1g.10gb", 2))
        assert made.holding("q").slices == ((0, 6),)
        assert not made.is_fully_booked("q")
        made.drop("p")
        assert made.is_fully_booked("q")
        check(made)

    def test_a_guess_gives_way_here_too(self):
        made = fleet(small_fleet.node(0, cut=2))
        made.hold("guess", slices("2g.20gb", 1))
        (had,) = made.holding("guess").slices
        made.hold("known", slices("2g.20gb", 1, known=(had,)))
        assert made.holding("known").slices == (had,)
        assert made.holding("guess").slices not in ((), (had,))
        check(made)


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_who_has_a_card_that_fails_is_not_booked_on_that_of_a_neighbour(certain, order):
    node = small_fleet.node(0)
    made = fleet(node)
    known = {"a": 0b1100, "b": 0b0011}
    for key in order:
        made.hold(key, replace(cards(2, known=known[key]), observed=certain))
    made.set_nodes([replace(node, healthy=0b1011)], TREE)
    assert {key: made.grants(key)[0].gpus for key in known} == {"a": 0b1000, "b": 0b0011}
    assert not made.is_fully_booked("a")
    made.drop("b")
    assert made.is_fully_booked("a"), "whoever asks for two counts for two as soon as there is another"
    check(made)

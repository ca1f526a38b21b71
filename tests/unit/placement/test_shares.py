"""Nodes that divide their cards into equal shares: who fits, who gets which card, and who holds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.support.builders import small_fleet
from tests.support.builders.plans import state

from kgwe.model.network import domains
from kgwe.model.network.domains import Place
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Refusal

HALF = Request(Gpus(milli=500))
QUARTER = Request(Gpus(milli=250))
WHOLE = Request(Gpus(count=1))


def fleet(*pieces):
    """Nodes n0, n1, … of four cards each, divided like that."""
    made = LiveFleet()
    nodes = [replace(small_fleet.node(number), shares_per_gpu=each) for number, each in enumerate(pieces)]
    made.set_nodes(nodes, domains.build_tree([Place(node.name) for node in nodes], ()))
    return made


def share(node="n0", known=0, **more):
    return Holding(node, {amounts.SHARED: 1, amounts.PODS: 1}, known, **more)


def on_cards(made, keys):
    """Card -> how many of them have a share of it."""
    return Counter(grant.share[0] for key in keys for grant in made.grants(key) if grant.share)


def check(made):
    assert state(made.recount()) == state(made.snapshot)


class TestFit:
    def test_a_share_goes_only_where_cards_are_divided_like_that(self):
        verdicts = fleet(0, 2, 4).fitter.check_nodes
        assert verdicts(HALF).tolist() == [FitStatus.TOO_FEW_GPUS, FitStatus.FITS, FitStatus.TOO_FEW_GPUS]
        assert verdicts(QUARTER).tolist() == [FitStatus.TOO_FEW_GPUS, FitStatus.TOO_FEW_GPUS, FitStatus.FITS]

    def test_a_whole_card_is_never_one_that_is_divided(self):
        made = fleet(0, 2)
        assert made.fitter.check_nodes(WHOLE).tolist() == [FitStatus.FITS, FitStatus.TOO_FEW_GPUS]
        assert made.fitter.count_pods(WHOLE).tolist() == [4, 0]

    def test_where_nothing_is_said_any_share_can_be_cut_off(self):
        assert fleet(None).fitter.check_nodes(HALF).tolist() == [FitStatus.FITS]

    def test_what_most_nodes_do_is_what_is_usual(self):
        assert fleet(0, 0, 0).fitter.usual_shares == 0
        assert fleet(0, 4, 4, 2).fitter.usual_shares == 4
        assert fleet(4, 2).fitter.usual_shares == 2, "of equally many the larger share"
        assert fleet(0, 4, 2, 4).fitter.share_counts == (4, 2)

    def test_a_node_tells_its_own_and_no_node_what_is_usual(self):
        made = fleet(4, 2, 2)
        assert (made.shares_per_gpu("n0"), made.shares_per_gpu(""), made.shares_per_gpu("gone")) == (4, 2, 2)


class TestHolding:
    def test_pods_of_others_are_packed_two_to_a_card(self):
        made = fleet(2)
        for number in range(8):
            made.hold(f"p{number}", share())
            check(made)
        assert set(on_cards(made, [f"p{n}" for n in range(8)]).values()) == {2}
        made.hold("late", share())
        assert not made.is_fully_booked("late"), "there are no more"
        made.drop("p3")
        assert made.is_fully_booked("late"), "what comes free is its"
        check(made)

    def test_the_kubelet_is_believed_and_guesses_give_way(self):
        made = fleet(2)
        made.hold("a", share())
        made.hold("b", share())
        full = made.holding("a").gpus
        assert made.holding("b").gpus == full, "guessed onto the card that is shared already"
        made.hold("c", share(known=full, observed=True))
        made.hold("d", share(known=full, observed=True))
        assert made.holding("c").gpus == made.holding("d").gpus == full
        assert not (made.holding("a").gpus | made.holding("b").gpus) & full
        check(made)

    def test_a_share_is_as_large_as_its_node_divides(self):
        made = fleet(2, 3)
        made.hold("a", share("n0"))
        made.hold("b", share("n1"))
        assert (made.grants("a")[0].share[1], made.grants("b")[0].share[1]) == (500, 333)

    def test_where_cards_are_no_longer_divided_whoever_is_known_to_share_one_keeps_others_away(self):
        made = fleet(2)
        made.hold("a", share(known=0b0100, observed=True))
        made.hold("b", share(known=0b0100, observed=True))
        whole = [replace(small_fleet.node(0), shares_per_gpu=0)]
        made.set_nodes(whole, domains.build_tree((), ()))
        assert int(made.snapshot.free[0]) == 0b1011
        made.drop("a")
        assert int(made.snapshot.free[0]) == 0b1011, "the other still has it"
        made.drop("b")
        assert int(made.snapshot.free[0]) == 0b1111
        made.hold("c", share())
        made.set_nodes([replace(small_fleet.node(0), shares_per_gpu=2)], domains.build_tree((), ()))
        assert made.is_fully_booked("c"), "they are divided again"
        check(made)

    def test_where_more_are_known_to_share_a_card_than_it_has_pieces_no_other_card_is_taken(self):
        made = fleet(4)
        for number in range(4):
            made.hold(f"p{number}", share(known=1, observed=True))
        made.set_nodes([replace(small_fleet.node(0), shares_per_gpu=2)], domains.build_tree((), ()))
        assert on_cards(made, [f"p{n}" for n in range(4)]) == {0: 2}
        made.drop("p0")
        assert on_cards(made, [f"p{n}" for n in range(1, 4)]) == {0: 2}
        check(made)

    def test_a_pod_with_a_whole_card_and_a_share_brings_nothing_down(self):
        """Nobody would place it, but whoever makes a pod may name its node."""
        made = fleet(2)
        made.hold("odd", Holding("n0", {amounts.GPU: 1, amounts.SHARED: 2, amounts.PODS: 1}))
        cards = [grant.whole_or_shared for grant in made.grants("odd")]
        assert cards[0] not in cards[1:]
        check(made)
        made.drop("odd")
        check(made)

    def test_a_sick_card_takes_its_shares_with_it(self):
        made = fleet(2)
        made.hold("a", share(known=0b0100))
        made.set_nodes([replace(made.snapshot.nodes[0], healthy=0b1011)], domains.build_tree((), ()))
        assert made.holding("a").gpus != 0b0100
        check(made)

    def test_several_shares_of_one_pod_are_counted_each(self):
        made = fleet(2)
        made.hold("greedy", Holding("n0", {amounts.SHARED: 3, amounts.PODS: 1}))
        assert sum(on_cards(made, ["greedy"]).values()) == 3
        check(made)


class TestPlans:
    def test_sixteen_halves_on_eight_cards_are_two_to_a_card(self):
        """KAI#2153: there 16 pods of half a GPU at once came to 3 or 4 on one card."""
        made = fleet(2, 2)
        found = planner.make_plan(made, Ask("gang", HALF, planner.pod_amounts(HALF), pods=16))
        assert isinstance(found, Plan)
        made.reserve_plan({str(n): wanted for n, wanted in enumerate(found.amounts_by_seat)}, found.grants)
        assert Counter((seat.node, seat.gpus) for seat in found.seats) == {
            (node, 1 << card): 2 for node in ("n0", "n1") for card in range(4)
        }
        assert isinstance(planner.make_plan(made, Ask("late", HALF, planner.pod_amounts(HALF))), Refusal)
        check(made)

    def test_a_seat_is_kept_over_a_restart(self):
        """What is read back from the API is node, amounts and the card."""
        made = fleet(2)
        found = planner.make_plan(made, Ask("w", HALF, planner.pod_amounts(HALF)))
        assert isinstance(found, Plan)
        seat = found.seats[0]
        again = fleet(2)
        again.hold("w/0", Holding(seat.node, found.amounts_by_seat[0], seat.gpus, seat.slices))
        assert again.grants("w/0")[0].share == found.grants[0].share

    @pytest.mark.parametrize(
        ("pieces", "words"),
        [
            ((0, 0), "No node offers GPU shares, and 1/2 GPU was requested. Ask for whole GPUs"),
            ((4, 4), "No node offers shares of 1/2 GPU; nodes here offer 1/4 GPU. Set share to 0.25."),
        ],
    )
    def test_why_it_waits(self, pieces, words):
        found = planner.make_plan(fleet(*pieces), Ask("w", HALF, planner.pod_amounts(HALF)))
        assert isinstance(found, Refusal)
        start = "0/2 nodes available for 1/2 GPU: 2 without shares of 1/2 GPU. "
        assert found.message.startswith(start + words)
        assert not found.possible

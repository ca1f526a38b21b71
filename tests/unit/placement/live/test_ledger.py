"""Seats and the pods in them."""

from __future__ import annotations

import pytest
from tests.support.builders import small_fleet

from kgwe import errors
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.ledger import Ledger, seat_key
from kgwe.placement.pod.engine import Decision

TREE = domains.build_tree((), ())
TWO = {amounts.GPU: 2, amounts.PODS: 1}


@pytest.fixture
def ledger():
    made = Ledger()
    made.fleet.set_nodes(small_fleet.nodes(3), TREE)
    return made


def free(ledger):
    snapshot = ledger.fleet.snapshot
    return [int(mask).bit_count() for mask in snapshot.free]


def plan(ledger, *counts):
    """Grants for pods of so many cards, one after the other, and the names of their nodes."""
    found, undos = [], []
    for count in counts:
        decision = ledger.fleet.engine.decide(Request(Gpus(count=count)))
        assert isinstance(decision, Decision)
        found.append(decision)
        undos.append(ledger.fleet.snapshot.commit(decision.grant))
    for undo in reversed(undos):
        undo()
    return [each.grant for each in found], [each.name for each in found]


def commit(ledger, owner, *counts, **more):
    grants, nodes = plan(ledger, *counts)
    return ledger.commit_plan(owner, [{amounts.GPU: count, amounts.PODS: 1} for count in counts], grants, nodes, **more)


def test_a_plan_is_numbered_from_zero_and_once_only(ledger):
    assert commit(ledger, "w", 2, 2) == 0
    assert sorted(ledger.booked_seats("w")) == [0, 1]
    with pytest.raises(errors.InvariantBroken, match="has seats already"):
        commit(ledger, "w", 1)


def test_a_gang_that_grows_goes_on_counting(ledger):
    commit(ledger, "g", 2)
    assert commit(ledger, "g", 2, 2, extend=True) == 1
    assert sorted(ledger.booked_seats("g")) == [0, 1, 2]


def test_a_plan_of_a_fleet_whose_nodes_had_other_numbers_goes_to_the_nodes_it_names(ledger):
    ledger.fleet.hold("p", Holding("n0", {amounts.GPU: 4}))
    ledger.fleet.hold("q", Holding("n1", {amounts.GPU: 4}))
    grants, nodes = plan(ledger, 4)
    assert nodes == ["n2"]
    ledger.fleet.set_nodes(small_fleet.nodes(3)[1:], TREE)
    ledger.commit_plan("w", [{amounts.GPU: 4}], grants, nodes)
    assert ledger.booked_seats("w")[0].node == "n2"


def test_a_plan_for_a_node_that_is_gone_or_takes_no_work_is_refused(ledger):
    grants, nodes = plan(ledger, 4)
    kept = [node for node in small_fleet.nodes(3) if node.name not in nodes]
    ledger.fleet.set_nodes([*kept, small_fleet.node(int(nodes[0][1:]), ready=False)], TREE)
    with pytest.raises(errors.InvariantBroken, match="unschedulable"):
        ledger.commit_plan("w", [{amounts.GPU: 4}], grants, nodes)
    ledger.fleet.set_nodes(kept, TREE)
    with pytest.raises(errors.InvariantBroken, match="gone"):
        ledger.commit_plan("w", [{amounts.GPU: 4}], grants, nodes)
    assert not ledger.has_seats("w")


def test_a_pod_takes_its_seat_and_gives_it_back(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO, 0b0110)})
    ledger.set_pod("p", "n0", TWO, ("w", 0))
    assert ledger.pod_in("w", 0) == "p"
    assert ledger.fleet.holding("p").gpus == 0b0110
    assert free(ledger) == [2, 4, 4]
    assert not ledger.remove_pod("p"), "nothing came free"
    assert ledger.fleet.holding(seat_key("w", 0)).gpus == 0b0110


def test_a_second_pod_for_a_seat_counts_for_itself(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO)})
    ledger.set_pod("old", "n0", TWO, ("w", 0))
    ledger.set_pod("new", "n0", TWO, ("w", 0))
    assert free(ledger) == [0, 4, 4]
    ledger.remove_pod("old")
    ledger.set_pod("new", "n0", TWO, ("w", 0))
    assert free(ledger) == [2, 4, 4]


def test_a_pod_that_is_said_to_have_another_seat_leaves_the_first_reserved(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO), 1: Holding("n0", TWO)})
    ledger.set_pod("p", "n0", TWO, ("w", 0))
    ledger.set_pod("p", "n0", TWO, ("w", 1))
    assert ledger.pod_in("w", 0) == ""
    assert ledger.pod_in("w", 1) == "p"
    assert free(ledger) == [0, 4, 4]


def test_when_seats_are_released_pods_count_until_they_end(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO), 1: Holding("n1", TWO)})
    ledger.set_pod("p", "n0", TWO, ("w", 0))
    assert ledger.release_seats("w")
    assert free(ledger) == [2, 4, 4]
    assert ledger.remove_pod("p")
    assert free(ledger) == [4, 4, 4]
    assert not ledger.release_seats("w")


def test_cards_that_a_pod_says_it_has_are_believed_where_no_seat_tells(ledger):
    ledger.set_pod("p", "n0", TWO, given=DeviceSet(0b1001))
    assert ledger.fleet.holding("p").gpus == 0b1001


def test_what_its_kubelet_says_counts_whatever_its_seat_was(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO, 0b0011), 1: Holding("n0", TWO, 0b1100)})
    ledger.set_pod("p", "n0", TWO, ("w", 0), observed=DeviceSet(0b1100))
    assert ledger.fleet.holding("p").gpus == 0b1100
    assert ledger.booked_seat("w", 1).gpus == 0b0011, "the other seat has what is left"
    assert ledger.reserved_seat("w", 0).gpus == 0b0011, "the plan is what it was"
    ledger.remove_pod("p")
    assert ledger.fleet.holding(seat_key("w", 0)).gpus.bit_count() == 2


def test_when_nobody_says_what_a_pod_has_any_more_its_seat_does(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO, 0b0011)})
    ledger.set_pod("p", "n0", TWO, ("w", 0), observed=DeviceSet(0b1100))
    ledger.set_pod("p", "n0", TWO, ("w", 0))
    assert ledger.fleet.holding("p").gpus == 0b0011


def test_seats_that_the_node_cannot_give_any_more_are_told(ledger):
    ledger.reserve_seats("w", {0: Holding("n0", TWO), 1: Holding("n1", TWO), 2: Holding("n9", TWO)})
    assert ledger.find_short_seats("w") == [2]
    ledger.fleet.set_nodes([small_fleet.node(0, healthy=1), small_fleet.node(1, healthy=1)], TREE)
    assert ledger.find_short_seats("w") == [0, 1, 2]
    ledger.set_pod("p", "n0", TWO, ("w", 0))
    assert ledger.find_short_seats("w") == [1, 2], "what a pod has is for others to judge"


class TestAssumed:
    def assume(self, ledger, uid, count=2, until=10.0):
        (grant,), (node,) = plan(ledger, count)
        ledger.assume_pod(uid, {amounts.GPU: count, amounts.PODS: 1}, grant, until)
        return node

    def test_a_pod_about_to_be_bound_holds_its_place_until_its_time_is_over(self, ledger):
        self.assume(ledger, "p")
        assert sum(free(ledger)) == 10
        assert ledger.expire_assumed(9.9) == []
        assert ledger.expire_assumed(10.0) == ["p"]
        assert sum(free(ledger)) == 12

    def test_one_that_is_bound_there_keeps_its_cards_and_never_expires(self, ledger):
        node = self.assume(ledger, "p")
        had = ledger.fleet.holding("p").gpus
        ledger.set_pod("p", node, TWO)
        assert ledger.fleet.holding("p").gpus == had
        assert ledger.expire_assumed(99.0) == []
        assert not ledger.forget_pod("p")

    def test_one_that_is_bound_elsewhere_gives_the_place_back(self, ledger):
        node = self.assume(ledger, "p")
        other = next(name for name in ("n0", "n1", "n2") if name != node)
        ledger.set_pod("p", other, TWO)
        assert sum(free(ledger)) == 10
        assert ledger.fleet.holding("p").node == other

    def test_asked_again_it_holds_one_place(self, ledger):
        self.assume(ledger, "p")
        self.assume(ledger, "p", count=4)
        assert sum(free(ledger)) == 8

    def test_a_pod_that_is_bound_cannot_be_assumed(self, ledger):
        ledger.set_pod("p", "n0", TWO)
        with pytest.raises(errors.InvariantBroken):
            self.assume(ledger, "p")


# --- freed capacity is announced ------------------------------------------------------------------------


@pytest.fixture
def freed():
    return []


@pytest.fixture
def announcing(freed):
    made = Ledger(on_freed=lambda: freed.append(free(made)))
    made.fleet.set_nodes(small_fleet.nodes(3), TREE)
    return made


def test_every_way_to_free_capacity_is_announced_once_and_afterwards(announcing, freed):
    grants, _ = plan(announcing, 2)
    empty = free(announcing)
    frees = [
        (lambda: announcing.set_pod("p", "n0", TWO), lambda: announcing.remove_pod("p")),
        (lambda: announcing.hold_devices("claim/c", Holding("n0", TWO)), lambda: announcing.drop_devices("claim/c")),
        (lambda: announcing.assume_pod("p", TWO, grants[0], until=5.0), lambda: announcing.expire_assumed(6.0)),
        (lambda: announcing.reserve_seats("w", {0: Holding("n0", TWO)}), lambda: announcing.release_seats("w")),
        (lambda: announcing.reserve_seats("w", {0: Holding("n0", TWO)}), lambda: announcing.reserve_seats("w", {})),
        (lambda: announcing.reserve_seats("w", {0: Holding("n0", TWO)}), lambda: announcing.release_seat("w", 0)),
    ]
    for book, give_back in frees:
        book()
        assert freed == []
        give_back()
        assert freed == [empty]
        freed.clear()


def test_a_seat_or_pod_that_leaves_a_node_is_announced(announcing, freed):
    announcing.reserve_seats("w", {0: Holding("n0", TWO)})
    announcing.reserve_seats("w", {0: Holding("n1", TWO)})
    assert len(freed) == 1
    grants, _ = plan(announcing, 2)
    announcing.assume_pod("p", TWO, grants[0], until=5.0)
    announcing.set_pod("p", "n2", TWO)
    assert len(freed) == 2
    announcing.set_pod("p", "n2", TWO)
    assert len(freed) == 2


def test_an_exchange_is_not_announced(announcing, freed):
    seats = {0: Holding("n0", TWO)}
    announcing.reserve_seats("w", seats)
    announcing.set_pod("p", "n0", TWO, ("w", 0))
    announcing.remove_pod("p")
    assert announcing.withdraw_seats("w") == seats
    assert not announcing.has_seats("w")
    announcing.reserve_seats("w", seats)
    grants, _ = plan(announcing, 2)
    announcing.assume_pod("q", TWO, grants[0], until=5.0)
    announcing.forget_pod("q")
    assert freed == []


def test_only_restored_seats_that_do_not_fit_are_announced_when_dropped(announcing, freed):
    announcing.set_pod("p", "n0", {**TWO, amounts.GPU: 8})
    assert not announcing.restore_seat("w", 0, Holding("n0", TWO))
    assert freed == [], "it never was reserved"
    announcing.reserve_seats("w", {1: Holding("n0", TWO)})
    assert announcing.drop_unfit_seats("w", [1]) == [1]
    assert len(freed) == 1


def test_a_pod_may_use_what_is_reserved_for_it_and_keeps_it_when_nothing_is_found(ledger):
    reserved = Holding("n1", {amounts.GPU: 4, amounts.PODS: 1}, 0xF)
    ledger.reserve_seats("nominated:p", {0: reserved})
    before = free(ledger)
    seen = []

    def refuse():
        seen.append(free(ledger))

    assert not ledger.try_assume_pod("p", "nominated:p", refuse, until=10.0)
    assert max(map(sum, seen)) == sum(before) + 4, "the decision sees its reservation as free"
    assert free(ledger) == before
    assert ledger.reserved_seat("nominated:p", 0) == reserved

    def accept():
        (grant,), _ = plan(ledger, 2)
        return TWO, grant

    for _ in range(2):  # the second time in place of the first
        assert ledger.try_assume_pod("p", "nominated:p", accept, until=10.0)
        assert sum(free(ledger)) == sum(before) + 4 - 2
    assert not ledger.has_seats("nominated:p")
    assert "p" in ledger.assumed

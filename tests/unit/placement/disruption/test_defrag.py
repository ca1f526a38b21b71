"""Moves that let waiting work start: few, paid for, allowed, and all or none.

Pictures: one row per node, one letter per card, dots are free.
"""

import pytest
from tests.support.builders.plans import NOW, Fleet, check_books, grants_of, state, whole, without

from kgwe.placement.disruption.defrag import DefragPlan, Rules, Waiting, plan_defrag
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.refusal import Reason, Refusal

PRICE = 3_000_000
"""Three dollars per GPU-hour."""


def defrag(fleet, wanted, sooner_s=6 * 3600.0, **rules):
    before = state(fleet.snapshot)
    waiting = [Waiting("hero", wanted, sooner_s)]
    made = plan_defrag(fleet.fitter, fleet.tree, waiting, fleet.running, rules=Rules(PRICE, **rules), now_s=NOW)
    assert state(fleet.snapshot) == before, "planning leaves nothing behind"
    if isinstance(made, DefragPlan):
        check_applied(fleet, made)
    return made


def check_applied(fleet, made):
    """Whoever was stopped has a place, and nothing is given twice."""
    members = {member.name: (n, i) for n, work in enumerate(fleet.running) for i, member in enumerate(work.members)}
    stopped: dict[int, list[int]] = {}
    for move in made.moves:
        number, i = members[move.member]
        stopped.setdefault(number, []).append(i)
    left = without(fleet.running, stopped)
    check_books(fleet.nodes, [*grants_of(left), *made.placement, *(move.grant for move in made.moves)])


def moved(made):
    assert isinstance(made, DefragPlan), made
    return {move.member: (move.source, move.node) for move in made.moves}


def test_a_pending_job_fits_after_one_move():
    """volcano#3948: no node has 4 cards free, though 8 are free in all; one move of one card is enough.

    a  1...      b  22..      c  333.      wanted: 4 cards on one node; 1 goes beside 3, where one card is left
    """
    fleet = Fleet("abc")
    for number, node in enumerate("abc", 1):
        fleet.run(f"w{number}", node, number)
    made = defrag(fleet, whole(4))
    assert moved(made) == {"w1-0": ("a", "c")}
    assert made.placement[0].node == 0
    assert made.proven
    assert made.benefit_micro == 4 * 6 * PRICE
    assert made.cost_micro == PRICE * (3600 + 60) // 3600
    assert made.reasons == ("w1-0 a -> c", "hero starts: brings $72.00, costs $3.05")


def test_nothing_moves_that_does_not_help():
    """kueue#5243: 4 nodes of 8 cards, each with 6 that may not be touched; no move frees a whole node.

    a  HHHHHHll
    b  HHHHHHll      wanted: 8 cards on one node
    c  HHHHHHll
    d  HHHHHHll
    """
    fleet = Fleet("abcd", cards=8)
    for node in "abcd":
        fleet.run(f"high-{node}", node, 6, priority=10, preemptible=False)
        for number in range(2):
            fleet.run(f"low-{node}{number}", node, 1)
    assert defrag(fleet, whole(8)) == Refusal(Reason.NO_ARRANGEMENT, "hero")


def test_nobody_is_put_out():
    """A move without a new place is an eviction: the only way to 4 cards would put someone on the street."""
    fleet = Fleet("ab")
    fleet.run("w1", "a", 3)
    fleet.run("w2", "b", 3)
    assert defrag(fleet, whole(4)) == Refusal(Reason.NO_ARRANGEMENT, "hero")


def test_a_chain_of_moves():
    """w2 can only leave a when w1 makes way on b, and w1 fits on c alone.

    a  22..      b  1...  of which 3 are wanted elsewhere      c  333.
    """
    fleet = Fleet("abc")
    fleet.run("w2", "a", 2)
    fleet.run("h", "b", 2, preemptible=False)
    fleet.run("w1", "b", 1)
    fleet.run("h2", "c", 3, preemptible=False)
    made = defrag(fleet, whole(4))
    assert moved(made) == {"w2-0": ("a", "b"), "w1-0": ("b", "c")}
    assert made.proven


def test_the_fewest_pods_move_then_the_cheapest():
    """Two single ones on a, one pair on b: the pair is one eviction."""
    fleet = Fleet("abc")
    for number in range(2):
        fleet.run(f"one-{number}", "a", 1, started_at_s=NOW - 1)
    fleet.run("pair", "b", 2)
    fleet.run("full", "c", 2, preemptible=False)
    assert moved(defrag(fleet, whole(4))) == {"pair-0": ("b", "a")}


def test_among_equals_the_one_with_least_to_lose():
    fleet = Fleet("ab")
    fleet.run("long", "a", 1)
    fleet.run("saved", "b", 1, saved_at_s=NOW - 5)
    assert moved(defrag(fleet, whole(4))) == {"saved-0": ("b", "a")}


def test_a_move_that_costs_more_than_it_brings_is_not_made():
    fleet = Fleet("ab")
    fleet.run("w1", "a", 1)
    fleet.run("w2", "b", 1)
    made = defrag(fleet, whole(4), sooner_s=60)
    assert isinstance(made, Refusal)
    assert made.counts == {"evictions": 1, "benefit_micro": 4 * PRICE // 60, "cost_micro": PRICE * 3660 // 3600}
    assert str(made) == "CostsMoreThanItBrings: hero: 1 evictions, brings $0.20, costs $3.05"


def test_a_gang_counts_as_a_whole_and_only_those_move_who_must():
    """g is a gang of two on a and b: its member on a moves to c, the other restarts where it is."""
    fleet = Fleet("abc")
    fleet.run("g", "ab", 2)
    fleet.run("f", "b", 2, preemptible=False)
    fleet.run("h", "c", 2, preemptible=False)
    made = defrag(fleet, whole(4))
    assert moved(made) == {"g-0": ("a", "c"), "g-1": ("b", "b")}
    assert made.cost.lost == 4000 * 3600


def test_a_gang_that_moves_keeps_what_it_requires():
    """The only free place for g's member is in another leaf, where it may not go."""
    fleet = Fleet("ab c")
    gang = GangRequest.uniform(whole(2), 2, required="leaf")
    fleet.run("g", "ab", 2, gang=gang)
    fleet.run("f", "b", 2, preemptible=False)
    fleet.run("h", "c", 2, preemptible=False)
    assert defrag(fleet, whole(4)) == Refusal(Reason.NO_ARRANGEMENT, "hero")


def test_room_for_a_gang():
    """Two nodes of one leaf are wanted; the two pods in the way go to the other leaf.

    leaf-0: a  1...  b  2...      leaf-1: c  FF..   d  FF..
    """
    fleet = Fleet("ab cd")
    fleet.run("w1", "a", 1)
    fleet.run("w2", "b", 1)
    fleet.run("f1", "c", 2, preemptible=False)
    fleet.run("f2", "d", 2, preemptible=False)
    made = defrag(fleet, GangRequest.uniform(whole(4), 2, required="leaf"))
    assert set(moved(made)) == {"w1-0", "w2-0"}
    assert {grant.node for grant in made.placement} == {0, 1}


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"min_runtime_s": 7200}, Reason.NOTHING_MOVABLE),
        ({"quiet_s": (3 * 3600, 4 * 3600)}, Reason.NOT_NOW),
        ({"max_evictions": 0}, Reason.TOO_MANY),
    ],
)
def test_limits_of_the_caller_hold(rules, reason):
    """NOW is 02:46:40."""
    fleet = Fleet("ab")
    fleet.run("w1", "a", 1)
    fleet.run("w2", "b", 1)
    assert defrag(fleet, whole(4), **rules).code is reason


@pytest.mark.parametrize(
    ("quiet_s", "quiet"),
    [(None, True), ((0, 10_001), True), ((0, 10_000), False), ((80_000, 10_001), True), ((80_000, 9_999), False)],
)
def test_quiet_windows_may_pass_midnight(quiet_s, quiet):
    assert Rules(PRICE, quiet_s=quiet_s).is_quiet(3 * 86_400 + 10_000) is quiet


def test_disruption_budgets_hold():
    """KAI#146: w1 would be the cheaper one, but its budget allows nothing."""
    fleet = Fleet("ab")
    fleet.run("w1", "a", 1, budget="web", started_at_s=NOW)
    fleet.run("w2", "b", 1)
    assert moved(defrag(fleet, whole(4), budgets={"web": 0})) == {"w2-0": ("b", "a")}
    assert moved(defrag(fleet, whole(4), budgets={"web": 1})) == {"w1-0": ("a", "b")}


def test_work_that_starts_anyway_moves_nobody():
    fleet = Fleet("ab")
    fleet.run("w1", "a", 1)
    assert defrag(fleet, whole(4)) == Refusal(Reason.STARTS_ANYWAY, "hero")
    assert defrag(fleet, GangRequest.uniform(whole(4), 1)) == Refusal(Reason.STARTS_ANYWAY, "hero")


def test_shares_are_brought_together():
    """Two half cards on two nodes of one card: one moves beside the other, and a whole card is free."""
    fleet = Fleet("ab", cards=1)
    for node in "ab":
        fleet.run(f"half-{node}", node, request=Request(Gpus(milli=500)))
    made = defrag(fleet, whole(1))
    assert moved(made) == {"half-a-0": ("a", "b")}
    assert made.benefit_micro == 6 * PRICE


def test_of_several_who_wait_the_one_that_brings_most():
    fleet = Fleet("ab")
    fleet.run("w1", "a", 1)
    fleet.run("w2", "b", 1)
    waiting = [Waiting("short", whole(4), 2 * 3600.0), Waiting("long", whole(4), 5 * 3600.0)]
    made = plan_defrag(fleet.fitter, None, waiting, fleet.running, rules=Rules(PRICE), now_s=NOW)
    assert isinstance(made, DefragPlan)
    assert made.waiting == "long"
    assert made.net_micro == made.benefit_micro - made.cost_micro
    assert plan_defrag(fleet.fitter, None, [], fleet.running, rules=Rules(PRICE), now_s=NOW) is None

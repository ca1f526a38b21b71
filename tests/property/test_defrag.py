"""Plans of defragmentation against every set of pods and every way to seat them, counted without the planner's code."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.plans import NOW, Fleet, check_books, free_after, grants_of, losses, state, whole, without
from tests.support.examples import examples

from kgwe.placement.disruption.defrag import DefragPlan, Rules, Waiting, plan_defrag
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.refusal import Reason, Refusal

CARDS = 4
BUDGETS = {"one": 1}
RULES = Rules(1_000_000, budgets=BUDGETS)
LONG_S = 1e9


@st.composite
def fragmented(draw):
    fleet = Fleet("ab cd", CARDS)
    for number in range(draw(st.integers(2, 6))):
        size = draw(st.integers(1, 3))
        free = [name for name, count in fleet.free().items() if count >= size]
        if free:
            fleet.run(
                f"w{number}",
                "".join(draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True))),
                size,
                preemptible=draw(st.sampled_from([True, True, True, False])),
                min_members=draw(st.sampled_from([None, 0])),
                started_at_s=NOW - draw(st.integers(0, 3)) * 1000,
                budget=draw(st.sampled_from(["", "", "one"])),
            )
    return fleet


def fits(free, sizes):
    """Whether pods of these sizes can all be seated, by trying every way."""
    if not sizes:
        return True
    for node, count in enumerate(free):
        if count >= sizes[0] and free.index(count) == node:
            left = [*free[:node], count - sizes[0], *free[node + 1 :]]
            if fits(left, sizes[1:]):
                return True
    return False


def fewest(fleet, cards, pods, level):
    """Least number of pods to stop so that all have a place; None: there is no way."""
    movable = [(n, list(losses(work))) for n, work in enumerate(fleet.running) if work.preemptible]
    best = None
    for chosen in itertools.product(*(options for _, options in movable)):
        stopped = {n: gone for (n, _), gone in zip(movable, chosen, strict=True) if gone}
        drawn = sum(len(gone) for n, gone in stopped.items() if fleet.running[n].budget)
        count = sum(map(len, stopped.values()))
        if drawn > BUDGETS["one"] or (best is not None and count >= best):
            continue
        free = free_after(fleet, without(fleet.running, stopped))
        sizes = sorted(
            (fleet.running[n].members[i].grant.gpus.bit_count() for n, gone in stopped.items() for i in gone),
            reverse=True,
        )
        if any(fits(left, sizes) for left in starts(fleet, free, cards, pods, level)):
            best = count
    return best


def starts(fleet, free, cards, pods, level):
    """Free cards after the wanted work has started, for every way it can."""
    nodes = range(len(free))
    for chosen in itertools.combinations_with_replacement(nodes, pods):
        left = [count - cards * chosen.count(node) for node, count in enumerate(free)]
        leaves = {fleet.leaf[fleet.names[node]] for node in chosen}
        if min(left) >= 0 and not (level and len(leaves) > 1):
            yield left


def check(fleet, wanted, cards, pods, level):
    before = state(fleet.snapshot)
    waiting = [Waiting("hero", wanted, LONG_S)]
    made = plan_defrag(fleet.fitter, fleet.tree, waiting, fleet.running, rules=RULES, now_s=NOW)
    assert made == plan_defrag(fleet.fitter, fleet.tree, waiting, fleet.running, rules=RULES, now_s=NOW)
    assert state(fleet.snapshot) == before
    best = fewest(fleet, cards, pods, level)
    if isinstance(made, Refusal):
        if made.code is Reason.STARTS_ANYWAY:
            assert best == 0
        else:
            assert best is None, f"refused as {made.code}, and {best} evictions would do"
        return
    assert isinstance(made, DefragPlan)
    assert made.evictions == best
    assert made.proven
    members = {member.name: (n, i) for n, work in enumerate(fleet.running) for i, member in enumerate(work.members)}
    stopped: dict[int, list[int]] = {}
    for move in made.moves:
        number, i = members[move.member]
        assert fleet.running[number].preemptible
        stopped.setdefault(number, []).append(i)
    left = without(fleet.running, stopped)
    check_books(fleet.nodes, [*grants_of(left), *made.placement, *(move.grant for move in made.moves)])


@given(fragmented(), st.integers(2, CARDS))
def test_a_pod_moves_no_more_than_the_fewest_there_are(fleet, cards):
    check(fleet, whole(cards), cards, 1, None)


@examples(30)
@given(fragmented(), st.integers(2, CARDS), st.integers(2, 3), st.sampled_from([None, "leaf"]))
def test_a_gang_moves_no_more_than_the_fewest_there_are(fleet, cards, pods, level):
    check(fleet, GangRequest.uniform(whole(cards), pods, required=level or ""), cards, pods, level)

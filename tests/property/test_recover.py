"""Plans of recovery against every way to seat a gang again, counted without the planner's code."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.plans import Fleet, check_books, grants_of, state

from kgwe.placement.disruption.recovery import Failure, Outcome, plan_recovery
from kgwe.placement.disruption.running import Running
from kgwe.placement.gang.request import GangRequest, Role

CARDS = 4


@st.composite
def broken(draw, *, equal):
    """A gang on a few nodes, other work beside it, and some nodes that fail."""
    fleet = Fleet("abc def", CARDS)
    members = []
    level = draw(st.sampled_from(["", "leaf"]))
    names = draw(st.sampled_from(["abc", "def"])) if level else fleet.names
    size = draw(st.integers(1, CARDS))
    for number in range(draw(st.integers(1, 4))):
        size = size if equal else draw(st.integers(1, CARDS))
        free = [name for name in names if fleet.free()[name] >= size]
        if free:
            members += fleet.run(f"g{number}", draw(st.sampled_from(free)), size).members
    if not members:
        members += fleet.run("g", names[0], 1).members
    others = []
    for number in range(draw(st.integers(0, 5))):
        size = draw(st.integers(1, CARDS))
        free = [name for name, count in fleet.free().items() if count >= size]
        if free:
            others.append(fleet.run(f"o{number}", draw(st.sampled_from(free)), size))
    roles = tuple(Role(member.name, member.request, 1) for member in members)
    gang = GangRequest(roles, required=level)
    fleet.running = [Running("gang", tuple(members), gang=gang), *others]
    dead = draw(st.sets(st.sampled_from(fleet.names), min_size=1, max_size=4))
    return fleet, dead, level


def fewest_moves(fleet, dead, level):
    """(healthy members that have to move, rungs climbed in all), or None when there is no way."""
    gang, others = fleet.running[0], fleet.running[1:]
    lost = [i for i, member in enumerate(gang.members) if fleet.names[member.grant.node] in dead]
    healthy = [i for i in range(len(gang.members)) if i not in lost]
    alive = [i for i, name in enumerate(fleet.names) if name not in dead]
    size = [member.grant.gpus.bit_count() for member in gang.members]
    at = [member.grant.node for member in gang.members]
    for count in range(len(healthy) + 1):
        rungs = []
        for moving in itertools.combinations(healthy, count):
            goers = [*lost, *moving]
            for nodes in itertools.product(alive, repeat=len(goers)):
                seats = {**{i: at[i] for i in healthy}, **dict(zip(goers, nodes, strict=True))}
                used = [0] * len(fleet.names)
                for grant in grants_of(others):
                    used[grant.node] += grant.gpus.bit_count()
                for i, node in seats.items():
                    used[node] += size[i]
                leaves = {fleet.leaf[fleet.names[node]] for node in seats.values()}
                if max(used) <= CARDS and not (level and len(leaves) > 1):
                    rungs.append(sum(_rung(fleet, at[i], seats[i]) for i in goers))
        if rungs:
            return count, min(rungs)
    return None


def _rung(fleet, a, b):
    """1: same leaf, 2: same spine."""
    return 1 if fleet.leaf[fleet.names[a]] == fleet.leaf[fleet.names[b]] else 2


def check(fleet, dead, level, *, near):
    fleet_state = state(fleet.snapshot)
    failure = Failure(frozenset(dead))
    gang, others = fleet.running[0], fleet.running[1:]
    # Others that are hit would compete; this is about one gang.
    running = [gang, *(work for work in others if fleet.names[work.members[0].grant.node] not in dead)]
    made = plan_recovery(fleet.fitter, fleet.tree, running, failure)
    assert made == plan_recovery(fleet.fitter, fleet.tree, running, failure)
    assert state(fleet.snapshot) == fleet_state
    hit = any(fleet.names[member.grant.node] in dead for member in gang.members)
    assert len(made.repairs) == hit
    if not hit:
        return
    (repaired,) = made.repairs
    best = fewest_moves(fleet, dead, level)
    if best is None:
        assert (repaired.outcome, repaired.moves) == (Outcome.WAITS, ())
        return
    assert sum(move.was_healthy for move in repaired.moves) == best[0]
    new = {move.member: move.grant for move in repaired.moves}
    assert all(fleet.names[grant.node] not in dead for grant in new.values())
    after = [new.get(member.name, member.grant) for member in gang.members]
    check_books(fleet.nodes, [*after, *grants_of(others)])
    if level:
        assert len({fleet.leaf[fleet.names[grant.node]] for grant in after}) == 1
    if near and best[0] == 0:
        climbed = sum({"node": 1, "leaf": 1, "spine": 2}[move.level] for move in repaired.moves)
        assert climbed == best[1], "nobody goes farther than it takes"


@given(broken(equal=True))
def test_equal_members_go_no_farther_and_no_more_than_it_takes(case):
    check(*case, near=True)


@given(broken(equal=False))
def test_no_more_members_of_any_size_move_than_it_takes(case):
    check(*case, near=False)

"""Plans of preemption against every set of victims there is, counted without the planner's code."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.plans import (
    NOW,
    Fleet,
    check_books,
    free_after,
    grant,
    grants_of,
    losses,
    state,
    whole,
    without,
)
from tests.support.examples import examples

from kgwe.placement.disruption.gang_victims import GangVictims
from kgwe.placement.disruption.preemption import PreemptionPlan, build_plan, plan_preemption
from kgwe.placement.disruption.room_curves import RoomCurves
from kgwe.placement.disruption.running import Cost, member_cost, rank_priorities
from kgwe.placement.disruption.victims import VictimPool
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch

BUDGETS = {"one": 1, "two": 2}


@st.composite
def fleets(draw, layout="ab cd", cards=4, most=8):
    """A few nodes with work of several kinds on them, as much as fits."""
    fleet = Fleet(layout, cards)
    for number in range(draw(st.integers(1, most))):
        size = draw(st.integers(1, cards))
        free = [name for name, count in fleet.free().items() if count >= size]
        if not free:
            continue
        at = draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True))
        fleet.run(
            f"w{number}",
            "".join(at),
            size,
            priority=draw(st.sampled_from([0, 1, 5, 10])),
            preemptible=draw(st.sampled_from([True, True, True, False])),
            min_members=draw(st.sampled_from([None, None, 0, 1, 2])),
            started_at_s=NOW - draw(st.integers(0, 5)) * 1000,
            saved_at_s=draw(st.sampled_from([None, NOW - 100])),
            budget=draw(st.sampled_from(["", "", "", "one", "two"])),
        )
    return fleet


def every_way(fleet, priority):
    """(members stopped by workload, cost) of every set that the rules allow."""
    usable = [
        (number, list(losses(work)))
        for number, work in enumerate(fleet.running)
        if work.preemptible and work.priority < priority
    ]
    rank = rank_priorities([fleet.running[number] for number, _ in usable])
    for chosen in itertools.product(*(options for _, options in usable)):
        stopped = {number: gone for (number, _), gone in zip(usable, chosen, strict=True) if gone}
        drawn = dict.fromkeys(BUDGETS, 0)
        cost = Cost()
        for number, gone in stopped.items():
            work = fleet.running[number]
            if work.budget:
                drawn[work.budget] += len(gone)
            for i in gone:
                cost += member_cost(work, work.members[i], NOW, fleet.snapshot, rank[work.priority])
        if all(drawn[name] <= allowed for name, allowed in BUDGETS.items()):
            yield stopped, cost


def holds(fleet, free, cards, pods, level):
    """Whether that many pods fit, by counting: cards of one node are all alike here."""
    room = [count // cards for count in free]
    if level is None:
        return sum(room) >= pods
    return any(
        sum(room[i] for i, name in enumerate(fleet.names) if fleet.leaf[name] == leaf) >= pods
        for leaf in set(fleet.leaf.values())
    )


def check(fleet, wanted, cards, pods, level, priority):
    before = state(fleet.snapshot)
    made = plan_preemption(fleet.fitter, fleet.tree, wanted, fleet.running, NOW, priority=priority, budgets=BUDGETS)
    again = plan_preemption(fleet.fitter, fleet.tree, wanted, fleet.running, NOW, priority=priority, budgets=BUDGETS)
    assert made == again, "the same question has the same answer"
    assert state(fleet.snapshot) == before
    ways = [
        cost.total
        for stopped, cost in every_way(fleet, priority)
        if holds(fleet, free_after(fleet, without(fleet.running, stopped)), cards, pods, level)
    ]
    if not isinstance(made, PreemptionPlan):
        assert not ways, f"refused, and there are {len(ways)} ways"
        return
    if made.proven:
        assert made.cost.total == min(ways)
    check_plan(fleet, made, cards, pods, level, priority)
    return


def check_plan(fleet, made, cards, pods, level, priority):
    by_name = {work.name: (number, work) for number, work in enumerate(fleet.running)}
    stopped = {}
    for victim in made.victims:
        number, work = by_name[victim.workload]
        assert work.preemptible
        assert work.priority < priority
        names = [member.name for member in work.members]
        stopped[number] = tuple(names.index(name) for name in victim.members)
        assert len(stopped[number]) <= work.expendable or victim.whole
    left = without(fleet.running, stopped)
    check_books(fleet.nodes, [*grants_of(left), *made.placement])
    assert len(made.placement) == pods
    if level:
        assert len({fleet.leaf[fleet.names[grant.node]] for grant in made.placement}) == 1
    for number in stopped:
        spared = without(fleet.running, {n: gone for n, gone in stopped.items() if n != number})
        assert not holds(fleet, free_after(fleet, spared), cards, pods, level), "a victim that could be spared"


@given(fleets(), st.integers(1, 4), st.sampled_from([1, 5, 10, 11]))
def test_victims_of_a_pod_are_the_cheapest_there_are(fleet, cards, priority):
    check(fleet, whole(cards), cards, 1, None, priority)


@examples(40)
@given(fleets(), st.integers(1, 4), st.integers(1, 4), st.sampled_from([None, "leaf"]), st.sampled_from([1, 5, 11]))
def test_victims_of_a_gang_are_the_cheapest_there_are(fleet, cards, pods, level, priority):
    gang = GangRequest.uniform(whole(cards), pods, required=level or "")
    check(fleet, gang, cards, pods, level, priority)


@pytest.mark.parametrize("exact_items", [0, 2])
@given(data=st.data())
def test_proposals_that_are_not_searched_to_the_end_keep_all_rules(exact_items, data):
    """The same with the exact search switched off: what large fleets get."""
    fleet = data.draw(fleets("abc def", most=12))
    cards, pods = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    gang = GangRequest.uniform(whole(cards), pods, required="leaf")
    search = GangSearch(fleet.fitter, fleet.tree)
    lower = [work for work in fleet.running if work.preemptible and work.priority < 10]
    pool = VictimPool(fleet.snapshot, lower, NOW, BUDGETS)
    found = GangVictims(search, pool, gang).find_lightest(exact_items)
    if found.picked is not None:
        with pool.without_items(found.picked):
            plan = search.find(gang)
        assert isinstance(plan, GangPlan)
        made = build_plan(fleet.fitter, pool, found.picked, plan.grants, proven=found.proven)
        check_plan(fleet, made, cards, pods, "leaf", 10)


@given(fleets(), st.integers(1, 3), st.sampled_from([0, 7_000, 20_000, 40_000]), st.data())
def test_what_a_curve_stops_makes_the_room_it_promises(fleet, cards, cpu, data):
    """With CPU taken on some nodes, by work that holds no card."""
    for node in data.draw(st.lists(st.sampled_from("abcd"), max_size=4)):
        request = Request(Gpus(), cpu_milli=data.draw(st.sampled_from([10_000, 30_000])))
        if fleet.fitter.find_grant(request, fleet.names.index(node)) is not None:
            fleet.run(f"cpu-{len(fleet.running)}", node, request=request)
    pool = VictimPool(fleet.snapshot, fleet.running, NOW, BUDGETS)
    request = whole(cards, cpu=cpu)
    curves, now = RoomCurves(fleet.fitter, pool, request), fleet.fitter.count_pods(request)
    for node in range(len(fleet.nodes)):
        for curve in curves.get_curves([node], frozenset(), frozenset()):
            for more, (_, stopped) in enumerate(curve, 1):
                with pool.without_items(stopped, node):
                    assert fleet.fitter.count_pods(request)[node] >= now[node] + more


@given(fleets(), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 8_000]), st.sampled_from("abcd"))
def test_on_overbooked_nodes_plans_still_hold(fleet, cards, pods, cpu, node):
    fleet.snapshot.book(grant(fleet.names.index(node), 0, cpu=100_000))
    before = state(fleet.snapshot)
    request = whole(cards, cpu=cpu)
    for wanted in (request, GangRequest.uniform(request, pods)):
        made = plan_preemption(fleet.fitter, fleet.tree, wanted, fleet.running, NOW, priority=11, budgets=BUDGETS)
        assert state(fleet.snapshot) == before
        if isinstance(made, PreemptionPlan):
            for held in [held for victim in made.victims for held in victim.grants]:
                fleet.snapshot.release(held)
            undo = fleet.snapshot.commit_all(made.placement)
            assert not cpu or all(fleet.names[held.node] != node for held in made.placement)
            undo()
            for held in [held for victim in made.victims for held in victim.grants]:
                fleet.snapshot.book(held)

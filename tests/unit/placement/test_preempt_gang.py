"""Who is stopped for a gang: inside one domain where that is required, and gangs as a whole.

Pictures: leaves side by side, one row per node, one letter per card, dots are free.
"""

from tests.support.builders.plans import NOW, Fleet, check_books, grant, state, whole
from tests.support.machines.reference import nvswitch

from kgwe.placement.disruption.gang_victims import GangVictims
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.disruption.victims import VictimPool
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.gang.request import GangRequest, Hardware, Role, Segment
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Reason, Refusal


def plan(fleet, gang, priority=10, budgets=None):
    before = state(fleet.snapshot)
    made = plan_preemption(fleet.fitter, fleet.tree, gang, fleet.running, NOW, priority=priority, budgets=budgets)
    assert state(fleet.snapshot) == before, "planning leaves nothing behind"
    return made


def stopped(made):
    assert isinstance(made, PreemptionPlan), made
    return {victim.workload for victim in made.victims}


def leaves(fleet, made):
    return {fleet.leaf[fleet.names[grant.node]] for grant in made.placement}


def test_a_gang_that_fits_stops_nobody():
    fleet = Fleet("ab cd")
    fleet.run("low", "a", 4)
    made = plan(fleet, GangRequest.uniform(whole(4), 2, required="leaf"))
    assert stopped(made) == set()
    assert leaves(fleet, made) == {1}


def test_a_hard_gang_preempts_inside_one_domain_only():
    """volcano#4533: low work in two domains; stopping one pod in each frees two nodes the gang cannot use together.

    leaf-0          leaf-1          wanted: 2 x 4 cards in one leaf
    a  llll         c  mmmm
    b  HHHH         d  mmmm         l is the cheapest of all and no use
    """
    fleet = Fleet("ab cd")
    fleet.run("l", "a", 4, started_at_s=NOW - 1)
    fleet.run("high", "b", 4, priority=10)
    fleet.run("m1", "c", 4)
    fleet.run("m2", "d", 4)
    made = plan(fleet, GangRequest.uniform(whole(4), 2, required="leaf"))
    assert stopped(made) == {"m1", "m2"}
    assert leaves(fleet, made) == {1}
    assert made.proven


def test_where_nothing_is_required_the_cheapest_go_wherever_they_are():
    fleet = Fleet("ab cd")
    fleet.run("l", "a", 4, started_at_s=NOW - 1)
    fleet.run("high", "b", 4, priority=10)
    fleet.run("m1", "c", 4)
    fleet.run("m2", "d", 4)
    assert stopped(plan(fleet, GangRequest.uniform(whole(4), 2))) == {"l", "m1"}


def test_nothing_is_stopped_when_no_domain_suffices():
    """Two nodes could be freed, but in two leaves: the gang would not start, so nobody goes."""
    fleet = Fleet("ab cd")
    fleet.run("l", "a", 4)
    fleet.run("high-1", "b", 4, priority=10)
    fleet.run("m", "c", 4)
    fleet.run("high-2", "d", 4, priority=10)
    made = plan(fleet, GangRequest.uniform(whole(4), 2, required="leaf"))
    assert isinstance(made, Refusal)
    assert (made.code, made.counts) == (Reason.NOT_ENOUGH, {"workloads": 2, "evictable_milli": 8000})


def test_one_gang_that_frees_many_nodes_is_better_than_many_pods():
    """The gang g holds three nodes: once it goes, all three are free, and 12 cards of it cost less than 12 of others.

    leaf-0     leaf-1
    a  gggg    d  1111
    b  gggg    e  2222       wanted: 3 x 4 cards in one leaf
    c  gggg    f  3333
    """
    fleet = Fleet("abc def")
    fleet.run("g", "abc", 4, started_at_s=NOW - 3000)
    for number, node in enumerate("def"):
        fleet.run(f"p{number}", node, 4)
    assert stopped(plan(fleet, GangRequest.uniform(whole(4), 3, required="leaf"))) == {"g"}


def test_a_gang_that_reaches_into_another_domain_costs_all_of_itself():
    """g holds one node of leaf-0 and two of leaf-1: for leaf-0 it would have to go entirely."""
    fleet = Fleet("ab cd")
    fleet.run("g", "acd", 4, started_at_s=NOW - 2000)
    fleet.run("p", "b", 4, started_at_s=NOW - 2000)
    made = plan(fleet, GangRequest.uniform(whole(4), 2, required="leaf"))
    assert stopped(made) == {"g"}, "leaf-1 takes g alone, leaf-0 would take g and p"
    assert leaves(fleet, made) == {1}


def test_segments_are_kept():
    """Two segments of two ranks, each on one node of 4 cards: single cards all over the leaf do not help."""
    fleet = Fleet("abcd", cards=4)
    for node in "abcd":
        for number in range(2):
            fleet.run(f"{node}{number}", node, 2, started_at_s=NOW - 100 - ord(node))
    gang = GangRequest.uniform(whole(2), 4, segments=(Segment(2, "node"),))
    made = plan(fleet, gang)
    assert stopped(made) == {"a0", "a1", "b0", "b1"}


def test_roles_of_different_sizes():
    fleet = Fleet("ab", cards=4)
    fleet.run("big", "a", 4, started_at_s=NOW - 100)
    fleet.run("one", "b", 1, started_at_s=NOW - 100)
    fleet.run("high", "b", 3, priority=10)
    gang = GangRequest((Role("leader", whole(1), 1), Role("worker", whole(4), 1)))
    made = plan(fleet, gang)
    assert stopped(made) == {"big", "one"}
    check_books(fleet.nodes, [*made.placement, fleet.running[2].members[0].grant])


def test_an_elastic_gang_stops_no_more_than_its_least_needs():
    fleet = Fleet("abc")
    for number, node in enumerate("abc"):
        fleet.run(f"p{number}", node, 4)
    made = plan(fleet, GangRequest.uniform(whole(4), 3, min_replicas=1))
    assert stopped(made) == {"p0"}
    assert len(made.placement) == 1


def test_cpu_is_what_is_short():
    """Cards are free everywhere; CPU is not."""
    fleet = Fleet("ab", cards=4, cpu=8000)
    fleet.run("a-cpu", "a", request=Request(Gpus(), cpu_milli=6000))
    fleet.run("b-cpu", "b", request=Request(Gpus(), cpu_milli=6000))
    made = plan(fleet, GangRequest.uniform(whole(1, cpu=4000), 3))
    assert stopped(made) == {"a-cpu", "b-cpu"}


def test_cpu_is_what_is_short_on_many_nodes():
    """With more items than are searched to the end: a whole leaf is cleared, and who is not needed spared again."""
    fleet = Fleet("abcdefgh ijklmnop", cards=4, cpu=8000)
    for node in fleet.names:
        fleet.run(f"{node}-cpu", node, request=Request(Gpus(), cpu_milli=6000))
    made = plan(fleet, GangRequest.uniform(whole(1, cpu=4000), 3, required="leaf", max_pods_per_node=1))
    assert len(made.victims) == 3
    assert len(leaves(fleet, made)) == 1


def test_budgets_hold_across_the_gang():
    fleet = Fleet("abc")
    for number, node in enumerate("abc"):
        fleet.run(f"p{number}", node, 4, budget="web" if number < 2 else "", started_at_s=NOW - 100 * (number + 1))
    gang = GangRequest.uniform(whole(4), 2)
    assert stopped(plan(fleet, gang, budgets={"web": 2})) == {"p0", "p1"}
    assert stopped(plan(fleet, gang, budgets={"web": 1})) == {"p0", "p2"}
    made = plan(fleet, gang, budgets={"web": 0})
    assert isinstance(made, Refusal)
    assert made.code is Reason.BUDGETS


def test_without_a_network_everything_is_one_domain():
    fleet = Fleet("ab")
    fleet.run("p", "ab", 4)
    made = plan_preemption(fleet.fitter, None, GangRequest.uniform(whole(4), 2), fleet.running, NOW, priority=1)
    assert stopped(made) == {"p"}


def test_many_items_are_handled_by_proposal_and_stay_minimal():
    """More items than are searched to the end: still one leaf, and nobody to spare."""
    fleet = Fleet("abcd efgh ijkl", cards=8)
    for node in fleet.names:
        for number in range(8):
            fleet.run(f"{node}{number}", node, 1, started_at_s=NOW - 50 - (7 * ord(node) + 13 * number) % 31)
    gang = GangRequest.uniform(whole(4), 6, required="leaf")
    made = plan(fleet, gang)
    assert len(made.victims) == 24
    assert len(leaves(fleet, made)) == 1
    assert not made.proven


def test_victims_for_cards_of_one_model_are_on_one_model():
    """a is an H100 node, b and c are A100 nodes; the two cheapest are on a and b, and no use together."""
    shapes = [Shape(nvswitch(4), model, 81_920) for model in ("H100", "A100", "A100")]
    nodes = [Node(name, shape, 64_000, 2**40) for name, shape in zip("abc", shapes, strict=True)]
    fitter = Fitter(Snapshot.from_nodes(nodes))
    running = []
    for number, (name, age_s) in enumerate((("on-a", 1), ("on-b", 2), ("on-c", 3600))):
        held = grant(number, 0b1111)
        fitter.snapshot.commit(held)
        running.append(Running(name, (Member(name, whole(4), held),), started_at_s=NOW - age_s))
    gang = GangRequest.uniform(whole(4), 2, hardware=Hardware.SAME)
    assert stopped(plan_preemption(fitter, None, gang, running, NOW, priority=1)) == {"on-b", "on-c"}
    mixed = GangRequest.uniform(whole(4), 2)
    assert stopped(plan_preemption(fitter, None, mixed, running, NOW, priority=1)) == {"on-a", "on-b"}


def test_a_disruption_budget_is_spent_where_it_is_missed_most():
    """Two pods of budget b may stop. Each node of two cards is wanted whole, four of the six are.

    a 1B   b 1B   c 10   d 22   e 1.   f 30         1 and B draw on the budget; c and e need one each, a and b two
    """
    fleet = Fleet("abcdef", cards=2)
    fleet.run("1", "baec", 1, min_members=0, budget="b", started_at_s=NOW)
    fleet.run("2", "d", 2, started_at_s=NOW - 400)
    fleet.run("3", "f", 1)
    fleet.run("0", "fc", 1, min_members=1, started_at_s=NOW - 8000)
    fleet.run("B", "ab", 1, min_members=0, budget="b", started_at_s=NOW - 5000)
    pool = VictimPool(fleet.snapshot, fleet.running, NOW, {"b": 2})
    gang = GangRequest.uniform(whole(2), 4)
    search = GangSearch(fleet.fitter, fleet.tree)
    proposed = GangVictims(search, pool, gang).find_lightest(exact_items=-1).picked
    exact = GangVictims(search, pool, gang).find_lightest().picked
    assert proposed is not None
    assert exact is not None
    assert pool.weight(proposed) == pool.weight(exact)
    assert {held.node for held in pool.grants(proposed)} >= {2, 3, 4, 5}

"""Who is stopped for one pod: strictly lower priority, only when it helps, and no more than it takes.

Pictures: one row per node, one letter per card, capitals may not be stopped, dots are free.
"""

import pytest
from tests.support.builders.plans import NOW, Fleet, state, whole
from tests.support.machines.reference import nvswitch

from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import parse_placement
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Reason, Refusal


def plan(fleet, wanted, priority=10, budgets=None):
    before = state(fleet.snapshot)
    made = plan_preemption(fleet.fitter, fleet.tree, wanted, fleet.running, NOW, priority=priority, budgets=budgets)
    assert state(fleet.snapshot) == before, "planning leaves nothing behind"
    return made


def stopped(made):
    assert isinstance(made, PreemptionPlan), made
    return {victim.workload for victim in made.victims}


def test_a_pod_that_fits_stops_nobody():
    fleet = Fleet("ab")
    fleet.run("low", "a", 4)
    made = plan(fleet, whole(4))
    assert stopped(made) == set()
    assert made.placement[0].node == 1


def test_nothing_is_evicted_that_does_not_help():
    """kueue#5243: 4 nodes of 8 cards, 6 of each at high priority; 8 low ones would go and the job still not run.

    a  HHHHHHll
    b  HHHHHHll      wanted, high: 8 cards on one node
    c  HHHHHHll
    d  HHHHHHll
    """
    fleet = Fleet("abcd", cards=8)
    for node in "abcd":
        fleet.run(f"high-{node}", node, 6, priority=10)
        for number in range(2):
            fleet.run(f"low-{node}{number}", node, 1)
    made = plan(fleet, whole(8))
    assert isinstance(made, Refusal)
    assert (made.code, made.counts) == (Reason.NOT_ENOUGH, {"workloads": 8, "evictable_milli": 8000})


def test_equal_priority_is_safe():
    fleet = Fleet("a")
    fleet.run("equal", "a", 4, priority=10)
    made = plan(fleet, whole(1))
    assert isinstance(made, Refusal)
    assert made.code is Reason.NOTHING_LOWER


def test_work_that_may_not_be_preempted_is_safe():
    fleet = Fleet("a")
    fleet.run("low", "a", 4, preemptible=False)
    made = plan(fleet, whole(1))
    assert isinstance(made, Refusal)
    assert (made.code, made.counts) == (Reason.NOTHING_LOWER, {"workloads": 0, "evictable_milli": 0})


def test_the_least_lost_work_goes():
    """a  oooo (an hour since the start)   b  nnnn (saved a minute ago)"""
    fleet = Fleet("ab")
    fleet.run("old", "a", 4)
    fleet.run("saved", "b", 4, started_at_s=0.0, saved_at_s=NOW - 60)
    made = plan(fleet, whole(2))
    assert stopped(made) == {"saved"}
    assert made.cost.lost == 4000 * 60
    assert made.cost.restart == 4000 * 60
    assert made.proven


def test_lower_priority_goes_first():
    fleet = Fleet("ab")
    fleet.run("middle", "a", 4, priority=5, started_at_s=NOW - 60)
    fleet.run("low", "b", 4, priority=0)
    assert stopped(plan(fleet, whole(4))) == {"low"}


def test_one_large_is_better_than_many_small_when_it_costs_less():
    """a  bbbb   b  ssss: two cards are wanted, two single ones on b cost less than the large one on a."""
    fleet = Fleet("ab")
    fleet.run("big", "a", 4)
    for number in range(4):
        fleet.run(f"small-{number}", "b", 1)
    assert stopped(plan(fleet, whole(2))) == {"small-0", "small-1"}


def test_a_gang_counts_as_a_whole():
    """a  g...s...  The gang on a and b comes down entirely: the dearer single pod is the cheaper victim.

    a  gggg     the gang of 4 nodes holds 16 cards in all
    b  gggg
    c  gggg
    d  gggg
    e  ssss     alone, but twice as long without a saved state
    """
    fleet = Fleet("abcde")
    fleet.run("gang", "abcd", 4)
    fleet.run("single", "e", 4, started_at_s=NOW - 7200)
    made = plan(fleet, whole(4))
    assert stopped(made) == {"single"}


def test_an_elastic_gang_gives_what_it_can_spare():
    fleet = Fleet("abcde")
    fleet.run("gang", "abcd", 4, min_members=3)
    fleet.run("single", "e", 4, started_at_s=NOW - 7200)
    made = plan(fleet, whole(4))
    assert [(victim.workload, victim.members, victim.whole) for victim in made.victims] == [
        ("gang", ("gang-0",), False)
    ]


def test_an_elastic_gang_below_its_least_counts_as_a_whole():
    """a  ggss: both members on a have to go, which is one more than the gang can spare."""
    fleet = Fleet("ab", cards=4)
    fleet.run("gang", "aabb", 2, min_members=3)
    made = plan(fleet, whole(4))
    assert [victim.members for victim in made.victims] == [("gang-0", "gang-1", "gang-2", "gang-3")]
    assert made.cost.lost == 8000 * 3600


def test_a_disruption_budget_is_kept():
    fleet = Fleet("ab")
    fleet.run("guarded", "a", 4, budget="web", started_at_s=NOW)
    fleet.run("other", "b", 4)
    assert stopped(plan(fleet, whole(4), budgets={"web": 0})) == {"other"}
    assert stopped(plan(fleet, whole(4), budgets={"web": 1})) == {"guarded"}


def test_a_gang_needs_a_budget_for_all_its_members():
    fleet = Fleet("ab")
    fleet.run("guarded", "ab", 4, budget="web")
    made = plan(fleet, whole(4), budgets={"web": 1})
    assert isinstance(made, Refusal)
    assert made.code is Reason.BUDGETS
    assert stopped(plan(fleet, whole(4), budgets={"web": 2})) == {"guarded"}


def test_two_on_one_budget_of_one():
    fleet = Fleet("a")
    for number in range(4):
        fleet.run(f"guarded-{number}", "a", 1, budget="web")
    assert len(stopped(plan(fleet, whole(1), budgets={"web": 1}))) == 1
    assert isinstance(plan(fleet, whole(2), budgets={"web": 1}), Refusal)


def test_cpu_is_freed_as_well_as_cards():
    """The node has free cards and no CPU: the pod that holds the CPU goes, though it holds no card."""
    fleet = Fleet("a", cards=4, cpu=8000)
    fleet.run("cards", "a", 2)
    fleet.run("cpu", "a", request=Request(Gpus(), cpu_milli=7000))
    assert stopped(plan(fleet, whole(1, cpu=4000))) == {"cpu"}


def test_a_shared_card_comes_free_when_all_sharers_go():
    """One card of thirds, one of a half: the half is cheaper for a whole card, a third for a third."""
    fleet = Fleet("a", cards=2)
    for number in range(3):
        fleet.run(f"third-{number}", "a", request=Request(Gpus(milli=333)))
    fleet.run("half", "a", request=Request(Gpus(milli=700)))
    assert stopped(plan(fleet, whole(1))) == {"half"}
    assert stopped(plan(fleet, Request(Gpus(milli=302)))) == {"third-0"}


def test_wiring_that_is_required_is_freed():
    """Two cards below one PCIe switch are wanted. The cheapest two (c) are below different ones.

    a  cd cd     switches of two cards
    """
    fleet = Fleet("a")
    for number, age in enumerate((10, 3000, 20, 4000)):
        fleet.run(f"w{number}", "a", 1, started_at_s=NOW - age)
    assert stopped(plan(fleet, whole(2))) == {"w0", "w2"}
    assert stopped(plan(fleet, whole(2, preference=Preference.SAME_PCIE_SWITCH))) == {"w0", "w1"}


def test_a_slice_is_freed_by_whoever_holds_one_of_its_profile():
    a100 = catalog.find_model("A100-SXM4-80GB")
    assert a100.geometry is not None
    cut = tuple(parse_placement(a100.geometry, text) for text in ("3g.40gb@0", "2g.20gb@4"))
    shape = Shape(nvswitch(1), a100.name, a100.memory_mib, str(a100.architecture), a100.geometry)
    fitter = Fitter(Snapshot.from_nodes([Node("a", shape, 64_000, 2**38, cut={0: cut})]))
    running = []
    for number, profile in enumerate(("3g.40gb", "2g.20gb")):
        request = Request(Gpus(profile=profile, slices=1))
        grant = fitter.find_grant(request, 0)
        assert grant is not None
        fitter.snapshot.commit(grant)
        running.append(Running(f"w{number}", (Member(f"w{number}", request, grant),), started_at_s=NOW - 10))
    for number, profile in enumerate(("3g.40gb", "2g.20gb")):
        made = plan_preemption(fitter, None, Request(Gpus(profile=profile, slices=1)), running, NOW, priority=1)
        assert isinstance(made, PreemptionPlan)
        assert stopped(made) == {f"w{number}"}
        assert made.cost.lost == 1000 * (3, 2)[number] // 7 * 10


@pytest.mark.parametrize("cards", [1, 2, 3, 4])
def test_no_victim_can_be_dropped(cards):
    fleet = Fleet("abc")
    for node in "abc":
        for number in range(4):
            fleet.run(f"{node}{number}", node, 1, started_at_s=NOW - 100 * number - ord(node))
    made = plan(fleet, whole(cards))
    assert len(made.victims) == cards


def test_reasons_say_who_goes_where_and_at_what_cost():
    fleet = Fleet("a")
    fleet.run("low", "a", 4)
    made = plan(fleet, whole(4))
    assert made.reasons == ("stop all of low on a, which costs 4.07 GPU-hours",)
    assert str(plan(fleet, whole(8))) == "PreemptionDoesNotSuffice: 1 workloads with 4 GPUs could be stopped"


def test_many_small_workloads_on_a_node_are_searched_to_the_end():
    """Sixteen workloads of different cost, eight must go: the lower bound leaves few of the 2^16 sets to try."""
    fleet = Fleet("a", cards=16)
    for number in range(16):
        fleet.run(f"low-{number}", "a", 1, started_at_s=NOW - 60.0 * (number + 1))
    made = plan(fleet, whole(8))
    assert stopped(made) == {f"low-{number}" for number in range(8)}
    assert made.proven

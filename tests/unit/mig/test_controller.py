"""The controller against a cluster in memory, with agents that cut what it asks."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.fakes.mig_world import World

from kgwe.kube.api.kgwe.gpunode import HeldDevices
from kgwe.kube.api.meta import Condition
from kgwe.kube.translate import mig_layouts

SEVEN = " ".join(f"1g.10gb@{start}" for start in range(7))
AS_BUILT = "3g.40gb@0 2g.20gb@4 1g.10gb@6"
BUILT = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.125}
"""The distribution that is that."""


def test_without_a_strategy_nothing_is_touched() -> None:
    world = World()
    world.pod("a", "7g.80gb")
    assert world.round() == []


def test_a_fixed_distribution_is_cut_and_reported() -> None:
    world = World(2)
    world.strategy(shares={"3g.40gb": 0.5})
    world.settle()
    cuts = [*world.cuts(0), *world.cuts(1)]
    assert sum(cut.count("3g.40gb") for cut in cuts) == 4
    assert cuts.count("whole") == 2
    status = world.strategies["s"].status
    assert status.appliedNodes == tuple(sorted(world.gpu_nodes))
    assert status.currentDistribution == {"3g.40gb": 0.5}
    assert status.lastRebalanceTime
    assert world.ready() == ("True", "Applied", "")
    assert world.round() == [], "nothing changed, nothing is written"


def test_while_agents_work_the_status_says_so_and_few_nodes_begin() -> None:
    world = World(3, max_concurrent_nodes=2)
    world.strategy()
    assert world.round() == [*(f"node {name}" for name in sorted(world.gpu_nodes)[:2]), "status s"]
    assert world.ready()[:2] == ("False", "Cutting")
    assert world.round() == [], "two are at it"
    world.agents()
    world.settle()
    assert {cut for node in range(3) for cut in world.cuts(node)} == {SEVEN}


def test_what_is_in_use_stays_where_the_agent_says_who_has_what() -> None:
    world = World(cards=1)
    name = next(iter(world.gpu_nodes))
    world.pod("a", "2g.20gb", node=name)
    world.set_status(name, held=(HeldDevices("team/a", "a", "", ("0@4",)),))
    world.strategy()
    world.round()
    assert world.wishes() == ["1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 2g.20gb@4 1g.10gb@6"]


def test_where_nobody_knows_who_has_what_all_slices_of_the_profile_stay() -> None:
    world = World(cards=2)
    world.pod("a", "2g.20gb", node=next(iter(world.gpu_nodes)))
    world.strategy()
    world.round()
    assert all("2g.20gb@4" in wish and "3g.40gb" not in wish for wish in world.wishes())


def test_plans_are_believed_where_the_agent_says_that_they_came_true() -> None:
    world = World(cards=2)
    name = next(iter(world.gpu_nodes))
    world.pod("a", "2g.20gb", node=name, annotations={"kgwe.nvidia.io/slices": "1@4"})
    world.set_status(name, conditions=(Condition("DevicesAsPlanned", "True"),))
    world.strategy()
    world.round()
    assert ["2g.20gb@4" in wish for wish in world.wishes()] == [False, True]


def test_planned_slices_are_taken_before_their_pod_is_there() -> None:
    world = World(cards=1)
    instance = next(iter(world.gpu_nodes.values())).status.gpus[0].mig.instances[0]
    planned = {"parentGPU": "x", "instanceUUID": instance.uuid, "profile": instance.profile}
    world.workload("w", "3g.40gb", phase="Scheduled", migInstances=[planned])
    world.strategy()
    world.round()
    assert "3g.40gb@0" in world.wishes()[0]


def test_a_waiting_workload_gets_its_slice_beside_its_neighbour() -> None:
    world = World(cards=1)
    name = next(iter(world.gpu_nodes))
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    assert world.cuts() == [AS_BUILT], "it is what the distribution says"
    world.pod("neighbour", "3g.40gb", node=name)
    world.set_status(name, held=(HeldDevices("team/neighbour", "neighbour", "", ("0@0",)),))
    world.workload("w", "3g.40gb")
    world.round()
    assert world.wishes() == ["3g.40gb@0 3g.40gb@4"]
    assert world.round() == [], "it waits for the agent, and nothing else happens"
    world.settle()
    assert world.cuts() == ["3g.40gb@0 3g.40gb@4"]
    assert world.controller.planner.waiting == 0


def test_a_right_sized_workload_gets_the_slice_of_its_status() -> None:
    world = World(cards=1)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.workload("small", "", effectiveRequirements={"resource": "nvidia.com/mig-7g.80gb"})
    world.settle()
    assert world.cuts() == ["7g.80gb@0"]


def test_a_workload_in_shadow_mode_gets_no_slice() -> None:
    world = World(cards=1)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.workload("shown", "", effectiveRequirements={"resource": "nvidia.com/gpu", "wouldBe": "1×7g.80gb"})
    assert world.round() == []


def test_waiting_pods_are_cut_for_where_they_may_go() -> None:
    world = World(2, cards=1)
    first, second = world.gpu_nodes
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.pod("a", "7g.80gb", nodeSelector={"kubernetes.io/hostname": second})
    world.settle()
    assert (world.cuts(0), world.cuts(1)) == ([AS_BUILT], ["7g.80gb@0"])
    world.pod("b", "7g.80gb", nodeSelector={"no": "where"})
    world.now += 30
    world.settle()
    assert world.cuts(0) == [AS_BUILT]
    status, reason, message = world.ready()
    assert (status, reason) == ("True", "Applied")
    assert "waits, pod team/b: no GPU can be re-cut" in message
    del first


def test_a_pod_that_no_scheduler_has_refused_is_not_cut_for() -> None:
    world = World(cards=1)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.pod("a", "7g.80gb", schedulingGates=[{"name": "somebody's"}])
    assert world.round() == []


def test_a_card_is_left_as_it_is_for_a_while_after_a_cut() -> None:
    world = World(cards=1, cooldown_seconds=30.0)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.pod("a", "7g.80gb")
    world.settle()
    del world.pods["a"]
    world.pod("b", "4g.40gb")
    world.settle()
    assert world.cuts() == ["7g.80gb@0"]
    world.now += 30
    world.settle()
    assert world.cuts() == ["4g.40gb@0"]


def test_demand_that_comes_and_goes_does_not_make_cards_swing() -> None:
    """Two kinds of work in turns, each once a minute for two hours: cards are cut far less often than it changes."""
    world = World(cards=2, cooldown_seconds=30.0)
    world.strategy(shares={"3g.40gb": 1.0}, allowDynamicReconfig=True, rebalanceInterval="5m")
    world.settle()
    before = world.controller.planner.recuts
    for minute in range(120):
        world.pods.clear()
        world.pod(f"p{minute}", ("3g.40gb", "2g.20gb")[minute % 2])
        world.now += 59
        world.settle()
    assert world.controller.planner.recuts - before <= 4


def test_the_higher_priority_decides_and_the_lower_gets_the_rest() -> None:
    world = World(2, cards=1)
    first, second = world.gpu_nodes
    world.relabel(first, pool="special")
    world.strategy("general", shares={"1g.10gb": 1.0})
    world.strategy("special", shares={"7g.80gb": 1.0}, nodeSelector={"pool": "special"}, priority=5)
    world.settle()
    assert (world.cuts(0), world.cuts(1)) == (["7g.80gb@0"], [SEVEN])
    assert world.strategies["special"].status.appliedNodes == (first,)
    assert world.strategies["general"].status.appliedNodes == (second,)


def test_when_no_strategy_means_a_card_any_more_it_is_let_go_as_it_is() -> None:
    world = World(cards=1)
    world.strategy()
    world.settle()
    world.strategies.clear()
    assert world.round() == [f"node {next(iter(world.gpu_nodes))}"]
    assert (world.wishes(), world.cuts()) == ([], [SEVEN])


def test_what_an_administrator_asks_of_a_card_that_no_strategy_means_is_his_affair() -> None:
    world = World(cards=1)
    name = next(iter(world.gpu_nodes))
    world.own(name, "7g.80gb@0")
    assert world.round() == [f"node {name}"], "asked once whether it is ours"
    assert world.wishes() == ["7g.80gb@0"]
    assert world.round() == []


@pytest.mark.parametrize(
    ("labels", "why"),
    [({mig_layouts.DEPLOY_LABEL: "true"}, "mig-manager"), ({mig_layouts.STRATEGY_LABEL: "single"}, "plain GPUs")],
)
def test_nodes_of_others_are_left_alone_and_said_so(labels: dict[str, str], why: str) -> None:
    world = World(2, cards=1)
    first, _ = world.gpu_nodes
    world.relabel(first, **labels)
    world.strategy()
    world.settle()
    assert (world.cuts(0), world.cuts(1)) == ([AS_BUILT], [SEVEN])
    assert why in world.ready()[2]


def test_a_failed_card_is_said_and_another_is_cut_for_what_waits() -> None:
    world = World(2, cards=1)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.pod("a", "7g.80gb")
    world.round()
    chosen = next(name for number, name in enumerate(world.gpu_nodes) if world.wishes(number) == ["7g.80gb@0"])
    (device,) = world.gpu_nodes[chosen].status.gpus
    broken = msgspec.structs.replace(device.mig, phase="RolledBack", message="no luck")
    world.set_status(chosen, gpus=(msgspec.structs.replace(device, mig=broken),))
    world.round()
    other = next(number for number, name in enumerate(world.gpu_nodes) if name != chosen)
    assert world.wishes(other) == ["7g.80gb@0"]
    assert world.ready()[:2] == ("False", "Failed")
    assert f"{chosen} 0: no luck" in world.ready()[2]


def test_a_failed_card_may_be_asked_for_something_else_later() -> None:
    world = World(cards=1, patience_seconds=60.0)
    world.strategy(shares={"7g.80gb": 1.0})
    world.round()
    name = next(iter(world.gpu_nodes))
    (device,) = world.gpu_nodes[name].status.gpus
    broken = msgspec.structs.replace(device.mig, phase="RolledBack", message="no luck")
    world.set_status(name, gpus=(msgspec.structs.replace(device, mig=broken),))
    world.strategy(shares={"1g.10gb": 1.0})
    world.round()
    assert world.wishes() == ["7g.80gb@0"], "its agent is at it"
    world.now += 61
    world.round()
    assert world.wishes() == [SEVEN]
    before = world.controller.planner.recuts
    world.now += 61
    world.round()
    assert world.controller.planner.recuts == before, "asked already"


def test_an_agent_that_does_nothing_is_not_waited_for_for_ever() -> None:
    world = World(3, cards=1, max_concurrent_nodes=1, patience_seconds=60.0)
    world.strategy()
    world.round()
    assert sum(bool(world.wishes(number)) for number in range(3)) == 1
    world.now += 61
    world.round()
    assert sum(bool(world.wishes(number)) for number in range(3)) == 2


def test_a_whole_card_in_use_is_cut_when_its_pod_ends() -> None:
    world = World(1, "a100", cards=2)
    name = next(iter(world.gpu_nodes))
    cards = [device.uuid for device in world.gpu_nodes[name].status.gpus]
    world.pod("a", "", node=name)
    world.set_status(name, held=(HeldDevices("team/a", "a", "1"),))
    world.strategy(shares={"7g.80gb": 1.0})
    world.round()
    world.agents(cards[0])
    assert world.cuts() == ["whole", "7g.80gb@0"]
    world.round()
    assert world.ready()[:2] == ("False", "InUse")
    world.agents()
    world.settle()
    assert world.cuts() == ["7g.80gb@0", "7g.80gb@0"]


def test_profiles_that_no_card_has_are_said() -> None:
    world = World(cards=1)
    world.strategy(shares={"1g.6gb": 1.0})
    world.settle()
    assert world.cuts() == [AS_BUILT]
    assert world.ready() == ("False", "NoSuchProfile", "A100-80GB supports none of the profiles")
    assert world.wishes() == [AS_BUILT], "decided: it may be given out"


def test_what_no_layout_has_room_for_is_said() -> None:
    world = World(cards=1)
    world.strategy(shares={"1g.10gb": 1.0})
    world.settle()
    assert world.ready() == ("True", "Applied", "1 x 1g.10gb missing: no layout has room")


def test_a_message_alone_is_rewritten_seldom() -> None:
    world = World(cards=1)
    world.strategy(shares=BUILT, allowDynamicReconfig=True)
    world.settle()
    world.now += 60
    for number in range(5):
        world.pods.clear()
        world.pod(f"p{number}", "7g.80gb", nodeSelector={"no": "where"})
        assert world.round() == (["status s"] if number == 0 else [])
    world.now += 30
    assert world.round() == ["status s"]
    assert "pod team/p4" in world.ready()[2]


def test_preferred_profiles_are_kept_ready() -> None:
    world = World(cards=1, enable_prewarming=True, preferred_profiles=("2g.20gb",))
    world.strategy(shares={"4g.40gb": 0.5}, allowDynamicReconfig=True)
    world.settle()
    assert world.cuts() == ["4g.40gb@0 2g.20gb@4"]

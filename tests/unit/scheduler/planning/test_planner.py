"""Decisions are delivered with their plans; what is assumed for an owner is free again when nothing comes of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders.objects import added, free, node
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.blocked_nodes import BlockedNodes
from kgwe.apps.scheduler.planning.interruptions import Interruptions
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.queue.workloads import RunTime
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def ask(owner: str, gpus: int = 8) -> Ask:
    return Ask(owner, Request(Gpus(count=gpus)), {amounts.GPU: gpus, amounts.PODS: 1}, namespace="team", name=owner)


class Bed:
    def __init__(self) -> None:
        self.state = ClusterState()
        for name in ("n1", "n2"):
            self.state.on_node(added(node(name)))
        self.decisions: list[tuple[str, Plan | Refusal]] = []
        self.refused = 0
        self.changed = asyncio.Event()
        self.metrics = Metrics()
        self.planner = Planner(
            self.state,
            {},
            random.Random(1),
            self.metrics,
            faults=PlanningErrors(self.metrics),
            on_decided=self._decided,
            on_refused=self._count_refused,
        )

    def _decided(self, owner: str, decision: Plan | Refusal) -> None:
        self.decisions.append((owner, decision))
        self.changed.set()

    def _count_refused(self) -> None:
        self.refused += 1
        self.changed.set()

    async def until_decided(self, *owners: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not set(owners) <= {owner for owner, _ in self.decisions}:
                self.changed.clear()
                await self.changed.wait()

    async def until_refused(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.refused < times:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    yield made
    made.planner.close()


async def test_a_plan_is_delivered_with_its_seats_which_are_reserved(bed):
    bed.planner.request_place(ask("a"))
    await bed.until_decided("a")
    ((owner, plan),) = bed.decisions
    assert owner == "a"
    assert isinstance(plan, Plan)
    assert [seat.node for seat in plan.seats] == ["n1"]
    assert free(bed.state) == {"n1": 0, "n2": 8}
    assert bed.planner.has_plan("a")
    assert bed.planner.waiting_ask("a") is None


async def test_a_short_workload_that_starts_before_an_equal_one_gets_its_own_plan(bed):
    """Two equal workloads wait behind a reservation. Only the second says that it ends in time."""
    bed.planner.request_place(replace(ask("long"), expected_s=1000.0))
    await bed.until_decided("long")
    for each in (replace(ask("gang"), pods=2), ask("silent", 4), replace(ask("short", 4), expected_s=10.0)):
        bed.planner.request_place(each)
    await bed.until_decided("gang", "silent", "short")
    decided = dict(bed.decisions)
    assert isinstance(decided["short"], Plan)
    assert decided["short"].ask.owner == "short"
    assert isinstance(decided["silent"], Refusal)
    assert sorted(bed.planner.list_waiting()) == ["gang", "silent"]


async def test_a_plan_that_is_discarded_frees_its_seats_and_a_confirmed_one_keeps_them(bed):
    bed.planner.request_place(ask("kept"))
    bed.planner.request_place(ask("dropped"))
    await bed.until_decided("kept", "dropped")
    bed.planner.confirm_plan("kept")
    for owner in ("kept", "dropped"):
        bed.planner.discard_plan(owner)
    assert sorted(free(bed.state).values()) == [0, 8]


async def test_a_refusal_that_waiting_cannot_help_is_delivered_when_its_message_changes(bed):
    bed.planner.request_place(ask("large", 9))
    await bed.until_decided("large")
    ((_, refusal),) = bed.decisions
    assert isinstance(refusal, Refusal)
    assert bed.planner.refusal_of("large") == refusal
    assert [(waiting.owner, why) for waiting, why in bed.planner.refused_asks()] == [("large", refusal)]
    bed.planner.request_place(ask("large", 10))
    await bed.until_refused(2)
    assert [why.code for _, why in bed.decisions] == ["TooLarge", "TooLarge"]
    assert "for 10 GPUs" in bed.decisions[1][1].message
    assert bed.planner.waiting_count == 1


async def test_an_owner_that_is_forgotten_leaves_nothing_behind(bed):
    bed.planner.request_place(ask("a"))
    await bed.until_decided("a")
    bed.planner.request_place(ask("large", 9))
    await bed.until_decided("large")
    for owner in ("a", "large"):
        bed.planner.forget(owner)
    assert free(bed.state) == {"n1": 8, "n2": 8}
    assert list(bed.planner.refused_asks()) == []
    assert bed.planner.waiting_count == 0


async def test_a_planner_that_closes_frees_what_was_not_executed(bed):
    bed.planner.request_place(ask("a"))
    await bed.until_decided("a")
    bed.planner.close()
    assert free(bed.state) == {"n1": 8, "n2": 8}


async def test_the_depth_of_the_queue_is_shown_between_start_and_end(bed):
    def depth() -> Any:
        return bed.metrics.registry.get_sample_value("kgwe_workload_queue_depth")

    bed.planner.request_place(ask("large", 9))
    assert depth() == 0.0, "constructing has no effect on others"
    bed.planner.start()
    assert depth() == 1.0
    bed.planner.close()
    assert depth() == 0.0


def test_a_pod_may_not_use_nodes_reserved_for_higher_or_equal_priorities():
    state = ClusterState()
    for name in ("n1", "n2", "n3"):
        state.on_node(added(node(name)))
    blocked = BlockedNodes()
    assert blocked.mask_for(state.fleet, 0) is None
    blocked.update(state.fleet, [(100, frozenset({"n1"})), (10, frozenset({"n2", "gone"}))])
    assert [mask for mask in (blocked.mask_for(state.fleet, 101),) if mask is not None] == []
    for priority, expected in ((100, {"n1"}), (11, {"n1"}), (10, {"n1", "n2"})):
        mask = blocked.mask_for(state.fleet, priority)
        assert mask is not None
        assert {name for name, number in state.fleet.snapshot.index.items() if mask[number]} == expected
    state.on_node(added(node("n4")))
    assert blocked.mask_for(state.fleet, 0) is None, "the nodes have other numbers now"


def test_an_interrupted_owner_says_why_and_one_that_recovers_comes_first():
    interruptions = Interruptions()
    asked = ask("a")
    refusal = Refusal(Reason.INSUFFICIENT_GPU, "no room")
    assert interruptions.prioritize(asked) is asked
    assert interruptions.explain("a", refusal) is refusal
    interruptions.record("a", Reason.PREEMPTED, "stopped for b")
    assert not interruptions.prioritize(asked).first_claim
    assert interruptions.explain("a", refusal).message == "stopped for b. no room"
    interruptions.record("a", Reason.RECOVERING, "node n9 is lost")
    assert interruptions.prioritize(asked).first_claim
    assert interruptions.explain("a", refusal).code is Reason.RECOVERING
    interruptions.clear("a")
    assert interruptions.get("a") is None


async def test_predicted_run_times_reach_workloads_that_wait_and_that_run(bed: Bed) -> None:
    for owner in ("a", "b", "c"):
        bed.planner.request_place(ask(owner))
    await bed.until_decided("a", "b", "c")
    bed.planner.set_run_times({"a": RunTime(60.0, 90.0), "c": RunTime(30.0, 40.0)})
    cycle = bed.planner._cycle
    running = cycle.roster.find("a")
    assert running is not None
    assert running.run_time == RunTime(60.0, 90.0)
    assert cycle._queued_workload(ask("c")).run_time == RunTime(30.0, 40.0)
    bed.planner.set_run_times({})
    running = cycle.roster.find("a")
    assert running is not None
    assert running.run_time is None


async def test_a_new_leader_knows_the_run_times_of_running_workloads(bed: Bed) -> None:
    bed.planner.count_running("old", "team", 8000, 1000.0, 600.0)
    bed.planner.count_running("unknown", "team", 8000, 0.0, 600.0)
    listed, _ = bed.planner._cycle.roster.list_timed()
    assert [(each.key, each.run_time) for each in listed] == [("old", RunTime(600.0, 1200.0))]

"""An error in planning one work is that work's alone; a pass that fails as a whole loses nothing and is reported."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.support.builders.objects import added, make, node, pod_spec
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.leader import Leader
from kgwe.apps.scheduler.main import Scheduler
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.httpx_transport import HttpxTransport
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# More than 64 bits hold. Manifests are cut below that where they are read: this stands for any error in planning.
BEYOND = 2**64


class Bed:
    def __init__(self) -> None:
        self.state = ClusterState()
        for name in ("n1", "n2"):
            self.state.on_node(added(node(name)))
        self.metrics = Metrics()
        self.faults = PlanningErrors(self.metrics)
        self.planner = Planner(
            self.state, {}, random.Random(1), self.metrics, faults=self.faults, on_decided=self._decided
        )
        self.broken = ""  # whose plan cannot be delivered

    def _decided(self, owner: str, decision: Plan | Refusal) -> None:
        if owner == self.broken and isinstance(decision, Plan):
            raise RuntimeError("no")

    def reason_of(self, owner: str) -> Reason | None:
        refusal = self.planner.refusal_of(owner)
        return refusal.code if refusal is not None else None

    async def until(self, true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():  # noqa: ASYNC110 - the planner tells nobody
                await asyncio.sleep(0.01)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    yield made
    made.planner.close()


def ask(owner: str, gpus: int = 1, pods: int = 1, *, memory: int = 0, priority: int = 0) -> Ask:
    wanted = {amounts.GPU: gpus, amounts.PODS: 1}
    request = Request(Gpus(count=gpus), memory_bytes=memory)
    return Ask(owner, request, wanted, pods, priority=priority, namespace="team", name=owner)


class Breaking(GangRequest):
    """Breaks the pass itself: its size is asked for before any work has its turn."""

    @property
    def replicas(self) -> int:
        raise RuntimeError("the pass is broken")


def breaker(owner: str) -> Ask:
    plain = ask(owner)
    return replace(plain, gang=Breaking(GangRequest.uniform(plain.request, 2).roles))


async def test_an_error_in_planning_one_work_leaves_the_others_alone(bed: Bed):
    bed.planner.request_place(ask("bad", memory=BEYOND, priority=100))
    bed.planner.request_place(ask("good", 8))
    await bed.until(lambda: bed.planner.has_plan("good") and bed.reason_of("bad") is not None)

    assert bed.reason_of("bad") is Reason.INTERNAL_ERROR
    assert "OverflowError" in getattr(bed.planner.refusal_of("bad"), "message", "")
    assert bed.count("kgwe_planning_errors_total", stage="plan") >= 1
    assert bed.faults.problem is None


async def test_the_same_in_a_thread(bed: Bed):
    bed.planner.request_place(ask("bad", 1, 40, memory=BEYOND, priority=100))
    bed.planner.request_place(ask("large", 1, 33))
    bed.planner.request_place(ask("good", 8))
    await bed.until(lambda: bed.planner.has_plan("good") and None not in (bed.reason_of("bad"), bed.reason_of("large")))

    assert bed.reason_of("bad") is Reason.INTERNAL_ERROR
    assert bed.reason_of("large") is Reason.TOO_LARGE
    assert bed.faults.problem is None


async def test_it_is_tried_again_after_growing_pauses(bed: Bed):
    bed.planner.request_place(ask("bad", memory=BEYOND))
    await bed.until(lambda: bed.count("kgwe_planning_errors_total", stage="plan") == 1)
    for number in range(20):
        bed.planner.request_place(ask(f"good-{number}", 16))  # each makes a pass
        await asyncio.sleep(0.02)

    passes = bed.count("kgwe_dispatch_duration_seconds_count")
    assert bed.count("kgwe_planning_errors_total", stage="plan") < passes / 2, "not with every pass"
    await bed.until(lambda: bed.count("kgwe_planning_errors_total", stage="plan") >= 2)


async def test_edited_into_something_that_can_be_planned_it_is_planned(bed: Bed):
    bed.planner.request_place(ask("w", memory=BEYOND))
    await bed.until(lambda: bed.reason_of("w") is not None)
    bed.planner.request_place(ask("w", 2))
    await bed.until(lambda: bed.planner.has_plan("w"))


async def test_a_decision_that_cannot_be_carried_out_holds_nothing_and_stops_no_other(bed: Bed):
    bed.broken = "bad"
    bed.planner.request_place(ask("bad", 8, priority=100))
    bed.planner.request_place(ask("good", 16 // 2))
    await bed.until(lambda: bed.planner.has_plan("good") and bed.reason_of("bad") is not None)

    assert bed.reason_of("bad") is Reason.INTERNAL_ERROR
    assert not bed.state.ledger.has_seats("bad")
    bed.broken = ""
    await bed.until(lambda: bed.planner.has_plan("bad"))


async def test_a_pass_that_fails_as_a_whole_loses_nothing_and_is_reported(bed: Bed):
    bed.planner.request_place(breaker("breaker"))
    bed.planner.request_place(ask("good", 8))
    await bed.until(lambda: bed.faults.problem is not None)

    assert "the pass is broken" in str(bed.faults.problem)
    assert bed.count("kgwe_planning_passes_failed_total") >= 3
    bed.planner.request_place(ask("late", 8))
    bed.planner.forget("breaker")
    await bed.until(lambda: bed.planner.has_plan("good") and bed.planner.has_plan("late"))
    assert bed.faults.problem is None


def test_one_failed_pass_is_no_reason_not_to_be_ready():
    faults = PlanningErrors(Metrics())
    pauses = [faults.pass_failed(ValueError("x")) for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert faults.problem is not None
    faults.pass_succeeded()
    faults.pass_failed(ValueError("x"))
    assert faults.problem is None


async def test_no_node_offers_gpus_while_one_work_runs_and_another_waits(bed: Bed):
    """Estimates are made of groups of nodes, of which there are none."""
    bed.planner.request_place(replace(ask("runs", 8), expected_s=100.0))
    await bed.until(lambda: bed.planner.has_plan("runs"))
    for name in ("n1", "n2"):
        bed.state.on_node(added(node(name, "0")))
    bed.planner.request_place(ask("waits", 8))
    await bed.until(lambda: bed.reason_of("waits") is not None)
    assert bed.reason_of("waits") is Reason.NO_GPU_NODES
    assert bed.faults.problem is None
    assert bed.count("kgwe_planning_errors_total", stage="estimate") == 0


def test_an_error_in_looking_at_one_gang_leaves_the_others_alone():
    faults: list[tuple[str, str]] = []
    state = ClusterState(report_error=lambda stage, owner, _error: faults.append((stage, owner)))
    state.on_node(added(node("n1")))
    gangs = state.gangs
    heard: list[str] = []

    def want(ask: Ask) -> None:
        if "bad" in ask.owner:
            raise RuntimeError("no")
        heard.append(ask.owner)

    later: list[Callable[[], None]] = []
    gangs.start_leading(LeaderActions(request_plan=want, call_soon=later.append))
    for name in ("bad", "good"):
        notes = {"kgwe.nvidia.io/gang": name, "kgwe.nvidia.io/gang-size": "1"}
        meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes}
        state.on_pod(added(make(resources.POD.type, {"metadata": meta, "spec": pod_spec(1)})))
    while later:
        later.pop()()

    assert len(heard) == 1
    assert "good" in heard[0]
    assert [stage for stage, _ in faults] == ["gang"]
    bad = gangs.group(faults[0][1])
    assert bad is not None
    assert "InternalError" in bad.problem


async def test_a_leader_whose_passes_fail_is_not_ready_and_says_why():
    async with httpx2.AsyncClient() as http:
        scheduler = Scheduler(Settings(), KubeClient(HttpxTransport(http)))
        for informer in scheduler.informers:
            informer.synced.set()
        assert scheduler.problem() == "standby: another replica is the leader"
        deps = scheduler.make_deps()
        term = Leader(deps)
        scheduler._acting, scheduler._planning_problem = True, term.problem
        assert scheduler.problem() is None
        for _ in range(3):
            deps.faults.pass_failed(OverflowError("too large"))
        assert "3 passes in a row failed, the last with OverflowError: too large" in str(scheduler.problem())
        deps.faults.pass_succeeded()
        assert scheduler.problem() is None

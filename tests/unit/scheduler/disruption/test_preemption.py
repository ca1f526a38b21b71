"""One preemption, step by step: what is kept, in which order pods are stopped, and what if it comes to nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import ONE, UID, added, free, job, node, pod, removed, workload
from tests.support.fakes.recording_client import RecordingClient
from tests.support.patience import until

from kgwe import errors
from kgwe.apps.scheduler.disruption.preemption import PreemptionController
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.state.running_view import RunningView
from kgwe.cluster.workload.owner import Reservation
from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfigSpec
from kgwe.kube.api.policy import PodDisruptionBudget
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.planning.ask import Ask
from kgwe.placement.refusal import Reason


class Events(list[Any]):
    def record(self, event):
        self.append((event.reason, event.note))


def high(owner="high", gpus=8, priority=100):
    return Ask(
        owner,
        Request(Gpus(count=gpus)),
        {amounts.GPU: gpus, amounts.PODS: 1},
        priority=priority,
        namespace="team",
        name=owner,
    )


def lenient(made):
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, preemptible=True))


def budgeted(name, **labels):
    made = pod(name, "", at="n1", gpus=2, notes={"kgwe.nvidia.io/preemptible": "true"})
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    return made


@pytest.fixture
async def bed(state):
    means: Any = SimpleNamespace(
        client=RecordingClient(),
        state=state,
        gangs=state.gangs,
        events=Events(),
        metrics=Metrics(),
        settings=Settings(),
    )
    means.faults = PlanningErrors(means.metrics)
    decisions: dict[str, Any] = {}
    planner = Planner(
        state,
        {},
        random.Random(1),
        means.metrics,
        faults=means.faults,
        on_decided=decisions.__setitem__,
        on_refused=lambda: preemption.look_soon(),  # noqa: PLW0108 - it is made below
    )
    preemption = PreemptionController(means, planner, RunningView(state, means.gangs, ""))
    yield SimpleNamespace(
        client=means.client,
        state=state,
        planner=planner,
        preemption=preemption,
        events=means.events,
        decisions=decisions,
    )
    await preemption.stop()
    planner.close()


@pytest.fixture
def victim(state):
    state.on_kgwe(added(lenient(workload())))
    state.on_job(added(job(seats=ONE)))
    state.on_pod(added(pod("p")))
    return state


async def test_a_job_is_deleted_before_its_pod_is_evicted_and_the_room_is_kept_until_both_are_gone(bed, victim):
    bed.planner.request_place(high())
    await until(lambda: len(bed.client.writes) == 2)
    assert [(each.subresource or each.verb, each.kind) for each in bed.client.writes] == [
        ("delete", "Job"), ("eviction", "Eviction"),
    ]  # fmt: skip
    assert bed.client.writes[1].name == "p"
    assert bed.planner.interruptions.get(UID)[0] is Reason.PREEMPTED
    await until(lambda: bed.events)
    assert bed.events == [("Preempted", "preempted by high (priority 100)")]
    bed.planner.request_place(high("late", 4, priority=0))
    victim.on_pod(removed(pod("p")))
    victim.on_job(removed(job(seats=ONE)))
    assert free(victim) == {"n1": 0}, "nobody else gets it"
    bed.preemption.handle_freed_capacity()
    assert bed.decisions["high"].nodes == ("n1",)
    assert bed.preemption.under_way == {}


async def test_the_room_is_kept_until_a_pod_that_replaced_a_victim_is_gone(bed, victim):
    """The Job controller may replace an evicted pod before it sees that its Job was deleted."""
    bed.planner.request_place(high())
    await until(lambda: bed.events)
    bed.planner.request_place(high("late", 4, priority=0))
    victim.on_pod(added(pod("replacement")))
    victim.on_pod(removed(pod("p")))
    victim.on_job(removed(job(seats=ONE)))
    bed.preemption.handle_freed_capacity()
    bed.planner.plan_soon()
    await until(lambda: bed.planner.refusal_of("late"))
    assert free(victim) == {"n1": 0}, "no other workload gets the room"
    assert list(bed.preemption.under_way) == ["high"]

    victim.on_pod(removed(pod("replacement")))
    bed.preemption.handle_freed_capacity()
    assert bed.decisions["high"].nodes == ("n1",)
    assert bed.preemption.under_way == {}


@pytest.mark.usefixtures("victim")
async def test_an_error_of_the_api_server_does_not_leave_a_preemption_half_done(bed):
    bed.client.failures = [errors.Transient("timed out")]
    bed.planner.request_place(high())
    await until(lambda: bed.events)
    assert bed.client.attempts == ["delete", "delete", "create"]
    assert list(bed.preemption.under_way) == ["high"]


@pytest.mark.usefixtures("victim")
async def test_no_victim_is_stopped_for_a_workload_that_is_gone(bed):
    bed.client.failures = [errors.Transient("timed out")]
    bed.planner.request_place(high())
    await until(lambda: bed.client.refused)
    bed.planner.forget("high")
    bed.preemption.forget("high")
    await until(lambda: not bed.preemption._tasks._tasks)
    assert bed.client.writes == []
    assert bed.events == []


async def test_a_defect_while_victims_are_stopped_ends_the_preemption(bed, victim):
    bed.client.failures = [RuntimeError("a defect")]
    bed.planner.request_place(high())
    await until(lambda: bed.client.refused)
    await until(lambda: not bed.preemption.under_way)
    assert not victim.ledger.has_seats(Reservation("high").text)


async def test_if_the_work_goes_away_meanwhile_its_room_is_given_back(bed, victim):
    bed.planner.request_place(high())
    await until(lambda: "high" in bed.preemption.under_way)
    bed.planner.forget("high")
    bed.preemption.handle_freed_capacity()
    assert bed.preemption.under_way == {}
    assert not victim.ledger.has_seats(Reservation("high").text)


async def test_a_budget_that_says_no_after_all_stops_everything_at_the_first_pod(bed, state):
    """Two pods under budgets and two under none: the refused one is asked before those under none are touched."""
    selector = {"matchLabels": {"app": "x"}}
    body = {
        "metadata": {"name": "b", "namespace": "team", "generation": 1},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": 2, "observedGeneration": 1},
    }
    state.on_budget(added(msgspec.convert(body, PodDisruptionBudget)))
    for name, labels in (("a", {}), ("b", {"app": "x"}), ("c", {}), ("d", {"app": "x"})):
        state.on_pod(added(budgeted(name, **labels)))
    refusal = DisruptionBudgetRefused("Cannot evict pod as it would violate the pod's disruption budget.")
    bed.client.failures_by_name = {"b": refusal, "d": refusal}
    bed.planner.request_place(high())
    await until(lambda: bed.client.refused)
    await until(lambda: not bed.preemption.under_way)
    assert bed.client.refused == 1
    assert bed.client.writes == []
    assert bed.preemption.under_way == {}
    assert not state.ledger.has_seats(Reservation("high").text)


async def test_plain_pods_that_say_so_make_way_and_others_do_not(bed, state):
    firm = msgspec.structs.replace(budgeted("firm"), metadata=pod("firm", "").metadata)
    state.on_pod(added(msgspec.structs.replace(firm, metadata=msgspec.structs.replace(firm.metadata, labels={}))))
    for name in ("a", "b", "c"):
        state.on_pod(added(budgeted(name)))
    bed.planner.request_place(high(gpus=8))
    bed.planner.request_place(high("helped", gpus=4, priority=50))
    await until(lambda: len(bed.client.writes) == 2)
    assert {each.name for each in bed.client.writes} < {"a", "b", "c"}
    assert list(bed.preemption.under_way) == ["helped"], "eight are not to be had while the firm one runs"


async def test_switched_off_nothing_is_looked_for(bed, victim):
    victim.fleet_state.config = SimpleNamespace(spec=SchedulerConfigSpec(enablePreemption=False))
    bed.planner.request_place(high())
    await until(lambda: bed.planner.refusal_of("high"))
    bed.preemption._look()
    assert bed.preemption._looking is None
    assert bed.client.writes == []

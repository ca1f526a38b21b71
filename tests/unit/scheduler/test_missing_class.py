"""A workload whose PriorityClass or ResourceClaim does not exist waits and says so: its pods could not start."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.builders.objects import NAME, ONE, UID, added, job, make, node, removed

from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.apps.scheduler.disruption.recovery import RecoveryController
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.apps.scheduler.workloads.reconciler import Reconciler
from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
from kgwe.cluster.state import run_state
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import scheduler_policy
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.resource import ResourceClaim
from kgwe.kube.api.scheduling import PriorityClass

WORDS = "PriorityClass urgent does not exist. Create it, or change priorityClassName."


class Client:
    """Takes down the status that is written."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def patch(self, _resource, _name, body, _namespace, **_):
        self.status = body["status"]
        return SimpleNamespace(metadata=ObjectMeta(resourceVersion="1"))


def workload(priority: int = 0, **pod: Any) -> Any:
    meta = {"name": "w", "namespace": "team", "uid": UID, "generation": 1, "resourceVersion": "1"}
    pod = pod or {"priorityClassName": "urgent"}
    template = {"spec": {**pod, "containers": [{"name": "main", "image": "i"}]}}
    spec = {"gpuRequirements": {"count": 4}, "podTemplate": template, "priority": priority}
    return make(resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": spec})


def the_class(name: str) -> Any:
    return added(PriorityClass(ObjectMeta(name=name), 5_000))


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_priority_class(the_class("system-node-critical"))
    made.on_kgwe(added(workload()))
    return made


@pytest.fixture
async def bed(state):
    now = [100.0]
    client, metrics = Client(), Metrics()
    means: Any = SimpleNamespace(
        client=client,
        state=state,
        events=SimpleNamespace(record=lambda _event: None),
        settings=Settings(),
        metrics=metrics,
        gangs=state.gangs,
        faults=PlanningErrors(metrics),
        rng=random.Random(1),
    )
    planner = Planner(
        state, {}, random.Random(1), metrics, faults=means.faults, on_decided=lambda _owner, _decision: None
    )
    recovery = RecoveryController(means, planner, Evictor(means), seat=lambda *_: None)
    rejected_pods = RejectedPods(means, leave=recovery.move_seats)
    reconciler = Reconciler(
        means, planner, recovery, rejected_pods, requeue=lambda _key, _delay: None, clock=lambda: now[0]
    )

    async def look() -> None:
        for _ in range(3):
            await reconciler.reconcile(state.keys[UID])
            now[0] += 2.0

    yield SimpleNamespace(look=look, client=client, planner=planner)
    planner.close()


async def test_it_is_pending_and_holds_nothing_until_the_class_is_there(bed, state):
    await bed.look()
    assert bed.client.status["phase"] == "Pending"
    assert bed.client.status["message"] == WORDS
    assert bed.client.status["conditions"][0]["reason"] == "PriorityClassNotFound"
    assert bed.planner.waiting_ask(UID) is None
    state.on_priority_class(the_class("urgent"))
    await bed.look()
    assert bed.planner.waiting_ask(UID)


async def test_a_missing_resource_claim_is_named_and_no_place_is_taken(bed, state):
    state.claim_names.is_watched = True
    state.on_kgwe(added(workload(resourceClaims=[{"name": "net", "resourceClaimName": "fast-nic"}])))
    await bed.look()
    assert bed.client.status["message"] == (
        "ResourceClaim fast-nic does not exist in namespace team. Create it, or change resourceClaims of the pod"
        " template."
    )
    assert bed.client.status["conditions"][0]["reason"] == "ResourceClaimNotFound"
    assert bed.planner.waiting_ask(UID) is None
    touched: list[Any] = []
    state.announcer.workload_touched = touched.append
    claim = ResourceClaim(ObjectMeta(name="fast-nic", namespace="team", uid="c"))
    state.on_claim(added(claim))
    assert touched == [state.keys[UID]]
    await bed.look()
    assert bed.planner.waiting_ask(UID)
    state.on_claim(removed(claim))
    assert len(touched) == 2


async def test_where_claims_are_not_served_nothing_is_said_of_them(bed, state):
    state.on_kgwe(added(workload(resourceClaims=[{"name": "net", "resourceClaimName": "fast-nic"}])))
    await bed.look()
    assert bed.planner.waiting_ask(UID)


async def test_a_job_that_can_create_no_pods_for_want_of_the_class_says_so_beside_its_place(bed, state):
    state.on_job(added(job(seats=ONE)))
    await bed.look()
    assert bed.client.status["phase"] == "Scheduled"
    assert bed.client.status["message"] == f"{WORDS} Reserved: n1"
    run = state.runs[UID]
    assert run.meta.name == NAME
    assert run_state.find_unplaced(state, state.find_workload(UID), run, {}) == run_state.Unplaced(
        run_state.PODS_NOT_CREATED, WORDS, is_certain=True
    )


def test_without_known_classes_nothing_is_said(state):
    state.on_priority_class(removed(PriorityClass(ObjectMeta(name="system-node-critical"), 5_000)))
    assert scheduler_policy.missing_class(state.find_workload(UID), state.priority_classes) == ""


def test_the_event_asks_for_a_class_of_at_least_that_value(state):
    state.on_kgwe(added(workload(20_000)))
    assert "needs a PriorityClass of at least that value" in scheduler_policy.priority_note(state.find_workload(UID))
    state.on_priority_class(the_class("urgent"))
    state.on_kgwe(added(workload(5_000)))
    assert scheduler_policy.priority_note(state.find_workload(UID)) == ""

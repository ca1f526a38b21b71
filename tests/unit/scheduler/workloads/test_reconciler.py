"""A workload from its first request to its run: the plan is delivered, and is void once it no longer applies."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.builders.objects import NAME, ONE, UID, added, changed, free, job, node, removed, workload

from kgwe import errors
from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.apps.scheduler.disruption.recovery import RecoveryController
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.apps.scheduler.workloads.reconciler import Reconciler
from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api.core import Condition
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import QuotaExceeded
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.placement.refusal import Refusal

PATIENCE_S = 20.0


class Client:
    """Records what is created and deleted, and the last status; `failures` are raised by the next creations."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.is_deleted = asyncio.Event()
        self.status: dict[str, Any] = {}
        self.failures: list[Exception] = []

    async def patch(self, _resource, _name, body, _namespace, **_):
        self.status = body["status"]
        return SimpleNamespace(metadata=ObjectMeta(resourceVersion="1"))

    async def create(self, _resource, body, _namespace, **_):
        if self.failures:
            raise self.failures.pop()
        self.created.append(body)

    async def delete(self, _resource, name, _namespace, **_):
        self.deleted.append(name)
        self.is_deleted.set()


class Bed:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.on_node(added(node("n1")))
        self.state.on_kgwe(added(workload()))
        self.client, self.metrics = Client(), Metrics()
        metrics = self.metrics
        self.now = 100.0
        self.decided = asyncio.Event()
        deps: Any = SimpleNamespace(
            client=self.client,
            state=self.state,
            events=SimpleNamespace(record=lambda _event: None),
            settings=Settings(),
            metrics=metrics,
            gangs=self.state.gangs,
            faults=PlanningErrors(metrics),
            rng=random.Random(1),
        )
        self.planner = Planner(self.state, {}, random.Random(1), metrics, faults=deps.faults, on_decided=self._deliver)
        self.recovery = RecoveryController(deps, self.planner, Evictor(deps), seat=lambda *_: None)
        self.reconciler = Reconciler(
            deps,
            self.planner,
            self.recovery,
            RejectedPods(deps, leave=self.recovery.move_seats),
            requeue=lambda _key, _delay: None,
            clock=lambda: self.now,
        )

    def _deliver(self, owner: str, decision: Plan | Refusal) -> None:
        if isinstance(decision, Plan):
            self.reconciler.deliver_plan(owner, decision)
        self.decided.set()

    async def reconcile(self) -> str:
        self.now += 1.0
        return await self.reconciler.reconcile(self.state.keys[UID])

    async def place(self) -> None:
        """Ask for a place and wait for the decision."""
        self.decided.clear()
        assert await self.reconcile() == "waiting"
        async with asyncio.timeout(PATIENCE_S):
            await self.decided.wait()


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    yield made
    await made.recovery.stop()
    made.planner.close()


async def test_a_workload_is_started_at_the_place_it_was_given(bed):
    await bed.place()
    assert bed.planner.has_plan(UID)
    assert free(bed.state) == {"n1": 4}
    assert await bed.reconcile() == "done"
    assert [body["metadata"]["name"] for body in bed.client.created] == [NAME]
    assert bed.metrics.registry.get_sample_value("warp_gpuworkload_scheduled_total", {"strategy": "score"}) == 1


async def test_a_run_that_the_watch_has_not_shown_is_not_created_again(bed):
    await bed.place()
    await bed.reconcile()
    await bed.reconcile()
    assert len(bed.client.created) == 1
    bed.state.on_job(added(job(seats=ONE)))
    await bed.reconcile()
    assert not bed.planner.has_plan(UID), "the run shows the plan"
    assert free(bed.state) == {"n1": 4}


async def test_a_plan_for_a_spec_that_was_edited_is_discarded(bed):
    await bed.place()
    bed.state.on_kgwe(changed(workload(), workload(count=8, generation=2)))
    await bed.place()
    assert bed.client.created == []
    assert free(bed.state) == {"n1": 0}, "eight GPUs are reserved, and not twelve"
    await bed.reconcile()
    (body,) = bed.client.created
    assert '"nvidia.com/gpu":"8"' in msgspec.json.encode(body).decode()


async def test_a_plan_of_a_workload_that_is_gone_frees_its_place(bed):
    await bed.place()
    bed.state.on_kgwe(removed(workload()))
    bed.reconciler.forget(UID)
    assert free(bed.state) == {"n1": 8}


async def test_a_plan_that_comes_late_is_discarded(bed):
    await bed.place()
    plan = bed.reconciler._attempts[UID].plan
    bed.reconciler._attempts.clear()
    bed.reconciler.deliver_plan(UID, plan)
    assert not bed.planner.has_plan(UID)
    assert free(bed.state) == {"n1": 8}


async def test_a_quota_gives_the_place_back_and_says_so(bed):
    await bed.place()
    bed.client.failures = [QuotaExceeded("exceeded quota: q")]
    assert await bed.reconcile() == "retry"
    assert free(bed.state) == {"n1": 8}
    assert bed.client.status["conditions"][0]["reason"] == "QuotaExceeded"


async def test_an_error_of_the_api_server_is_retried_and_counted(bed):
    await bed.place()
    bed.client.failures = [errors.Permanent("no such field")]
    assert await bed.reconcile() == "retry"
    assert free(bed.state) == {"n1": 8}
    assert bed.client.status["retryCount"] == 1
    assert "no such field" in bed.client.status["message"]


async def test_a_failed_run_on_a_lost_node_is_deleted_once_and_asked_about_without_effect(bed):
    failed = job(seats=ONE)
    status = msgspec.structs.replace(failed.status, conditions=(Condition("Failed", "True"),))
    bed.state.on_job(added(msgspec.structs.replace(failed, status=status)))
    found, run = bed.state.workloads[bed.state.keys[UID]], bed.state.runs[UID]
    assert not bed.recovery.failed_on_lost_hardware(found, run)

    before = node("n1")
    lost = msgspec.structs.replace(before.status, conditions=(Condition("Ready", "Unknown"),))
    bed.state.on_node(changed(before, msgspec.structs.replace(before, status=lost)))
    assert bed.recovery.failed_on_lost_hardware(found, run)
    assert bed.recovery.trouble_of(UID) is None, "asking changes nothing"
    assert await bed.reconcile() == "retry"
    assert await bed.reconcile() == "retry"
    async with asyncio.timeout(PATIENCE_S):
        await bed.client.is_deleted.wait()
    assert bed.client.deleted == [NAME]
    assert bed.recovery.trouble_of(UID) is not None

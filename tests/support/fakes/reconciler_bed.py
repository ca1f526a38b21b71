"""A reconciler of workloads with its planner, on an API server in memory; called when the test says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.fakes.leader_bed import LeaderBed

from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.apps.scheduler.disruption.recovery import RecoveryController
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.workloads.reconciler import Reconciler
from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
from kgwe.kube.api import resources
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from kgwe.cluster.workload.effective_request import DecisionSource
    from kgwe.placement.refusal import Refusal

PATIENCE_S = 20.0


class ReconcilerBed(LeaderBed):
    """A node of eight GPUs and a workload of four, reconciled when the test says so."""

    def __init__(self, *sources: DecisionSource) -> None:
        super().__init__(*sources)
        self.uid = ""
        self.now = 100.0
        self.decided = asyncio.Event()
        self.plans: list[Plan] = []
        self.requeued: list[float] = []
        deps = self.deps
        self.planner = Planner(self.state, {}, deps.rng, self.metrics, faults=deps.faults, on_decided=self._deliver)
        self.recovery = RecoveryController(deps, self.planner, Evictor(deps), seat=lambda *_: None)
        self.reconciler = Reconciler(
            deps,
            self.planner,
            self.recovery,
            RejectedPods(deps, leave=self.recovery.move_seats),
            requeue=lambda _key, delay_s: self.requeued.append(delay_s),
            clock=lambda: self.now,
        )

    async def prepare(self) -> None:
        await self.node("n1")
        self.uid = (await self.workload()).metadata.uid

    def _deliver(self, owner: str, decision: Plan | Refusal) -> None:
        if isinstance(decision, Plan):
            self.plans.append(decision)
            self.reconciler.deliver_plan(owner, decision)
        self.decided.set()

    async def reconcile(self) -> str:
        self.now += 1.0
        return await self.reconciler.reconcile(self.state.keys[self.uid])

    async def place(self) -> None:
        """Ask for a place and wait for the decision."""
        self.decided.clear()
        assert await self.reconcile() == "waiting"
        async with asyncio.timeout(PATIENCE_S):
            await self.decided.wait()

    async def start(self) -> dict[str, Any]:
        """Place the workload and create its Job; returns the Job."""
        await self.place()
        assert await self.reconcile() == "done"
        (job,) = self.objects(resources.JOB)
        return job

    async def close(self) -> None:
        await self.recovery.stop()
        self.planner.close()
        await self.client.close()

    @property
    def phase(self) -> str:
        return str(self.stored(resources.GPU_WORKLOAD, "w").get("status", {}).get("phase", ""))

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stored(resources.GPU_WORKLOAD, "w")["status"]
        return found

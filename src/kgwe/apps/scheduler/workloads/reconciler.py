"""Reconciles one workload: asks for a place, starts the workload there, and follows its run.

    (none) ──► Pending ──► Scheduled ──► Running ──► Succeeded
                 ▲  │          │            │
                 │  └► Scheduling (an error; tried again, then Failed)
                 └─────────────┴────────────┴──────► Failed ──(spec edited)──► Pending

Each call looks at the workload, its run and its pods as they are now, and takes at most one step. Any step may be the
last before a crash; the next call goes on from what the API shows. Names of children are fixed, so the API server
refuses to create a run twice. Deletion is checked first, so it works in every phase.

A suspended workload is Pending, with the condition Suspended: its run is deleted, and it asks for no place.

Inference never succeeds: its Deployment runs until it is deleted.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.scheduler.workloads import missing_volumes
from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.apps.scheduler.workloads.attempt import WATCH_LAG_S
from kgwe.apps.scheduler.workloads.attempts import Attempts
from kgwe.apps.scheduler.workloads.finished_workloads import FinishedWorkloads
from kgwe.apps.scheduler.workloads.missing_volumes import MissingVolumes
from kgwe.apps.scheduler.workloads.queued_runs import QueuedRuns
from kgwe.apps.scheduler.workloads.replica_controller import ReplicaController
from kgwe.apps.scheduler.workloads.run_creator import InvalidTemplate, RunCreator
from kgwe.apps.scheduler.workloads.run_follower import RunFollower
from kgwe.apps.scheduler.workloads.seat_policy import SeatPolicy
from kgwe.apps.scheduler.workloads.setbacks import Setbacks
from kgwe.apps.scheduler.workloads.suspended_workloads import SuspendedWorkloads, was_suspended
from kgwe.apps.scheduler.workloads.waiting_status import WaitingNotices
from kgwe.apps.scheduler.workloads.writer import StatusWriter
from kgwe.cluster.state import prerequisites
from kgwe.cluster.workload import scheduler_policy
from kgwe.cluster.workload.plan_text import PlanTooLarge
from kgwe.cluster.workload.workload import WARP, Workload
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import QuotaExceeded
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.apps.scheduler.workloads.attempt import Attempt, Result
    from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
    from kgwe.apps.scheduler.workloads.run_follower import FailureRecovery
    from kgwe.cluster.workload.workload import Key
    from kgwe.kube.api.kgwe.gpuworkload_status import WorkloadCost
    from kgwe.placement.planning.ask import Ask

log = structlog.get_logger(__name__)

# Nodes of a plan that a log line names.
_LOGGED = 16


class Reconciler:
    """Reconciles workloads during one leader's term; it remembers nothing beyond."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        recovery: FailureRecovery,
        rejected_pods: RejectedPods,
        *,
        requeue: Callable[[Key, float], None],
        on_completed: Callable[[set[str]], None] = lambda _nodes: None,
        describe_cost: Callable[[str], WorkloadCost | None] = lambda _uid: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_completed`: called with the nodes of a workload that completed; `describe_cost`: what it encumbers."""
        self._describe_cost = describe_cost
        self._planner = planner
        self._state = deps.state
        self._settings = deps.settings
        self._metrics = deps.metrics
        self._requeue = requeue
        self._clock = clock
        self._writer = StatusWriter(deps.client, deps.events, deps.state, self._handle_replica)
        self._replicas = ReplicaController(deps.state, planner, self._writer, requeue=requeue)
        self._attempts = Attempts(planner)
        self._setbacks = Setbacks(deps, self._attempts, self._writer, requeue=requeue, clock=clock)
        self._follower = RunFollower(
            deps,
            interruptions=planner.interruptions,
            attempts=self._attempts,
            setbacks=self._setbacks,
            writer=self._writer,
            recovery=recovery,
            rejected_pods=rejected_pods,
            requeue=requeue,
            on_completed=on_completed,
            clock=clock,
        )
        self._waiting = WaitingNotices(
            self._writer,
            planner,
            interval_s=deps.settings.message_interval_seconds,
            settle_s=deps.settings.status_settle_seconds,
            requeue=requeue,
        )
        self._volumes = MissingVolumes(deps.client, clock=clock)
        self._finished = FinishedWorkloads(deps.client, requeue=requeue)
        self._suspended = SuspendedWorkloads(self._attempts, self._writer, requeue=requeue, clock=clock)
        self._creator = RunCreator(
            deps.client, deps.state, deps.settings.default_image, SeatPolicy(deps.client, clock=clock)
        )
        self._queued = QueuedRuns(
            deps,
            planner,
            attempts=self._attempts,
            creator=self._creator,
            writer=self._writer,
            waiting=self._waiting,
            requeue=requeue,
            clock=clock,
        )

    def _handle_replica(self, workload: Workload) -> None:
        self._replicas.handle_status(workload)

    def deliver_plan(self, uid: str, plan: Plan) -> None:
        """The planner found a place for the workload: the next call starts it there."""
        self._attempts.deliver_plan(uid, plan)
        self._queued.deliver_plan(uid, plan)

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self._attempts.forget(uid)
        self._follower.forget(uid)
        self._queued.forget(uid)
        self._setbacks.forget(uid)
        self._writer.forget(uid)

    def release_place(self, key: Key) -> None:
        """The last call for this workload failed: reserve nothing for it until the next."""
        workload = self._state.workloads.get(key)
        if workload is not None:
            self._attempts.release_place(workload.meta.uid)

    async def report_error(self, key: Key, error: Exception) -> None:
        """Write an error of ours, at which reconciling stopped, into the status of a workload without a run."""
        workload = self._state.workloads.get(key)
        if workload is None or workload.finished or workload.meta.uid in self._state.runs:
            return
        message = f"internal error of the scheduler ({type(error).__name__}: {str(error)[:200]}); retrying"
        status = phases.pending_status(workload, Reason.INTERNAL_ERROR, message, timestamp.seconds())
        with contextlib.suppress(errors.KgweError):
            await self._writer.write_status(workload, status)

    def renew_attempts(self) -> None:
        """Workloads whose attempts are used up get new ones if nodes, network or settings have changed since."""
        self._setbacks.renew_attempts()

    def is_echo(self, workload: Workload) -> bool:
        """Whether the watch shows what we wrote last, and every change since was reconciled."""
        # One that has ended is looked at again: it may have to be deleted after a while.
        return self._writer.is_echo(workload) and not (workload.finished and workload.ttl_s is not None)

    async def reconcile(self, key: Key) -> Result:
        """Take the next step for the workload."""
        if (orphan := self._state.orphans.get(key)) is not None:
            # The garbage collector would delete it too, but later.
            await self._writer.delete_run(orphan)
            self._state.orphans.pop(key, None)
        workload = self._state.workloads.get(key)
        if workload is None:
            return "done"
        if self._writer.is_behind(workload):
            self._requeue(key, WATCH_LAG_S)
            return "done"  # what the watch is about to show calls us again
        self._follower.forget(workload.meta.uid)
        if workload.meta.deletionTimestamp is not None:
            return await self._end_workload(workload)
        if workload.is_scalable:
            return await self._step_replica(workload)
        if await self._writer.remove_finalizer(workload):
            return "done"  # the watch shows the workload without it, which calls us again
        return await self._take_step(workload)

    async def _step_replica(self, workload: Workload) -> Result:
        """Take the next step for one replica, and report all of them with the first."""
        if await self._writer.remove_finalizer(workload):
            return "done"
        self._replicas.update(workload.meta.uid)
        found = self._state.workloads.get(workload.key)
        if found is None:
            return "done"  # a replica that is not needed any more
        result = await self._take_step(found)
        self._replicas.update(workload.meta.uid)
        await self._replicas.report(found)
        return result

    async def _take_step(self, workload: Workload) -> Result:
        """Take the next step for a workload that is not being deleted."""
        uid = workload.meta.uid
        run = self._state.runs.get(uid)
        if workload.finished and await self._finished.expire(workload):
            return "done"  # the watch shows that it is being deleted, which calls us again
        if run is not None and not workload.suspend and self._queued.is_unplanned(workload, run):
            return await self._queued.advance(workload, run)
        if run is not None:
            self._planner.confirm_plan(uid)
            if workload.suspend:
                return await self._follower.stop_run(workload, run)
            return await self._follower.follow(workload, run)
        if workload.finished:
            self._attempts.release_place(uid)
            await self._suspended.report_ended(workload)
            return "done"
        if workload.suspend:
            return await self._suspended.suspend(workload)
        if was_suspended(workload):
            return await self._suspended.resume(workload)
        return await self._seek_place(workload)

    # --- waiting for a place ----------------------------------------------------------------------------

    async def _seek_place(self, workload: Workload) -> Result:
        """The workload has no run: start it at its place, or ask for a place."""
        attempt = self._attempts.attempt_of(workload)
        self._warn_of_priority(workload, attempt)
        now = self._clock()
        if now < attempt.retry_at and not await self._volumes.end_pause(workload, attempt):
            pause_s = attempt.retry_at - now
            self._requeue(workload.key, min(pause_s, missing_volumes.CHECK_S) if attempt.volume else pause_s)
            return "waiting"
        try:
            ask = self._update_ask(workload, attempt, now)
        except InvalidTemplate as exc:
            return await self._reject_template(workload, exc)
        if missing := prerequisites.find_missing(self._state, workload):
            # Its pods could not start. Nothing is reserved for it until the object exists, which calls us again.
            self._attempts.release_place(workload.meta.uid)
            await self._waiting.report(workload, attempt, missing, now)
            return "waiting"
        if workload.queue:
            return await self._start_run(workload, attempt, ask)
        if attempt.plan is not None:
            return await self._start_run(workload, attempt, attempt.plan)
        return await self._ask_for_place(workload, attempt, ask)

    def _update_ask(self, workload: Workload, attempt: Attempt, now: float) -> Ask:
        """What it asks for, read once per spec; nodes that refused it are excluded for a while.

        A plan for something else is discarded.
        """
        attempt.avoid = {node: until for node, until in attempt.avoid.items() if until > now}
        basis = frozenset(attempt.avoid), workload.claims, workload.priority, workload.decision
        if attempt.ask is None or attempt.basis != basis:
            ask = self._creator.read_ask(workload, basis[0])
            if ask != attempt.ask:
                self._attempts.discard_plan(workload.meta.uid, attempt)
            attempt.ask, attempt.basis = ask, basis
        return attempt.ask

    def _warn_of_priority(self, workload: Workload, attempt: Attempt) -> None:
        """Report a priority above the limit that got past admission, once per value that counts."""
        note = scheduler_policy.priority_note(workload)
        if note and attempt.limited_to != workload.priority:
            attempt.limited_to = workload.priority
            self._writer.record_event(workload, "Warning", "PriorityLimited", note, action="Scheduling")

    async def _ask_for_place(self, workload: Workload, attempt: Attempt, ask: Ask) -> Result:
        """The planner delivers its decision (`deliver_plan`), which calls us again."""
        now = self._clock()
        self._planner.request_place(ask)
        refusal = self._planner.refusal_of(workload.meta.uid)
        if refusal is not None:
            await self._waiting.report(workload, attempt, refusal, now)
        if attempt.avoid:
            self._requeue(workload.key, min(attempt.avoid.values()) - now + self._settings.status_settle_seconds)
        return "waiting"

    async def _reject_template(self, workload: Workload, error: InvalidTemplate) -> Result:
        message = f"podTemplate is invalid: {error}. Edit the workload to try again"
        await self._setbacks.give_up(workload, "InvalidPodTemplate", message)
        return "done"

    # --- creating the run -------------------------------------------------------------------------------

    async def _start_run(self, workload: Workload, attempt: Attempt, plan: Plan | Ask) -> Result:
        """Create what runs the workload, at its place; with an Ask, the Job that waits for Kueue."""
        now = self._clock()
        if attempt.created_at is not None and now < attempt.created_at + WATCH_LAG_S:
            self._requeue(workload.key, attempt.created_at + WATCH_LAG_S - now)
            return "done"  # the watch is about to show the Job
        try:
            if isinstance(plan, Plan):
                await self._write_cost(workload)
                is_new = await self._creator.create(workload, plan)
            else:
                is_new = await self._creator.create_queued(workload, plan)
        except PlanTooLarge as exc:
            await self._setbacks.give_up(workload, "PlanTooLarge", f"{exc}. Edit the workload to try again")
            return "done"
        except InvalidTemplate as exc:
            return await self._reject_template(workload, exc)
        except QuotaExceeded as exc:
            await self._setbacks.retry_placement(workload, "QuotaExceeded", str(exc))
            return "retry"
        except errors.Permanent as exc:
            return "retry" if await self._setbacks.retry_creation(workload, exc) else "done"
        if is_new:  # else the watch is about to show the run, with the place it was given before a restart
            attempt.created_at = self._clock()
            if isinstance(plan, Plan):
                self._report_start(workload, plan)
        return "done"

    async def _write_cost(self, workload: Workload) -> None:
        """Write what it encumbers before it is started: a new leader reads it there."""
        cost = self._describe_cost(workload.meta.uid)
        if cost is not None:
            await self._writer.write_status(workload, replace(workload.status, cost=cost))

    def _report_start(self, workload: Workload, plan: Plan) -> None:
        """Its status follows from the run; most often the pod runs before a write would be done."""
        strategy = scheduler_policy.strategy_of(workload, self._state.config)
        self._metrics.scheduled.labels(strategy).inc()
        where = plan.nodes[0] if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes in {plan.level} {plan.domain}"
        if workload.status.phase or workload.kind is WARP:
            # The status says it too. The Event is for users who saw the workload wait, or read the Events of the
            # `gpu.warp.dev` kind.
            note = f"placed on {where} by {strategy}"
            self._writer.record_event(workload, "Normal", "Scheduled", note, action="Scheduling")
        log.info("workload_scheduled", workload=workload.meta.key, nodes=plan.nodes[:_LOGGED], strategy=strategy)

    # --- ending -----------------------------------------------------------------------------------------

    async def _end_workload(self, workload: Workload) -> Result:
        """The workload is being deleted: stop what runs it, whatever its phase."""
        uid = workload.meta.uid
        run = self._state.runs.get(uid)
        try:
            if run is not None:
                await self._writer.delete_run(run)
            elif self._planner.has_plan(uid):
                # Its run may have been created a moment ago, and the watch has not shown it yet.
                await self._creator.delete_unseen(workload)
        except errors.Permanent as exc:
            # The garbage collector deletes it by its owner reference; the user's delete must not wait for us.
            log.warning("run_not_deleted", workload=workload.meta.key, error=str(exc))
        self._attempts.release_place(uid)
        await self._writer.remove_finalizer(workload)
        return "done"

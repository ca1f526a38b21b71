"""Bring one workload to where it should be, from whatever state it is found in.

    (none) ──► Pending ──► Scheduled ──► Running ──► Succeeded
                 ▲  │          │            │
                 │  └► Scheduling (an error; tried again, then Failed)
                 └─────────────┴────────────┴──────► Failed ──(spec edited)──► Pending

Each call looks at the workload, what runs it and its pods as they are now and takes at most one step; any step
may be the last before a crash, and the next call goes on from what the API shows. Child names are fixed,
so creating twice is refused; deletion is looked at before everything else, so it works in every phase.

Inference never succeeds: its Deployment runs until it is deleted.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

import structlog

from kgwe import errors
from kgwe.apps.scheduler.workloads import placement_attempts
from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.apps.scheduler.workloads.attempt import Attempt
from kgwe.apps.scheduler.workloads.placement_attempts import AttemptLimits
from kgwe.apps.scheduler.workloads.run_creator import InvalidTemplate, RunCreator
from kgwe.apps.scheduler.workloads.waiting_status import WaitingNotices
from kgwe.apps.scheduler.workloads.writer import StatusWriter
from kgwe.cluster.state import run_state
from kgwe.cluster.workload import manifests, scheduler_policy
from kgwe.cluster.workload.plan_text import PlanTooLarge
from kgwe.cluster.workload.workload import WARP, Workload
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload import Phase
from kgwe.kube.client.client import QuotaExceeded
from kgwe.model.units import backoff
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
    from kgwe.cluster.registry.workload_registry import Key
    from kgwe.cluster.state.run_state import Unplaced
    from kgwe.cluster.workload.conditions import Trouble
    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.api import core
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import Plan

log = structlog.get_logger(__name__)

Result = Literal["done", "waiting", "retry"]

# Where many start at once each takes longer: "scheduled" is said later, too.
_STARTS_PER_S = 50.0
# Pods that a slow control plane creates and binds in a second: large work is given the time that takes.
_PODS_PER_S = 20.0
# A Job not seen this long after its creation is asked for again; until then asking would only be refused.
_WATCH_LAG_S = 10.0
# How often a run that was scaled up looks for room for the seats that it gave up before.
_LACKING_S = 10.0
# Nodes of a plan that a log line names.
_LOGGED = 16


class FailureRecovery(Protocol):
    """What recovers workloads from failed nodes and GPUs."""

    def trouble_of(self, owner: str) -> Trouble | None:
        """Why a workload that has its place is not whole."""

    def failed_on_lost_hardware(self, workload: Workload, run: Run) -> bool:
        """Whether a run that failed did so on a node or GPU that is known to have failed."""

    def restart_run(self, workload: Workload, run: Run) -> None:
        """Delete a run that failed on lost hardware; its workload is placed again."""


class Reconciler:
    """One leader's term of reconciling; everything it remembers dies with it."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        recovery: FailureRecovery,
        rejected_pods: RejectedPods,
        *,
        requeue: Callable[[Key, float], None],
        on_completed: Callable[[set[str]], None] = lambda _nodes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_completed`: hears the nodes of a workload that completed."""
        self._planner = planner
        self._client = deps.client
        self._writer = StatusWriter(deps.client, deps.events)
        self._state = deps.state
        self._settings = deps.settings
        self._metrics = deps.metrics
        self._rng = deps.rng
        self._requeue = requeue
        self._clock = clock
        self._attempts: dict[str, Attempt] = {}
        self._starting: set[str] = set()  # workloads with a place that do not run yet
        self._limits = AttemptLimits(deps.state)
        self._waiting = WaitingNotices(
            self._writer,
            planner,
            interval_s=deps.settings.message_interval_seconds,
            settle_s=deps.settings.status_settle_seconds,
            requeue=requeue,
        )
        self._creator = RunCreator(deps.client, deps.state, deps.settings.default_image)
        self._recovery = recovery
        self._rejected_pods = rejected_pods
        self._on_completed = on_completed

    def deliver_plan(self, uid: str, plan: Plan) -> None:
        """The workload has a place: the next call starts it there."""
        attempt = self._attempts.get(uid)
        if attempt is None:
            self._planner.discard_plan(uid)
        else:
            attempt.plan = plan

    def _give_back_place(self, uid: str) -> None:
        """The workload neither waits for a place nor has a plan any more."""
        self._planner.forget(uid)
        if (attempt := self._attempts.get(uid)) is not None:
            attempt.plan = None

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self._planner.forget(uid)
        self._attempts.pop(uid, None)
        self._starting.discard(uid)
        self._limits.forget(uid)
        self._writer.forget(uid)

    def release_place(self, key: Key) -> None:
        """The last call for this workload broke: hold nothing for it until it is tried again."""
        workload = self._state.workloads.get(key)
        if workload is not None:
            self._give_back_place(workload.meta.uid)

    async def report_error(self, key: Key, error: Exception) -> None:
        """Looking at the workload failed with an error of ours: one that waits for a place says so."""
        workload = self._state.workloads.get(key)
        if workload is None or workload.finished or workload.meta.uid in self._state.runs:
            return
        message = f"an error of the scheduler ({type(error).__name__}: {str(error)[:200]}); it is tried again"
        status = phases.pending_status(workload, Reason.INTERNAL_ERROR, message, timestamp.seconds())
        with contextlib.suppress(errors.KgweError):
            await self._writer.write_status(workload, status)

    def renew_attempts(self) -> None:
        """Workloads whose attempts are used up get new ones if nodes, network or settings have changed since."""
        for uid in self._limits.renew():
            key, attempt = self._state.keys.get(uid), self._attempts.get(uid)
            if key is not None and attempt is not None:
                attempt.retry_at, attempt.refusals = 0.0, 0
                self._requeue(key, 0.0)

    def is_echo(self, workload: Workload) -> bool:
        """Whether this is what we wrote last, and whatever came since was looked at: then nothing is left to do."""
        return self._writer.is_echo(workload)

    async def reconcile(self, key: Key) -> Result:
        if (orphan := self._state.orphans.get(key)) is not None:
            # The garbage collector would do it too, in its own time.
            await self._writer.delete_run(orphan)
            self._state.orphans.pop(key, None)
        workload = self._state.workloads.get(key)
        if workload is None:
            return "done"
        if self._writer.is_behind(workload):
            self._requeue(key, _WATCH_LAG_S)
            return "done"  # what the watch is about to show calls us again
        uid = workload.meta.uid
        self._starting.discard(uid)
        if workload.meta.deletionTimestamp is not None:
            return await self._end(workload)
        if await self._writer.remove_finalizer(workload):
            return "done"  # the watch shows the workload without it, which calls us again
        run = self._state.runs.get(uid)
        if run is not None:
            self._planner.confirm_plan(uid)
            return await self._follow(workload, run)
        if workload.finished:
            self._give_back_place(uid)
            return "done"
        return await self._seek(workload)

    # --- waiting for a node -----------------------------------------------------------------------------

    async def _seek(self, workload: Workload) -> Result:
        """It has no run: start it where it was placed, or ask for a place."""
        attempt = self._attempt_of(workload)
        self._warn_of_priority(workload, attempt)
        now = self._clock()
        if now < attempt.retry_at:
            self._requeue(workload.key, attempt.retry_at - now)
            return "waiting"
        try:
            ask = self._update_ask(workload, attempt, now)
        except InvalidTemplate as exc:
            return await self._reject_template(workload, exc)
        if missing := scheduler_policy.missing_class(workload, self._state.priority_classes):
            # Its Job could create no pods. Nothing is reserved for it until the class is there, which calls us again.
            self._give_back_place(workload.meta.uid)
            refusal = Refusal(Reason.NO_PRIORITY_CLASS, missing, possible=False)
            await self._waiting.report(workload, attempt, refusal, now)
            return "waiting"
        if attempt.plan is not None:
            return await self._start(workload, attempt, attempt.plan)
        return await self._ask_for_place(workload, attempt, ask)

    def _update_ask(self, workload: Workload, attempt: Attempt, now: float) -> Ask:
        """What it asks for, read once per spec; nodes that refused are left out until their time is over.

        A plan for something else is discarded.
        """
        attempt.avoid = {node: until for node, until in attempt.avoid.items() if until > now}
        basis = frozenset(attempt.avoid), workload.claims, workload.priority
        if attempt.ask is None or attempt.basis != basis:
            ask = self._creator.read_ask(workload, basis[0])
            if ask != attempt.ask:
                self._discard_plan(workload.meta.uid, attempt)
            attempt.ask, attempt.basis = ask, basis
        return attempt.ask

    def _discard_plan(self, uid: str, attempt: Attempt) -> None:
        if attempt.plan is not None:
            attempt.plan = None
            self._planner.discard_plan(uid)

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
        message = f"podTemplate cannot be run: {error}; edit the workload to try again"
        return await self._give_up(workload, "InvalidPodTemplate", message)

    # --- creating the Job -------------------------------------------------------------------------------

    async def _start(self, workload: Workload, attempt: Attempt, plan: Plan) -> Result:
        """Create what runs the workload, at its place."""
        now = self._clock()
        if attempt.created_at is not None and now < attempt.created_at + _WATCH_LAG_S:
            self._requeue(workload.key, attempt.created_at + _WATCH_LAG_S - now)
            return "done"  # the watch is about to show the Job
        try:
            is_new = await self._creator.create(workload, plan)
        except PlanTooLarge as exc:
            return await self._give_up(workload, "PlanTooLarge", f"{exc}; edit the workload to try again")
        except InvalidTemplate as exc:
            return await self._reject_template(workload, exc)
        except QuotaExceeded as exc:
            return await self._take_back(workload, "QuotaExceeded", str(exc))
        except errors.Permanent as exc:
            return await self._creation_failed(workload, exc)
        if is_new:  # else the watch is about to show the run, with the place it was given before a restart
            attempt.created_at = self._clock()
            self._report_start(workload, plan)
        return "done"

    def _report_start(self, workload: Workload, plan: Plan) -> None:
        """Its status follows from the run, see _follow; most often the pod runs before a write would be done."""
        strategy = self._strategy_of(workload)
        self._metrics.scheduled.labels(strategy).inc()
        where = plan.nodes[0] if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes in {plan.level} {plan.domain}"
        if workload.status.phase or workload.kind is WARP:
            # The status says it too: an Event is for who has seen it wait, or knows the small kind by its Events.
            note = f"placed on {where} by {strategy}"
            self._writer.record_event(workload, "Normal", "Scheduled", note, action="Scheduling")
        log.info("workload_scheduled", workload=workload.meta.key, nodes=plan.nodes[:_LOGGED], strategy=strategy)

    async def _creation_failed(self, workload: Workload, error: errors.Permanent) -> Result:
        """An error, not a shortage: count it, wait longer each time, give up when the policy says so."""
        self._give_back_place(workload.meta.uid)
        self._metrics.failed.labels("job_creation_failed").inc()
        retries = phases.retry_count(workload)
        if retries >= workload.max_retries:
            return await self._give_up(workload, "MaxRetriesExceeded", f"gave up after {retries} retries: {error}")
        delay_s = backoff.delay_s(workload.backoff_s, retries, self._rng.random())
        self._metrics.retries.inc()
        self._attempt_of(workload).retry_at = self._clock() + delay_s
        self._requeue(workload.key, delay_s)
        message = f"creating the Job failed, retry {retries + 1} of {workload.max_retries} in {delay_s:.0f} s: {error}"
        await self._writer.write_status(
            workload, phases.retrying_status(workload, retries + 1, message, timestamp.seconds())
        )
        self._writer.record_event(workload, "Warning", "JobCreationFailed", str(error), action="Scheduling")
        return "retry"

    # --- following the Job ------------------------------------------------------------------------------

    async def _follow(self, workload: Workload, run: Run) -> Result:
        attempt = self._attempt_of(workload)
        now = self._clock()
        attempt.plan = None  # the run shows it
        if attempt.job_uid != run.meta.uid:
            attempt.job_uid, attempt.job_seen_at = run.meta.uid, now
            attempt.settle_s = self._settings.status_settle_seconds
            attempt.created_at = attempt.unplaced_at = None
        if attempt.taken_back == run.meta.uid:
            return "done"  # the watch will show that it is gone
        attempt.held_at, attempt.told_at = None, 0.0
        pods = self._state.pods_of(run)
        if run.ended is not None:
            return await self._finish(workload, run, run.ended)
        if 0 < run.generation < workload.meta.generation and not run_state.is_bound(pods):
            # Edited before anything of it ran: what was asked for last counts.
            await self._writer.delete_run(run)
            attempt.taken_back = run.meta.uid
            return "done"
        lacking = self._settle_seats(workload, run, pods)
        if run_state.is_running(workload, run, pods):
            attempt.refusals, attempt.unplaced_at, attempt.suspended = 0, None, False
            placed = self._placed(workload, run)
            trouble = self._recovery.trouble_of(workload.meta.uid) or run_state.describe_scale(run, lacking)
            await self._writer.write_status(
                workload, phases.running_status(workload, placed, timestamp.seconds(), trouble)
            )
            self._warn_of_edit(workload, run)
            return "done"
        if run.suspended:
            attempt.unplaced_at, attempt.suspended = None, True
            status = phases.scheduled_status(
                workload, self._placed(workload, run), timestamp.seconds(), "it is suspended"
            )
            await self._writer.write_status(workload, status)
            return "done"
        unfit = self._rejected_pods.unfit_seats(workload.meta.uid, run)
        why = unfit or run_state.find_unplaced(self._state, workload, run, pods)
        attempt.note_unplaced(now, why.reason if why is not None else "")
        return await self._wait_placed(workload, run, attempt, why)

    def _settle_seats(self, workload: Workload, run: Run, pods: Mapping[str, core.Pod]) -> int:
        """Make the seats of a run that has pods follow what it is scaled to; returns how many it lacks."""
        if run.suspended or not (run.is_scaled_down or run_state.is_bound(pods)):
            return 0
        lacking = self._state.run_registry.settle_seats(workload.meta.uid)
        if lacking:
            self._requeue(workload.key, _LACKING_S)
        return lacking

    def _placed(self, workload: Workload, run: Run) -> phases.Placement:
        run = replace(run, seats=self._state.run_registry.held_seats(run))
        cards, pods = self._state.reader.cards, self._state.pods_of(run)
        return phases.Placement(run, workload, cards, pods, default_strategy=self._strategy_of(workload))

    def _strategy_of(self, workload: Workload) -> str:
        """The strategy that places the workload; the configured one is for single pods."""
        return workload.strategy or (str(self._state.fleet.strategy) if workload.pods == 1 else "score")

    def _warn_of_edit(self, workload: Workload, run: Run) -> None:
        if workload.meta.generation > run.generation > 0:
            note = "the spec was edited after the work was scheduled; it runs on as it was. Delete and create to apply"
            self._writer.record_event(workload, "Warning", "SpecChangedWhileScheduled", note, action="Scheduling")

    def _warn_of_priority(self, workload: Workload, attempt: Attempt) -> None:
        """Report a priority above the limit that got past admission, once per value that counts."""
        note = scheduler_policy.priority_note(workload)
        if note and attempt.limited_to != workload.priority:
            attempt.limited_to = workload.priority
            self._writer.record_event(workload, "Warning", "PriorityLimited", note, action="Scheduling")

    async def _finish(self, workload: Workload, run: Run, ended: core.Condition) -> Result:
        if workload.status.phase == Phase.FAILED and run.generation < workload.meta.generation:
            # Failed and edited since: clear the way for another try.
            await self._writer.delete_run(run)
            return "done"
        if ended.type == "Failed":
            if self._recovery.failed_on_lost_hardware(workload, run):
                self._recovery.restart_run(workload, run)
                return "retry"
            if (why := await self._rejected(workload, run, ended)) is not None:
                return await self._replace(workload, run, why)
        status = phases.finished_status(workload, self._placed(workload, run), run, ended, timestamp.seconds())
        if await self._writer.write_status(workload, status):
            if status.phase == Phase.FAILED:
                self._writer.record_event(workload, "Warning", str(status.phase), status.message, action="Running")
            else:
                self._on_completed({seat.node for seat in run.seats})
            log.info("workload_finished", workload=workload.meta.key, phase=str(status.phase), message=status.message)
        return "done"

    async def _rejected(self, workload: Workload, run: Run, ended: core.Condition) -> Unplaced | None:
        """Why a Job that failed is a lost run and not failed work; its own failures have another reason."""
        if workload.status.phase == Phase.FAILED or ended.reason != "BackoffLimitExceeded":
            return None
        return await self._rejected_pods.explain_failed_job(run)

    async def _replace(self, workload: Workload, run: Run, why: Unplaced) -> Result:
        """Delete the run and plan the workload again, without the nodes that did not take it."""
        attempt = self._attempt_of(workload)
        attempt.avoid |= dict.fromkeys(why.avoid, self._clock() + self._settings.avoid_seconds)
        await self._writer.delete_run(run)
        attempt.taken_back = run.meta.uid
        result = await self._take_back(workload, why.reason, why.message, at_once=why.is_nodes_fault)
        if why.reason == run_state.PLACE_LOST and run_state.has_started(workload, run) and not attempt.suspended:
            # It ran, and lost its node to a drain: before all others of its priority, as after a failure. A run that
            # was suspended gave its place away.
            self._planner.interruptions.record(workload.meta.uid, Reason.RECOVERING, why.message)
        return result

    async def _wait_placed(self, workload: Workload, run: Run, attempt: Attempt, why: Unplaced | None) -> Result:
        """Give kube-scheduler its time; then take the run back so that its room does not lie idle."""
        now = self._clock()
        if run.meta.deletionTimestamp is not None:
            return "done"
        if why is not None and attempt.unplaced_at is not None:
            due = attempt.unplaced_at + self._patience_s(why, run)
            if now >= due:
                return await self._replace(workload, run, why)
            self._requeue(workload.key, due - now + 0.1)
        since = attempt.job_seen_at if attempt.unplaced_at is None else max(attempt.job_seen_at, attempt.unplaced_at)
        self._starting.add(workload.meta.uid)
        attempt.settle_s = max(attempt.settle_s, len(self._starting) / _STARTS_PER_S)
        if now - since < attempt.settle_s:
            self._requeue(workload.key, since + attempt.settle_s - now)
        elif workload.status.phase != Phase.RUNNING or why is not None:
            placed, trouble = self._placed(workload, run), self._recovery.trouble_of(workload.meta.uid)
            words = f"{placed.words}; {why.message}" if why is not None and why.is_certain else ""
            status = phases.scheduled_status(workload, placed, timestamp.seconds(), words, trouble)
            await self._writer.write_status(workload, status)
        if why is None:
            self._warn_of_edit(workload, run)
        return "done"

    def _patience_s(self, why: Unplaced, run: Run) -> float:
        if why.reason in (run_state.PLACE_LOST, run_state.POD_REJECTED):
            return 0.0
        if why.reason == run_state.NODE_REFUSED:
            return scheduler_policy.plan_timeout_s(self._state.config, self._settings.placement_timeout_seconds)
        return self._settings.unscheduled_timeout_seconds + run.pods / _PODS_PER_S

    async def _take_back(self, workload: Workload, reason: str, message: str, *, at_once: bool = False) -> Result:
        """Neither an error of the work nor a shortage of GPUs: hold nothing, pause, longer each time, try again.

        `at_once`: the first time another node may do without a pause.
        """
        self._give_back_place(workload.meta.uid)
        attempt = self._attempt_of(workload)
        attempt.refusals += 1
        attempt.ask = None
        again_s = 0.0
        if attempt.refusals > 1 or not at_once:
            again_s = backoff.delay_s(workload.backoff_s, attempt.refusals - 1, self._rng.random())
        self._writer.record_event(workload, "Warning", reason, message, action="Scheduling")
        log.warning("placement_taken_back", workload=workload.meta.key, reason=reason, message=message)
        if limit := self._limits.exhaust(workload.meta.uid, attempt.refusals):
            again_s = placement_attempts.PAUSE_S
            message = (
                f"{limit} attempts in a row failed, the last with {reason}: {message}; change its spec or the nodes"
            )
            reason, attempt.refusals = placement_attempts.EXHAUSTED, 0
        attempt.retry_at = self._clock() + again_s
        if again_s:
            self._requeue(workload.key, again_s)
            note = f"{message}; tried again in {again_s:.0f} s"
            await self._writer.write_status(
                workload, phases.pending_status(workload, reason, note, timestamp.seconds())
            )
        return "retry"

    # --- ending -----------------------------------------------------------------------------------------

    async def _give_up(self, workload: Workload, reason: str, message: str) -> Result:
        self._give_back_place(workload.meta.uid)
        if await self._writer.write_status(
            workload, phases.failed_status(workload, reason, message, timestamp.seconds())
        ):
            self._writer.record_event(workload, "Warning", reason, message, action="Scheduling")
            log.warning("workload_failed", workload=workload.meta.key, reason=reason, message=message)
        return "done"

    async def _end(self, workload: Workload) -> Result:
        """The workload is being deleted: stop what runs it, whatever its phase."""
        uid = workload.meta.uid
        run = self._state.runs.get(uid)
        try:
            if run is not None:
                await self._writer.delete_run(run)
            elif self._planner.has_plan(uid):
                # Created a moment ago, perhaps: the watch has not shown it yet.
                with contextlib.suppress(errors.NotFound):
                    resource, name = manifests.resource_of(workload), manifests.job_name(workload)
                    await self._client.delete(resource, name, workload.meta.namespace)
        except errors.Permanent as exc:
            # The owner reference has the garbage collector do it; the user's delete must not wait for us.
            log.warning("run_not_deleted", workload=workload.meta.key, error=str(exc))
        self._give_back_place(uid)
        await self._writer.remove_finalizer(workload)
        return "done"

    def _attempt_of(self, workload: Workload) -> Attempt:
        """What is known of the workload; an edit of its spec starts a new attempt."""
        uid = workload.meta.uid
        attempt = self._attempts.get(uid)
        if attempt is None or attempt.generation != workload.meta.generation:
            if attempt is not None:
                self._discard_plan(uid, attempt)
            attempt = self._attempts[uid] = Attempt(generation=workload.meta.generation)
        return attempt

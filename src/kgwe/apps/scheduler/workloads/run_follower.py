"""Follows the run of a workload: reports its progress and its end, and replaces it when its place does not hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from kgwe.apps.scheduler.workloads import creation_errors
from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.state import run_state
from kgwe.cluster.workload import runs, scheduler_policy
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units.phrasing import end_sentence
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.planning.interruptions import Interruptions
    from kgwe.apps.scheduler.workloads.attempt import Attempt, Result
    from kgwe.apps.scheduler.workloads.attempts import Attempts
    from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
    from kgwe.apps.scheduler.workloads.setbacks import Setbacks
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.state.run_state import Unplaced
    from kgwe.cluster.workload.conditions import Trouble
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Key, Workload
    from kgwe.kube.api import core

log = structlog.get_logger(__name__)

# When many workloads start at once, each takes longer: the status Scheduled is written later, too.
_STARTS_PER_S = 50.0
# Pods that a slow control plane creates and binds in a second: a large workload gets the time that takes.
_PODS_PER_S = 20.0
# The API server's messages about pods that it refused are read at most this often, for all workloads together.
_ERROR_READ_S = 0.5
# How often a run that was scaled up looks for room for the seats that it gave up before.
_LACKING_S = 10.0


class FailureRecovery(Protocol):
    """What recovers workloads from failed nodes and GPUs."""

    def trouble_of(self, owner: str) -> Trouble | None:
        """Why a workload that has its place is not whole."""

    def failed_on_lost_hardware(self, workload: Workload, run: Run) -> bool:
        """Whether a run that failed did so on a node or GPU that is known to have failed."""

    def restart_run(self, workload: Workload, run: Run) -> None:
        """Delete a run that failed on lost hardware; its workload is placed again."""


class RunFollower:
    """Takes at most one step for a run in each call."""

    def __init__(
        self,
        deps: Deps,
        *,
        interruptions: Interruptions,
        attempts: Attempts,
        setbacks: Setbacks,
        writer: StatusWriter,
        recovery: FailureRecovery,
        rejected_pods: RejectedPods,
        requeue: Callable[[Key, float], None],
        on_completed: Callable[[set[str]], None] = lambda _nodes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_completed`: called with the nodes of a workload that completed."""
        self._client = deps.client
        self._state = deps.state
        self._settings = deps.settings
        self._interruptions = interruptions
        self._attempts = attempts
        self._setbacks = setbacks
        self._writer = writer
        self._recovery = recovery
        self._rejected_pods = rejected_pods
        self._requeue = requeue
        self._on_completed = on_completed
        self._clock = clock
        self._next_error_read_at = 0.0
        self._starting: set[str] = set()  # workloads with a place that do not run yet

    def forget(self, uid: str) -> None:
        """The workload does not count as starting, until the next call finds that it is."""
        self._starting.discard(uid)

    async def stop_run(self, workload: Workload, run: Run) -> Result:
        """Delete the run of a suspended workload; its pods end with their grace period. A run that ended is kept."""
        if run.ended is not None or run.failing:
            return await self.follow(workload, run)
        attempt = self._attempts.attempt_of(workload)
        if attempt.taken_back != run.meta.uid:
            await self._writer.delete_run(run)
            attempt.taken_back = run.meta.uid
            log.info("workload_suspended", workload=workload.meta.key, run=run.meta.name)
        return "done"  # the watch will show that it is gone

    async def follow(self, workload: Workload, run: Run) -> Result:
        """Report what the run and its pods do, and act if its pods do not get their places."""
        attempt = self._attempts.attempt_of(workload)
        self._observe_run(attempt, run)
        if attempt.taken_back == run.meta.uid:
            return "done"  # the watch will show that it is gone
        attempt.held_at, attempt.told_at = None, 0.0
        pods = self._state.pods_of(run)
        if run.ended is not None:
            return await self._finish_run(workload, run, run.ended)
        if runs.is_outdated(run, workload) and not run_state.is_bound(pods):
            # Edited before any of its pods ran: the new spec counts.
            await self._writer.delete_run(run)
            attempt.taken_back = run.meta.uid
            return "done"
        lacking = self._settle_seats(workload, run, pods)
        if run_state.is_running(workload, run, pods):
            return await self._report_running(workload, run, attempt, lacking)
        if run.suspended:
            return await self._report_suspended(workload, run, attempt)
        unfit = self._rejected_pods.unfit_seats(workload.meta.uid, run)
        why = unfit or run_state.find_unplaced(self._state, workload, run, pods)
        if why is not None and why.reason == run_state.PODS_NOT_CREATED and not why.is_certain:
            why = await self._explain_missing_pods(workload, run, attempt, why)
        attempt.note_unplaced(self._clock(), why.reason if why is not None else "")
        return await self._wait_until_placed(workload, run, attempt, why)

    async def _explain_missing_pods(self, workload: Workload, run: Run, attempt: Attempt, why: Unplaced) -> Unplaced:
        """The same with the API server's message, read once its controller had time to write it."""
        now = self._clock()
        last = attempt.job_seen_at if attempt.error_read_at is None else attempt.error_read_at
        if not attempt.creation_error and now - last >= attempt.settle_s and now >= self._next_error_read_at:
            attempt.error_read_at, self._next_error_read_at = now, now + _ERROR_READ_S
            attempt.creation_error = await creation_errors.find_creation_error(self._client, run)
        if not attempt.creation_error:
            # Not written yet, or another workload was read just now: again, after pauses that grow.
            self._requeue(workload.key, max(now - attempt.job_seen_at, attempt.settle_s, _ERROR_READ_S))
        return run_state.describe_creation_error(run, attempt.creation_error) if attempt.creation_error else why

    def _observe_run(self, attempt: Attempt, run: Run) -> None:
        """Start the times of the attempt when its run is seen for the first time."""
        attempt.plan = None  # the run shows it
        if attempt.job_uid != run.meta.uid:
            attempt.job_uid, attempt.job_seen_at = run.meta.uid, self._clock()
            attempt.settle_s = self._settings.status_settle_seconds
            attempt.created_at = attempt.unplaced_at = attempt.error_read_at = None
            attempt.creation_error = ""

    def _settle_seats(self, workload: Workload, run: Run, pods: Mapping[str, core.Pod]) -> int:
        """Make the seats of a run that has pods follow its scale; returns how many seats it lacks."""
        if run.suspended or not (run.is_scaled_down or run_state.is_bound(pods)):
            return 0
        lacking = self._state.run_registry.settle_seats(workload.meta.uid)
        if lacking:
            self._requeue(workload.key, _LACKING_S)
        return lacking

    # --- status -----------------------------------------------------------------------------------------

    async def _report_running(self, workload: Workload, run: Run, attempt: Attempt, lacking: int) -> Result:
        attempt.refusals, attempt.unplaced_at, attempt.suspended = 0, None, False
        trouble = self._recovery.trouble_of(workload.meta.uid) or run_state.describe_scale(run, lacking)
        status = phases.running_status(workload, self._placement_of(workload, run), timestamp.seconds(), trouble)
        await self._writer.write_status(workload, status)
        self._warn_of_edit(workload, run)
        return "done"

    async def _report_suspended(self, workload: Workload, run: Run, attempt: Attempt) -> Result:
        attempt.unplaced_at, attempt.suspended = None, True
        status = phases.scheduled_status(
            workload,
            self._placement_of(workload, run),
            timestamp.seconds(),
            "suspended: set spec.suspend of its Job to false to resume",
        )
        await self._writer.write_status(workload, status)
        return "done"

    def _placement_of(self, workload: Workload, run: Run) -> phases.Placement:
        run = replace(run, seats=self._state.run_registry.held_seats(run))
        cards, pods = self._state.reader.cards, self._state.pods_of(run)
        strategy = scheduler_policy.strategy_of(workload, self._state.config)
        return phases.Placement(run, workload, cards, pods, default_strategy=strategy)

    def _warn_of_edit(self, workload: Workload, run: Run) -> None:
        if runs.is_outdated(run, workload) and not workload.is_scalable:
            note = "spec change ignored: already scheduled. Delete and re-create to apply"
            self._writer.record_event(workload, "Warning", "SpecChangedWhileScheduled", note, action="Scheduling")

    # --- waiting for its pods to be placed --------------------------------------------------------------

    async def _wait_until_placed(self, workload: Workload, run: Run, attempt: Attempt, why: Unplaced | None) -> Result:
        """Give kube-scheduler its time; then replace the run, so that its place does not lie idle."""
        now = self._clock()
        if run.meta.deletionTimestamp is not None:
            return "done"
        if why is not None and attempt.unplaced_at is not None:
            due = attempt.unplaced_at + self._patience_s(why, run)
            if now >= due:
                return await self._replace_run(workload, run, why)
            self._requeue(workload.key, due - now + 0.1)
        since = attempt.job_seen_at if attempt.unplaced_at is None else max(attempt.job_seen_at, attempt.unplaced_at)
        self._starting.add(workload.meta.uid)
        attempt.settle_s = max(attempt.settle_s, len(self._starting) / _STARTS_PER_S)
        if now - since < attempt.settle_s:
            self._requeue(workload.key, since + attempt.settle_s - now)
        elif workload.status.phase != Phase.RUNNING or why is not None:
            placed, trouble = self._placement_of(workload, run), self._recovery.trouble_of(workload.meta.uid)
            is_known = why is not None and (why.is_certain or why.reason == run_state.NODE_REFUSED)
            words = f"{end_sentence(why.message)} Reserved: {placed.where}" if why is not None and is_known else ""
            status = phases.scheduled_status(workload, placed, timestamp.seconds(), words, trouble)
            await self._writer.write_status(workload, status)
        if why is None:
            self._warn_of_edit(workload, run)
        return "done"

    def _patience_s(self, why: Unplaced, run: Run) -> float:
        """How long the run may stay without its place."""
        if why.reason in (run_state.PLACE_LOST, run_state.POD_REJECTED):
            return 0.0
        if why.reason == run_state.NODE_REFUSED or (why.reason == run_state.NOT_SCHEDULED and why.is_certain):
            return scheduler_policy.plan_timeout_s(self._state.config, self._settings.placement_timeout_seconds)
        return self._settings.unscheduled_timeout_seconds + run.pods / _PODS_PER_S

    async def _replace_run(self, workload: Workload, run: Run, why: Unplaced) -> Result:
        """Delete the run and plan the workload again, without the nodes that did not take it."""
        attempt = self._attempts.attempt_of(workload)
        attempt.avoid |= dict.fromkeys(why.avoid, self._clock() + self._settings.avoid_seconds)
        await self._writer.delete_run(run)
        attempt.taken_back, attempt.volume = run.meta.uid, why.volume
        await self._setbacks.retry_placement(workload, why.reason, why.message, at_once=why.is_nodes_fault)
        if why.reason == run_state.PLACE_LOST and run_state.has_started(workload, run) and not attempt.suspended:
            # It ran, and lost its node to a drain: it is first among its priority, as after a failure. A run that
            # was suspended gave its place away.
            self._interruptions.record(workload.meta.uid, Reason.RECOVERING, why.message)
        return "retry"

    # --- the end of a run -------------------------------------------------------------------------------

    async def _finish_run(self, workload: Workload, run: Run, ended: core.Condition) -> Result:
        if (
            workload.status.phase == Phase.FAILED
            and not workload.finished
            and run.generation < workload.meta.generation
        ):
            # Failed and edited since: delete the run, so that the workload can start again.
            await self._writer.delete_run(run)
            return "done"
        if ended.type == "Failed":
            if self._recovery.failed_on_lost_hardware(workload, run):
                self._recovery.restart_run(workload, run)
                return "retry"
            if (why := await self._find_rejection(workload, run, ended)) is not None:
                return await self._replace_run(workload, run, why)
        placed = self._placement_of(workload, run)
        status = phases.finished_status(workload, placed, run, ended, timestamp.seconds())
        if await self._writer.write_status(workload, status):
            if status.phase == Phase.FAILED:
                self._writer.record_event(workload, "Warning", str(status.phase), status.message, action="Running")
            else:
                self._on_completed({seat.node for seat in run.seats})
            log.info("workload_finished", workload=workload.meta.key, phase=str(status.phase), message=status.message)
        return "done"

    async def _find_rejection(self, workload: Workload, run: Run, ended: core.Condition) -> Unplaced | None:
        """Why a Job failed whose pods never started; None: its pods failed by themselves."""
        if workload.status.phase == Phase.FAILED or ended.reason != "BackoffLimitExceeded":
            return None
        return await self._rejected_pods.explain_failed_job(run)

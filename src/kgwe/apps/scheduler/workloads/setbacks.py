"""What follows when a workload could not be started or placed: a pause and another attempt, or the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from kgwe.apps.scheduler.workloads import missing_volumes, placement_attempts
from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.apps.scheduler.workloads.placement_attempts import AttemptLimits
from kgwe.cluster.workload.manifests import run_metadata
from kgwe.kube.api import timestamp
from kgwe.model.units import backoff
from kgwe.model.units.phrasing import end_sentence, format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe import errors
    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.workloads.attempts import Attempts
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.workload.workload import Key, Workload

log = structlog.get_logger(__name__)


class Setbacks:
    """Releases the place of a workload whose attempt failed, reports that, and says when the next attempt is due."""

    def __init__(
        self,
        deps: Deps,
        attempts: Attempts,
        writer: StatusWriter,
        *,
        requeue: Callable[[Key, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = deps.state
        self._metrics = deps.metrics
        self._rng = deps.rng
        self._attempts = attempts
        self._writer = writer
        self._requeue = requeue
        self._clock = clock
        self._limits = AttemptLimits(deps.state)

    async def retry_placement(self, workload: Workload, reason: str, message: str, *, at_once: bool = False) -> None:
        """Place the workload again after a pause, longer each time: neither its own error nor a shortage of GPUs.

        `at_once`: the first time there is no pause, because another node may do.
        """
        self._attempts.release_place(workload.meta.uid)
        attempt = self._attempts.attempt_of(workload)
        attempt.refusals += 1
        attempt.ask = None
        again_s = 0.0
        if attempt.refusals > 1 or not at_once:
            again_s = backoff.delay_s(workload.backoff_s, attempt.refusals - 1, self._rng.random())
        self._writer.record_event(workload, "Warning", reason, message, action="Scheduling")
        log.warning("placement_taken_back", workload=workload.meta.key, reason=reason, message=message)
        if limit := self._limits.exhaust(workload.meta.uid, attempt.refusals):
            again_s = placement_attempts.PAUSE_S
            last = f"{reason}: {end_sentence(message)}"
            message = f"{format_count(limit, 'attempt')} in a row failed, last: {last} Change its spec or the nodes"
            reason, attempt.refusals = placement_attempts.EXHAUSTED, 0
        attempt.retry_at = self._clock() + again_s
        if again_s:
            self._requeue(workload.key, min(again_s, missing_volumes.CHECK_S) if attempt.volume else again_s)
            note = f"{end_sentence(message)} Next attempt at {timestamp.seconds_from_now(again_s)}"
            await self._writer.write_status(
                workload, phases.pending_status(workload, reason, note, timestamp.seconds())
            )

    async def retry_creation(self, workload: Workload, error: errors.Permanent) -> bool:
        """Create the run again after a pause, longer each time; returns False when its retries are used up."""
        self._attempts.release_place(workload.meta.uid)
        self._metrics.failed.labels("job_creation_failed").inc()
        retries = phases.retry_count(workload)
        if retries >= workload.max_retries:
            await self.give_up(
                workload, "MaxRetriesExceeded", f"failed after {format_count(retries, 'retry', 'retries')}: {error}"
            )
            return False
        delay_s = backoff.delay_s(workload.backoff_s, retries, self._rng.random())
        self._metrics.retries.inc()
        self._attempts.attempt_of(workload).retry_at = self._clock() + delay_s
        self._requeue(workload.key, delay_s)
        kind, retry = run_metadata.resource_of(workload).kind, f"retry {retries + 1} of {workload.max_retries}"
        message = f"creating the {kind} failed; {retry} in {delay_s:.0f} s: {error}"
        await self._writer.write_status(
            workload, phases.retrying_status(workload, retries + 1, message, timestamp.seconds())
        )
        self._writer.record_event(workload, "Warning", "JobCreationFailed", str(error), action="Scheduling")
        return True

    async def give_up(self, workload: Workload, reason: str, message: str) -> None:
        """The workload has failed; only an edit of its spec starts it again."""
        self._attempts.release_place(workload.meta.uid)
        if await self._writer.write_status(
            workload, phases.failed_status(workload, reason, message, timestamp.seconds())
        ):
            self._writer.record_event(workload, "Warning", reason, message, action="Scheduling")
            log.warning("workload_failed", workload=workload.meta.key, reason=reason, message=message)

    def renew_attempts(self) -> None:
        """Workloads whose attempts are used up get new ones if nodes, network or settings have changed since."""
        for uid in self._limits.renew():
            key, attempt = self._state.keys.get(uid), self._attempts.find(uid)
            if key is not None and attempt is not None:
                attempt.retry_at, attempt.refusals = 0.0, 0
                self._requeue(key, 0.0)

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self._limits.forget(uid)

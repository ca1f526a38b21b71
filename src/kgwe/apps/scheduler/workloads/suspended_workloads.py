"""Workloads whose `spec.suspend` is set: they hold nothing and wait for nothing, until it is unset."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.apps.scheduler.workloads.attempt import WATCH_LAG_S
from kgwe.cluster.workload.conditions import SUSPENDED
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.workloads.attempt import Result
    from kgwe.apps.scheduler.workloads.attempts import Attempts
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.workload.workload import Key, Workload

log = structlog.get_logger(__name__)

#: reason of a workload that was resumed and has not been planned yet
RESUMED: Final = "Resumed"


def was_suspended(workload: Workload) -> bool:
    """Whether the status says that the workload is suspended."""
    return any(each.type == SUSPENDED and each.status == "True" for each in workload.status.conditions)


class SuspendedWorkloads:
    """Suspends and resumes workloads that have no run. The status alone says which are suspended."""

    def __init__(
        self,
        attempts: Attempts,
        writer: StatusWriter,
        *,
        requeue: Callable[[Key, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempts = attempts
        self._writer = writer
        self._requeue = requeue
        self._clock = clock

    async def report_ended(self, workload: Workload) -> None:
        """Note on a workload that has ended that `suspend` changes nothing; remove the note when it is unset."""
        if workload.suspend or any(each.type == SUSPENDED for each in workload.status.conditions):
            await self._writer.write_status(workload, phases.ended_status(workload, timestamp.seconds()))

    async def suspend(self, workload: Workload) -> Result:
        """Take the workload out of the queue, release what was planned for it, and report that."""
        uid = workload.meta.uid
        attempt = self._attempts.find(uid)
        if attempt is not None and attempt.created_at is not None:
            wait_s = attempt.created_at + WATCH_LAG_S - self._clock()
            if wait_s > 0:
                # The watch is about to show its run, which is deleted then. Until then it keeps its place.
                self._requeue(workload.key, wait_s)
                return "waiting"
        self._attempts.release_place(uid)
        status = phases.suspended_status(workload, timestamp.seconds())
        if await self._writer.write_status(workload, status) and not was_suspended(workload):
            self._writer.record_event(workload, "Normal", SUSPENDED, status.message, action="Suspending")
        return "waiting"

    async def resume(self, workload: Workload) -> Result:
        """Report that the workload waits again. Its arrival is its creation, so it has its old position."""
        status = phases.pending_status(workload, RESUMED, "resumed; waiting to be planned", timestamp.seconds())
        await self._writer.write_status(workload, status)
        self._writer.record_event(workload, "Normal", RESUMED, "resumed: waits for a place again", action="Resuming")
        self._requeue(workload.key, 0.0)
        log.info("workload_resumed", workload=workload.meta.key)
        return "waiting"

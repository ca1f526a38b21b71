"""Reports workloads that wait for a place: their status, and Events, less often the longer they wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.workload.workload import status_patch
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.apps.scheduler.workloads.attempt import Attempt
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.workload.workload import Key, Workload
    from kgwe.placement.refusal import Refusal

# Waiting messages written per second, over all workloads.
_MESSAGES_PER_S: Final = 10.0


class WaitingNotices:
    """Messages about workloads that wait for room, during one term of leadership."""

    def __init__(
        self,
        write: StatusWriter,
        planner: Planner,
        *,
        interval_s: float,
        settle_s: float,
        requeue: Callable[[Key, float], None],
    ) -> None:
        self._writer = write
        self._planner = planner
        self._interval_s = interval_s
        self._settle_s = settle_s
        self._requeue = requeue

    async def report(self, workload: Workload, attempt: Attempt, held: Refusal, now: float) -> None:
        """Report why the workload waits: soon if the reason is new, seldom if only numbers in the message changed."""
        if attempt.held_at is None:
            attempt.held_at = now
            attempt.warn_at = now + self._pause_s
        self._warn_if_due(workload, attempt, held, now)
        new = phases.waiting_status(workload, held, timestamp.seconds(), self._estimate_start(workload))
        if status_patch(workload, new) is None:
            return
        told = workload.status.conditions[0] if workload.status.conditions else None
        is_new_reason = told is None or told.reason != held.code
        # What waiting cannot help changes with the nodes and the settings only, and then at once.
        is_outdated = not held.possible and workload.status.message != new.message
        due = self._status_due(workload, attempt, is_news=is_new_reason or is_outdated)
        if now < due:
            self._requeue(workload.key, due - now)
            return
        attempt.told_at = now
        await self._writer.write_status(workload, new)
        self._requeue(workload.key, self._pause_s)
        if is_new_reason:
            self._writer.record_event(workload, "Normal", held.code, held.message, action="Waiting")

    @property
    def _pause_s(self) -> float:
        """The time between two messages about one workload: longer if many workloads wait."""
        return max(self._interval_s, self._planner.waiting_count / _MESSAGES_PER_S)

    def _status_due(self, workload: Workload, attempt: Attempt, *, is_news: bool) -> float:
        """When the status may be written."""
        status = workload.status
        is_news |= status.phase != Phase.PENDING or status.observed_generation != workload.meta.generation
        if not is_news:
            return attempt.told_at + self._pause_s
        pace_s = self._planner.waiting_count / _MESSAGES_PER_S if attempt.told_at else 0.0
        return max((attempt.held_at or 0.0) + self._settle_s, attempt.told_at + pace_s)

    def _warn_if_due(self, workload: Workload, attempt: Attempt, held: Refusal, now: float) -> None:
        """The first refusal is normal. A workload that is still refused gets a Warning, after twice as long each
        time."""
        if now >= attempt.warn_at:
            # Other words than the first Event: two Events of one text look like a fault.
            note = f"Still waiting. {held.message}"
            self._writer.record_event(workload, "Warning", held.code, note, action="Waiting")
            attempt.warn_at = now + 2 * max(now - (attempt.held_at or now), self._pause_s)
        self._requeue(workload.key, attempt.warn_at - now)

    def _estimate_start(self, workload: Workload) -> tuple[str, str] | None:
        eta = self._planner.estimate_of(workload.meta.uid)
        if eta is None or eta.p50_s is None or eta.p90_s is None:
            return None
        return _format_minute(eta.p50_s), _format_minute(eta.p90_s)


def _format_minute(time_s: float) -> str:
    """The next full minute, so that the message stays the same from pass to pass."""
    return timestamp.format_time(math.ceil(time_s / 60) * 60)

"""Tasks of the leader that run every few seconds: Events of incomplete gangs, status reports, outcome history."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.apps.scheduler.reporting.gang_notices import GangNotices
from kgwe.apps.scheduler.reporting.status_reports import ConfigReport, DomainReports

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.reporting.outcome_history import OutcomeHistory

log = structlog.get_logger(__name__)

_EVERY_S: Final = 2.0


class PeriodicTasks:
    """The periodic tasks of one term of leadership."""

    def __init__(self, deps: Deps, history: OutcomeHistory, *others: Callable[[], Any]) -> None:
        """`others`: called in each round, too."""
        self._others = others
        settings = deps.settings
        self._history = history
        self._notices = GangNotices(deps.gangs, deps.events.record, after_s=settings.gang_notice_seconds)
        self._config = ConfigReport(deps)
        self._domains = DomainReports(deps, self._history, pause_s=settings.domain_status_seconds)
        self._history_s = settings.domain_status_seconds
        self._history_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._history.restore_counts()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        parts: tuple[Callable[[], Any], ...] = (
            self._notices.report_due,
            self._config.write_if_changed,
            self._apply_history,
            self._domains.write_due,
            *self._others,
        )
        while True:
            for part in parts:
                try:
                    done = part()
                    if inspect.isawaitable(done):
                        await done
                except errors.KgweError as exc:
                    log.warning("chore_failed", chore=part.__qualname__, error=str(exc))
                except Exception:  # one task that fails must not stop the others
                    log.exception("chore_crashed", chore=part.__qualname__)
            await asyncio.sleep(_EVERY_S)

    def _apply_history(self) -> None:
        """Give the scores to placement, seldom: every change of a score rebuilds the fleet."""
        now = time.monotonic()
        if now >= self._history_at:
            self._history_at = now + self._history_s
            self._history.apply_scores()

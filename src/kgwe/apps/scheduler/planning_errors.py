"""Errors in planning: counted by stage, logged with the workload, and reported by /readyz if passes fail.

An error of one workload is isolated where it happens and only counted here. A pass that fails as a whole, again
and again, means that nothing is planned: the replica is then not ready, and says why.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.metrics import Metrics

log = structlog.get_logger(__name__)

# Passes in a row that failed before the replica says that it is not ready.
_FAILED_MOST: Final = 3
_PAUSE_S: Final = 0.5
_PAUSE_MOST_S: Final = 30.0


class PlanningErrors:
    """The errors of one term."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._in_a_row = 0
        self._last = ""
        self._until = 0.0

    def record(self, stage: str, owner: str, error: Exception) -> None:
        """Count and log an error that was isolated."""
        self._metrics.planning_errors.labels(stage).inc()
        log.error("planning_error", stage=stage, owner=owner, error=repr(error), exc_info=error)

    def pass_failed(self, error: Exception) -> float:
        """A pass failed as a whole; returns the seconds to pause before the next."""
        self._in_a_row += 1
        self._last = f"{type(error).__name__}: {error}"
        self._metrics.passes_failed.inc()
        pause_s = min(backoff.delay_s(_PAUSE_S, self._in_a_row - 1, 0.0), _PAUSE_MOST_S)
        self._until = self._clock() + pause_s
        log.error("pass_failed", in_a_row=self._in_a_row, retry_in_s=pause_s, exc_info=error)
        return pause_s

    def pass_succeeded(self) -> None:
        self._in_a_row = 0
        self._until = 0.0

    @property
    def is_pausing(self) -> bool:
        """Whether the next pass has to wait: the last one failed a moment ago."""
        return self._clock() < self._until

    @property
    def problem(self) -> str | None:
        """Why the replica is not ready, as /readyz says it."""
        if self._in_a_row < _FAILED_MOST:
            return None
        return f"planning fails: {self._in_a_row} passes in a row failed, the last with {self._last[:200]}"

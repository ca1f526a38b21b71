"""Postpones a planning pass while gangs arrive that should be planned together with those that wait.

The window opens when a gang asks for a place that no single leaf holds: then where it goes matters to the others. The
pass waits as long as pods of incomplete gangs keep coming, each within the quiet time after the one before, and never
longer than the limit. A gang that comes alone, and gangs that fit a leaf, are planned at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _next_never() -> None:
    return None


class GatherWindow:
    """How much longer a pass waits for gangs that arrive."""

    def __init__(
        self,
        last_growth: Callable[[], float | None] = _next_never,
        *,
        quiet_s: float = 0.3,
        limit_s: float = 4.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last_growth`: when an incomplete gang got its latest pod, by `clock`; None: no gang is incomplete."""
        self._last_growth = last_growth
        self._quiet_s = quiet_s
        self._limit_s = limit_s
        self._clock = clock
        self._opened_s: float | None = None

    @property
    def is_open(self) -> bool:
        return self._opened_s is not None

    def open(self) -> None:
        if self._opened_s is None:
            self._opened_s = self._clock()

    def close(self) -> None:
        self._opened_s = None

    def remaining_s(self) -> float:
        """Seconds to wait before asking again; 0: run the pass."""
        grown_s = self._last_growth() if self._opened_s is not None else None
        if self._opened_s is None or grown_s is None:
            return 0.0
        now_s = self._clock()
        return max(min(grown_s + self._quiet_s, self._opened_s + self._limit_s) - now_s, 0.0)

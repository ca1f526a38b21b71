"""Judgements of other times than the detector's, on request: one at a time, and few that wait.

A week of all devices is large, so long times have coarser steps, and a client that gives up does not make room for
another request before its own has ended.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from kgwe.rpc.server import Exhausted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.apps.optimizer.waste.detector import Assessment
    from kgwe.model.usage.window import UsageWindow

_MINUTE_S: Final = 60.0
# Twelve hours in minutes; a week in steps of 14 minutes.
_MOST_STEPS: Final = 720
# Requests that run or wait.
_MOST_REQUESTS: Final = 4


class LookbackJudge:
    """Reads a window and judges it."""

    def __init__(
        self,
        load: Callable[[float, float, float], Awaitable[UsageWindow]],
        judge: Callable[[UsageWindow, float, float], Awaitable[Assessment]],
        *,
        now: Callable[[], float],
    ) -> None:
        """`load`: returns the window with this end, length and step; `judge`: judges it with this end and length."""
        self._load = load
        self._judge = judge
        self._now = now
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Assessment]] = set()

    async def assess(self, lookback_s: float) -> Assessment:
        """Judge so many seconds before now; raise Exhausted if too many requests wait."""
        if len(self._tasks) >= _MOST_REQUESTS:
            raise Exhausted(f"{_MOST_REQUESTS} requests with lookback_s are judged or wait, which is the most")
        task = asyncio.create_task(self._assess(lookback_s))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        # A thread cannot be cancelled, so the task goes on without its client.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End all requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Assessment]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its client may be gone: then asyncio would log it as never retrieved

    async def _assess(self, lookback_s: float) -> Assessment:
        async with self._turn:
            step_s = plan_step(lookback_s)
            length_s = math.ceil(lookback_s / step_s) * step_s
            end_s = self._now() // _MINUTE_S * _MINUTE_S
            return await self._judge(await self._load(end_s, length_s, step_s), end_s, length_s)


def plan_step(lookback_s: float) -> float:
    """Return the step of a window in seconds: whole minutes, as few as the number of steps allows."""
    return max(math.ceil(lookback_s / _MINUTE_S / _MOST_STEPS), 1) * _MINUTE_S

"""Sends telemetry to watchers without ever waiting for them.

Every watcher has a short queue. One that reads too slowly loses the oldest entries and gets their number; the agent's
memory does not depend on how slow its callers are, nor (up to a limit) on how many. One that asks for aggregates is
told with every message what was measured since the one before, however seldom it wants one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.model.telemetry import window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.model.telemetry.sample import NodeReadings, Series

_DEPTH: Final = 4


class TooManyWatchers(Exception):
    """There is no room for another watcher."""


class Watcher:
    """One caller's queue."""

    def __init__(self, interval_s: float, depth: int = _DEPTH, *, aggregates: bool = False) -> None:
        self._window: window.Window[Series] | None = window.Window() if aggregates else None
        self._interval_ms = interval_s * 1000
        self._queue: collections.deque[NodeReadings] = collections.deque(maxlen=depth)
        self._last_ms: float | None = None
        self._missed = 0
        self._filled = asyncio.Event()

    def put(self, sample: NodeReadings) -> None:
        if self._window is not None:
            if self._window.ticks >= window.MAX_SAMPLES:
                self._window.close()
            self._window.tick(sample.series)
        # Half an interval of grace: the clock of readings is not exact to the millisecond.
        if self._last_ms is not None and self._interval_ms:
            since = sample.unix_ms - self._last_ms
            if 0 <= since < self._interval_ms * 0.9:
                return
        self._last_ms = sample.unix_ms
        if len(self._queue) == self._queue.maxlen:
            self._missed += 1
        if self._window is not None:
            sample = replace(sample, aggregates=self._window.close())
        self._queue.append(sample)
        self._filled.set()

    async def next(self) -> tuple[NodeReadings, int]:
        """The oldest sample not yet taken, and how many were lost before it."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        missed, self._missed = self._missed, 0
        return self._queue.popleft(), missed


class TelemetryHub:
    """All watchers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._watchers: set[Watcher] = set()
        self.newest: NodeReadings | None = None

    def __len__(self) -> int:
        return len(self._watchers)

    def publish(self, sample: NodeReadings) -> None:
        self.newest = sample
        for watcher in self._watchers:
            watcher.put(sample)

    @contextlib.contextmanager
    def watching(self, interval_s: float = 0.0, *, aggregates: bool = False) -> Iterator[Watcher]:
        """A queue that begins with the newest sample there is."""
        if len(self._watchers) >= self._limit:
            raise TooManyWatchers(f"{self._limit} callers watch already")
        watcher = Watcher(interval_s, aggregates=aggregates)
        if self.newest is not None:
            watcher.put(self.newest)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

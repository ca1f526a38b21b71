"""Sends telemetry to watchers without waiting for them.

Each watcher has a short queue. A slow watcher loses the oldest entries and gets their number, so the agent's memory
does not depend on its clients. A watcher of aggregates gets, with each message, the values since the previous
message.
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
    """Raised if the maximum number of watchers is reached."""


class Watcher:
    """The queue of one watcher."""

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
        # Half an interval of tolerance: readings are not exact to the millisecond.
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
        """Return the oldest sample not yet taken, and the number of samples lost before it."""
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
    def open_watcher(self, interval_s: float = 0.0, *, aggregates: bool = False) -> Iterator[Watcher]:
        """Yield a queue that starts with the newest sample."""
        if len(self._watchers) >= self._limit:
            raise TooManyWatchers(f"the maximum of {self._limit} watchers is reached")
        watcher = Watcher(interval_s, aggregates=aggregates)
        if self.newest is not None:
            watcher.put(self.newest)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

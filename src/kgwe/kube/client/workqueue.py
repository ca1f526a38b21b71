"""A queue of keys to reconcile: each key once, one worker per key, failures back off.

A key added while it waits is the same key; a key added while it is being worked on is worked on again
afterwards, never at the same time. So a burst of events about one object costs one or two reconciles, and
two workers never hold the same object.

An appointment (`add_after`, `retry`) promises that work on the key begins by then. Work that begins earlier
keeps the promise: a caller that still wants a later retry has to add it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")


class WorkQueue(Generic[K]):
    """FIFO over distinct keys; `get`, work, then `mark_done` (always) and `retry` or `forget`."""

    def __init__(
        self, *, base_s: float = 0.05, ceiling_s: float = 60.0, jitter: float = 0.1, rng: random.Random | None = None
    ) -> None:
        self._base_s = base_s
        self._ceiling_s = ceiling_s
        self._jitter = jitter
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()  # waiting, or to be worked on again when done
        self._working: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys ready or being worked on; a key that waits for its time does not count."""
        return len(self._ready) + len(self._working)

    def add(self, key: K) -> None:
        self._cancel_timer(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._push_key(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add `key` once `delay_s` have passed; an earlier appointment already made stands."""
        if delay_s <= 0:
            self.add(key)
            return
        if key in self._dirty or self._closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self.add, key)

    async def get(self) -> K:
        while not self._ready:
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    # Woken and cancelled at once: hand the wake-up on or the key would sit unseen.
                    self._wake_one()
                with contextlib.suppress(ValueError):
                    self._getters.remove(getter)
                raise
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def mark_done(self, key: K) -> None:
        if key not in self._working:
            return  # said twice: queueing it twice would give it to two workers
        self._working.remove(key)
        if key in self._dirty:
            self._push_key(key)

    def retry(self, key: K) -> float:
        """Add `key` again after a delay that doubles with each failure up to the ceiling; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = self._base_s * float(2 ** min(failures, 30)) * (1 + self._jitter * self._rng.random())
        delay_s = min(delay_s, self._ceiling_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The key's work succeeded: its next failure starts from the shortest delay again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def close(self) -> None:
        """Cancel all appointments and take no more (the process is stopping, work under way may still end)."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _push_key(self, key: K) -> None:
        self._ready.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

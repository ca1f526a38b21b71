"""Logs what blocks the event loop and for how long, from a watching thread.

For debugging only: the loop is woken some hundred times per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

log = structlog.get_logger(__name__)

# Number of innermost calls to log.
_DEPTH: Final = 8


def _say(took_s: float, where: str) -> None:
    log.warning("loop_stalled", took_ms=round(took_s * 1e3, 1), where=where)


@contextlib.contextmanager
def watch_stalls(limit_s: float, report: Callable[[float, str], None] = _say) -> Iterator[None]:
    """Log what blocks the running loop for longer than `limit_s`, while the context is open; 0 disables it."""
    if not limit_s:
        yield
        return
    watch = _Watch(limit_s, report)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _Watch(threading.Thread):
    def __init__(self, limit_s: float, report: Callable[[float, str], None]) -> None:
        super().__init__(name="stalls", daemon=True)
        self._limit_s = limit_s
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._alive = 0.0
        self._seen = ""  # the stack at the time of detection
        self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        if self._seen:
            self._report(now - self._alive, self._seen)
            self._seen = ""
        self._alive = now
        if not self._over.is_set():
            self._loop.call_later(self._limit_s / 2, self._beat)

    def run(self) -> None:
        while not self._over.wait(self._limit_s / 2):
            late_s = time.monotonic() - self._alive
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - meant for this, in spite of its name
            if late_s > self._limit_s and not self._seen and frame is not None:
                self._seen = _format_stack(frame)

    def stop(self) -> None:
        self._over.set()
        self.join()


def _format_stack(frame: FrameType) -> str:
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_DEPTH, lookup_lines=False)
    return " < ".join(f"{call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})" for call in calls)

"""The thread that writes a history: callers never wait for the disk, and a store that is away loses nothing.

Writes keep their order. After a Transient error the same write is tried again until it succeeds. A Permanent error
concerns one write: it is counted and reported, and the next one follows.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.model.units.backoff import delay_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.store.history import HistoryStore

    Write = Callable[[HistoryStore], object]

_log = structlog.get_logger(__name__)
MOST_WAITING: Final = 10_000
BACKOFF_S: Final = 1.0


class HistoryWriter:
    """A queue of writes and its thread. Closing it leaves the store open."""

    def __init__(self, store: HistoryStore, *, most_waiting: int = MOST_WAITING, backoff_s: float = BACKOFF_S) -> None:
        self._store = store
        self._most_waiting = most_waiting
        self._backoff_s = backoff_s
        self._waiting: deque[Write] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_busy = False
        self._problem: str | None = None
        self.counts: Counter[str] = Counter()
        """Writes by result: written, retried, failed, dropped."""
        self._thread = threading.Thread(target=self._run, name="history writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> None:
        """Queue a write, such as `lambda store: store.put_runs(runs)`. A full queue drops its oldest write."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                self._waiting.popleft()
                self.counts["dropped"] += 1
            self._waiting.append(write)
            self._changed.notify_all()

    def problem(self) -> str | None:
        """Return why the last write did not succeed, for readiness; None if it did."""
        return self._problem

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written. Whether it was, within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what waits, within the time, and stop. Whether everything was written."""
        finished = self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return finished

    def _run(self) -> None:
        while (write := self._take()) is not None:
            attempt = 0
            while not self._try(write):
                self.counts["retried"] += 1
                if self._pause(delay_s(self._backoff_s, attempt, random.random())):  # noqa: S311 -- jitter
                    return
                attempt += 1

    def _take(self) -> Write | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            if self._is_closing:
                return None
            self._is_busy = True
            return self._waiting.popleft()

    def _try(self, write: Write) -> bool:
        """Whether the write is done with: it succeeded, or it can never succeed."""
        try:
            write(self._store)
        except errors.Transient as exc:
            if self._problem is None:
                _log.warning("history_not_written", error=str(exc))
            self._problem = str(exc)
            return False
        except Exception as exc:  # noqa: BLE001 -- one bad write must not end the thread
            self.counts["failed"] += 1
            self._problem = str(exc)
            _log.error("history_write_failed", error=f"{type(exc).__name__}: {exc}")
            return True
        self.counts["written"] += 1
        self._problem = None
        return True

    def _pause(self, wait_s: float) -> bool:
        """Wait before the next attempt. Whether the writer is closing."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closing, wait_s)

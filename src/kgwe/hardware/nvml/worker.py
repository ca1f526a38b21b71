"""A thread for calls that may hang, with a deadline for each.

A driver call cannot be cancelled. If it exceeds its deadline the caller gets an error and continues; the thread stays
in the call. Until it returns, further calls are refused at once: a queue behind a hung GPU would only hide the
problem.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from typing import TYPE_CHECKING, TypeVar

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_Job = tuple["concurrent.futures.Future[object]", "Callable[[], object]"]


class Worker:
    """Runs calls on one thread. `run` is called from one event loop at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: concurrent.futures.Future[object] | None = None
        self._late = ""
        self._thread: threading.Thread | None = None

    @property
    def is_hung(self) -> bool:
        """Return whether a call has exceeded its deadline and not returned yet."""
        return bool(self._late)

    async def run(self, what: str, work: Callable[[], T], deadline_s: float) -> T:
        """Run the call on the thread."""
        if self._late:
            raise errors.Transient(f"{what}: the GPU driver hangs in {self._late}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((future, work))  # type: ignore[arg-type] # a future of T is one of object, but invariant
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            self._mark_late(future, what)  # type: ignore[arg-type] # as above
            raise errors.Transient(f"{what}: the GPU driver did not respond within {deadline_s:g} s") from None

    def close(self) -> None:
        """Close the worker; the thread ends after its last call."""
        self._jobs.put(None)

    def _mark_late(self, future: concurrent.futures.Future[object], what: str) -> None:
        with self._lock:
            if self._running is future:
                self._late = what

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue  # cancelled before it began
            with self._lock:
                self._running = future
            try:
                result = work()
            except BaseException as exc:  # noqa: BLE001 -- it belongs to the waiting caller
                self._finish()
                future.set_exception(exc)
            else:
                self._finish()
                future.set_result(result)
            del future, work, job

    def _finish(self) -> None:
        with self._lock:
            self._running, self._late = None, ""

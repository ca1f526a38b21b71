"""The store in a thread of its own: the event loop never waits for a disk.

A store that cannot be opened, or is lost, is tried again with the next call; readiness says why. Callers keep what was
not written and send it again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, TypeVar

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.store.history import HistoryStore

log = structlog.get_logger(__name__)
T = TypeVar("T")


class StoreThread:
    """The one writer of a store."""

    def __init__(self, open_store: Callable[[], HistoryStore]) -> None:
        self._open_store = open_store
        self._store: HistoryStore | None = None
        self._problem = "the store is not open yet"
        # One thread: a store has one writer, and calls keep their order.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store")

    def problem(self) -> str | None:
        """Return why the store does not work; None if it does."""
        return self._problem or None

    async def call(self, use: Callable[[HistoryStore], T]) -> T:
        """Run `use` in the thread; raise Transient if the store cannot be used now."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._use, use)

    async def close(self) -> None:
        """Finish the calls that have begun, and close the store."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _use(self, use: Callable[[HistoryStore], T]) -> T:
        try:
            if self._store is None:
                self._store = self._open_store()
            result = use(self._store)
        except errors.KgweError as exc:
            self._report(str(exc))
            if not isinstance(exc, (errors.Conflict, errors.NotFound)):
                self._close()
            raise
        if self._problem:
            log.info("store_ready")
        self._problem = ""
        return result

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("store_failed", error=problem, next="trying again; nothing is dropped")
        self._problem = problem

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

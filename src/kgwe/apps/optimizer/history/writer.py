"""The store in a thread of its own: the event loop never waits for a disk.

A store that cannot be opened is tried again with the next call; readiness says why. Callers keep what was not written
and send it again. A store has an identity: if another one is in its place, it was deleted or replaced, and its history
is gone. That is logged, counted, and told by readiness for some minutes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import time
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.store.history import HistoryStore

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Long enough for a probe and an alert to see it.
_TELL_LOSS_S: Final = 300.0


class StoreThread:
    """The one writer of a store."""

    def __init__(
        self,
        open_store: Callable[[], HistoryStore],
        *,
        on_loss: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_loss`: called in the thread when another store is in the place of the one that was used so far."""
        self._open_store = open_store
        self._on_loss = on_loss
        self._clock = clock
        self._identity = ""
        self._checked: tuple[HistoryStore | None, int] = (None, 0)
        self._lost_at = -math.inf
        self._store: HistoryStore | None = None
        self._problem = "the store is not open yet"
        # One thread: a store has one writer, and calls keep their order.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store")

    def problem(self) -> str | None:
        """Return why the store does not work; None if it does."""
        if self._problem:
            return self._problem
        if self._clock() - self._lost_at < _TELL_LOSS_S:
            return "the store was deleted or replaced while it was in use: earlier history is missing"
        return None

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
            self._check_identity(self._store)
        except errors.KgweError as exc:
            self._report(str(exc))
            if not isinstance(exc, (errors.Conflict, errors.NotFound)):
                self._close()
            raise
        if self._problem:
            log.info("store_ready")
        self._problem = ""
        return result

    def _check_identity(self, store: HistoryStore) -> None:
        """Notice that it is another store than before; only a new connection can have another one."""
        if (store, store.connects) == self._checked:
            return
        found = store.identify()
        if self._identity not in {"", found}:
            log.error("store_lost", next="restore it from a backup; history is recorded again from now on")
            self._lost_at = self._clock()
            self._on_loss()
        self._identity = found
        self._checked = (store, store.connects)

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("store_failed", error=problem, next="trying again; nothing is dropped")
        self._problem = problem

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

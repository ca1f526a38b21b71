"""Workers over a queue of keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from kgwe.kube.client.workqueue import WorkQueue

K = TypeVar("K", bound="Hashable")


class WorkerPool(Generic[K]):
    """A fixed number of tasks that process the keys of one queue; an error of one key does not stop the others."""

    def __init__(
        self,
        queue: WorkQueue[K],
        process: Callable[[K], Awaitable[None]],
        *,
        workers: int,
        on_error: Callable[[K, Exception], None],
    ) -> None:
        """`on_error` decides whether the key is retried."""
        self._queue = queue
        self._process = process
        self._count = workers
        self._on_error = on_error
        self._workers: list[asyncio.Task[None]] = []
        self._idle: set[asyncio.Task[None] | None] = set()  # workers without a key
        self._stopping = False

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._run_worker()) for _ in range(self._count)]

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """Close the queue and end the workers. A worker with a key has `grace_s` to finish it."""
        self._stopping = True
        self._queue.close()
        for worker in self._workers:
            if worker in self._idle or not grace_s:
                worker.cancel()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=grace_s or None)
            for worker in late:
                worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _run_worker(self) -> None:
        worker = asyncio.current_task()
        while not self._stopping:
            self._idle.add(worker)
            key = await self._queue.get()
            self._idle.discard(worker)
            try:
                await self._process(key)
            except Exception as exc:  # noqa: BLE001 - the caller decides what becomes of the key
                self._on_error(key, exc)
            finally:
                self._queue.mark_done(key)

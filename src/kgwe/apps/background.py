"""Background tasks of a process: those that end it when they fail, and loops that start again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

log = structlog.get_logger(__name__)

_PAUSE_S: Final = 1.0


@contextlib.asynccontextmanager
async def run_in_background(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run the tasks until the block is left. A task that fails cancels the block, and its error is raised instead."""
    owner = asyncio.current_task()
    tasks = [asyncio.create_task(each) for each in work]

    def broke(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and owner is not None:
            owner.cancel(f"background task failed: {task.exception()!r}")

    for task in tasks:
        task.add_done_callback(broke)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def wait_first(*waits: Awaitable[Any]) -> None:
    """Return when the first of `waits` ends, and cancel the others. Raise the exception of the first."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TaskSet:
    """Tasks that run until their owner stops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel the running tasks, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_running(name: str, work: Callable[[], Awaitable[None]], pause_s: float = _PAUSE_S) -> None:
    """Run work that should not end, and start it again after an error: one bad sample must not stop all others."""
    while True:
        try:
            await work()
        except Exception:  # the next start may work
            log.exception("loop_crashed", loop=name)
        await asyncio.sleep(pause_s)

"""What a process does beside its main work: as long as that lasts, and if one of it breaks, so does the process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable


@contextlib.asynccontextmanager
async def running(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """All of it runs until the block is left. What breaks cancels the block, and is raised in its place."""
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

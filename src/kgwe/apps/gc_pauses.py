"""Keeps pauses of Python's garbage collector short in processes that serve requests.

A full collection visits all objects: tens of milliseconds in a process with a large cluster in memory. Objects that
survive one are therefore frozen, so the next visits only newer objects. Frozen objects are still freed by reference
counting; only cycles among them stay until the next complete collection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FULL: Final = 2
# Seconds between two complete collections.
_EVERYTHING_S: Final = 3600.0


@contextlib.asynccontextmanager
async def keep_pauses_short() -> AsyncIterator[None]:
    """Keep pauses short while the context is open; it opens with a long one."""
    gc.callbacks.append(_freeze_survivors)
    gc.collect()
    task = asyncio.create_task(_now_and_then())
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(_freeze_survivors)
        gc.unfreeze()


def _freeze_survivors(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()


def collect_everything() -> None:
    """Collect all objects, including frozen ones."""
    gc.unfreeze()
    gc.collect()


async def _now_and_then() -> None:
    while True:
        await asyncio.sleep(_EVERYTHING_S)
        collect_everything()

"""Keeps Python's collector of cyclic garbage from stopping a process that answers others.

A full collection looks at every object there is: tens of milliseconds in a process that knows a large cluster. What has
survived one is therefore set aside and not looked at again, so that the next costs no more than what was made since.
It is still freed when nothing refers to it; only cycles among such objects stay, until the next look at everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FULL: Final = 2
# Between two looks at everything.
_EVERYTHING_S: Final = 3600.0


@contextlib.asynccontextmanager
async def short() -> AsyncIterator[None]:
    """Keep pauses short while the context is open; it opens with a long one."""
    gc.callbacks.append(_collected)
    gc.collect()
    task = asyncio.create_task(_now_and_then())
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(_collected)
        gc.unfreeze()


def _collected(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()


def look_at_everything() -> None:
    """Collect what was garbage when it was set aside, or has become so since."""
    gc.unfreeze()
    gc.collect()


async def _now_and_then() -> None:
    while True:
        await asyncio.sleep(_EVERYTHING_S)
        look_at_everything()

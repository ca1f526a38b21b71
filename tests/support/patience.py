"""How long a test waits for something that will happen. Waiting costs nothing when it does; a busy machine is slow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 120.0


async def until(true: Callable[[], object]) -> None:
    """Return when `true()` is. For what sets no event."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - that is what it is for
            await asyncio.sleep(0.01)

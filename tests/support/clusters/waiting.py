"""Waiting for what no watch reports."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def eventually(ask: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """The first true answer, or the last one when the time is up."""
    end = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer or time.monotonic() > end:
            return answer
        await asyncio.sleep(0.1)

"""The scheduler runs on uvloop, the rest on asyncio: servers are tried on both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable


def pytest_asyncio_loop_factories(item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    del item
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

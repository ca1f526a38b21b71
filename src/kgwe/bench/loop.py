"""The event loop of whoever measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where it is installed: the submitter shares the machine with what it measures."""
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return None
    return uvloop.new_event_loop

"""The event loop of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop if it is installed: the submitter shares the machine with the measured process."""
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return None
    return uvloop.new_event_loop

"""The parts of the agent, each a task that may fail without taking the others down.

A part that fails is started again after a while, ever longer while it keeps failing; what is wrong with it can be asked
for. A part that returns has done what it had to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
# A part that ran so long has worked: what was wrong with it before no longer counts.
_WELL_AFTER_S: Final = 30.0
_CANCELLATIONS: Final = 8
_CANCEL_S: Final = 1.0


async def _cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until they are over: a cancellation that meets the end of a wait can get lost on the way."""
    pending = set(tasks)
    for _ in range(_CANCELLATIONS):
        if not pending:
            return
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_S)
    log.error("parts_do_not_end", parts=sorted(task.get_name() for task in pending))


class SupervisedTasks:
    def __init__(self, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._runs: dict[str, Callable[[], Awaitable[None]]] = {}
        #: part -> what is wrong with it
        self.problems: dict[str, str] = {}

    def add(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._runs[name] = run

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._runs)

    async def run(self) -> None:
        """Run all of them until cancelled."""
        tasks = [asyncio.create_task(self._supervise(name, run), name=name) for name, run in self._runs.items()]
        try:
            # Not gather: cancelled, it would wait for them by itself.
            if tasks:
                await asyncio.wait(tasks)
            await asyncio.Event().wait()
        finally:
            await _cancel_all(tasks)

    async def _supervise(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            well = loop.call_later(_WELL_AFTER_S, self.problems.pop, name, None)
            try:
                await run()
            except Exception as exc:  # whatever it is, the other parts go on
                failures = 0 if loop.time() - began > _WELL_AFTER_S else failures + 1
                self.problems[name] = f"{type(exc).__name__}: {exc}"
                log.exception("part_failed", part=name, failures=failures)
            else:
                self.problems.pop(name, None)
                return
            finally:
                well.cancel()
            pause = backoff.delay_s(self._first_pause_s, max(failures - 1, 0), 0.5)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE_S))

"""Supervised tasks: a failing task does not stop the others.

A failed task is restarted with back-off, and `problems` has the reason. A task that returns is done.
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
# Seconds after which a running task counts as healthy, and its failures are forgotten.
_WELL_AFTER_S: Final = 30.0
_CANCELLATIONS: Final = 8
_CANCEL_S: Final = 1.0


async def _cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until all are done: a cancellation that coincides with the end of a wait can be lost."""
    pending = set(tasks)
    for _ in range(_CANCELLATIONS):
        if not pending:
            return
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_S)
    log.error("task_shutdown_timeout", tasks=sorted(task.get_name() for task in pending))


class SupervisedTasks:
    def __init__(self, problems: dict[str, str] | None = None, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._runs: dict[str, Callable[[], Awaitable[None]]] = {}
        #: task -> why it failed
        self.problems: dict[str, str] = {} if problems is None else problems

    def add(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._runs[name] = run

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._runs)

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        tasks = [asyncio.create_task(self._supervise(name, run), name=name) for name, run in self._runs.items()]
        try:
            # Not gather: when cancelled, it would wait for the tasks itself.
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
            except Exception as exc:  # a failing task must not stop the others
                failures = 0 if loop.time() - began > _WELL_AFTER_S else failures + 1
                self.problems[name] = f"{type(exc).__name__}: {exc}"
                log.exception("task_failed", part=name, failures=failures)
            else:
                self.problems.pop(name, None)
                return
            finally:
                well.cancel()
            pause = backoff.delay_s(self._first_pause_s, max(failures - 1, 0), 0.5)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE_S))

"""Runs planning passes: soon after something changed, small ones on the event loop, large ones in a thread.

Extender calls are answered while a pass runs in the thread. Changes of the queue during a pass wait for its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.planning.cycle import PlanningCycle, Result
    from kgwe.apps.scheduler.planning_errors import PlanningErrors

# Bursts of events (a Job that ends, its pod, its node) become one pass.
_GATHER_S: Final = 0.02
# A postponed pass checks this often whether it still has to wait.
_POSTPONE_S: Final = 0.05
# While a pass runs in a thread, the event loop must get its turn often enough to answer in time.
_SWITCH_S: Final = 0.0005


class PassClient(Protocol):
    """What the planner does for its passes."""

    def needs_pass(self) -> bool:
        """Whether anything waits."""

    def postpone_s(self) -> float:
        """Seconds to wait for more that should be planned together; 0: run the pass."""

    def prepare_pass(self) -> None:
        """Bring the cycle up to date with the cluster."""

    def apply_result(self, result: Result, now_s: float, took_s: float) -> None: ...

    def requeue_all(self) -> None:
        """A pass failed in the middle: queue everything that waits again."""


class PassRunner:
    """Owns the cycle, its thread and the times of the passes."""

    def __init__(self, cycle: PlanningCycle, client: PassClient, faults: PlanningErrors) -> None:
        self._cycle = cycle
        self._client = client
        self._faults = faults
        self._deferred: list[Callable[[PlanningCycle], None]] = []  # changes that wait for the end of the pass
        self._soon: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._running: asyncio.Task[None] | None = None
        # A pass was asked for while one ran: what came free meanwhile is news to the next one.
        self._is_due = False

    def change_queue(self, change: Callable[[PlanningCycle], None]) -> None:
        """Change the queue: now, or at the end of the pass that runs."""
        if self._running is None:
            change(self._cycle)
        else:
            self._deferred.append(change)

    def run_soon(self) -> None:
        if self._soon is None and self._client.needs_pass() and not self._faults.is_pausing:
            self._soon = asyncio.get_running_loop().call_later(_GATHER_S, self._run_pass)

    def wake_for_next(self) -> None:
        """Run the next pass when the first delayed workload is due."""
        if self._running is None:
            self._wake_at(self._cycle.queue.next_due_s())

    def close(self) -> None:
        for timer in (self._soon, self._timer):
            if timer is not None:
                timer.cancel()
        if self._running is not None:
            self._running.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _run_pass(self) -> None:
        self._soon = None
        if self._running is not None:
            self._is_due = True  # its end starts the next one
            return
        if (wait_s := self._client.postpone_s()) > 0:
            self._soon = asyncio.get_running_loop().call_later(min(wait_s, _POSTPONE_S), self._run_pass)
            return
        self._is_due = False
        now_s = time.time()
        started = time.perf_counter()
        try:
            self._client.prepare_pass()
            if self._cycle.is_light:
                self._finish_pass(self._cycle.run(now_s), now_s, time.perf_counter() - started)
            else:
                self._running = asyncio.create_task(self._run_in_thread(now_s))
        except Exception as exc:  # noqa: BLE001 - reported; everything that waits is planned again
            self._fail_pass(exc)

    async def _run_in_thread(self, now_s: float) -> None:
        """One pass in the thread; then the changes that were deferred, and another pass if there were any."""
        if self._thread is None:
            sys.setswitchinterval(_SWITCH_S)
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "planning")
        started = time.perf_counter()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, self._cycle.run, now_s)
            is_changed = self._apply_deferred()
            self._finish_pass(result, now_s, time.perf_counter() - started)
        except Exception as exc:  # noqa: BLE001 - reported; everything that waits is planned again
            self._fail_pass(exc)
            self._apply_deferred()
            return
        if is_changed or self._is_due:
            self.run_soon()

    def _apply_deferred(self) -> bool:
        """The pass is over: change the queue. Returns whether anything was deferred."""
        self._running = None
        deferred, self._deferred = self._deferred, []
        for change in deferred:
            try:
                change(self._cycle)
            except Exception as exc:  # noqa: BLE001 - the other changes are applied
                self._faults.record("queue", "", exc)
        return bool(deferred)

    def _finish_pass(self, result: Result, now_s: float, took_s: float) -> None:
        for fault in result.faults:
            self._faults.record(fault.stage, fault.owner, fault.error)
        self._client.apply_result(result, now_s, took_s)
        self._wake_at(self._cycle.queue.next_due_s())
        self._faults.pass_succeeded()

    def _fail_pass(self, error: Exception) -> None:
        """The pass itself failed: queue everything that waits again, for another pass."""
        pause_s = self._faults.pass_failed(error)
        try:
            self._client.requeue_all()
        except Exception as exc:  # noqa: BLE001 - the next pass fails too then, and tries this again
            self._faults.record("pass", "", exc)
        self._wake_at(time.time() + pause_s)

    def _wake_at(self, when_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when_s is not None:
            delay_s = max(when_s - time.time(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s + _GATHER_S, self.run_soon)

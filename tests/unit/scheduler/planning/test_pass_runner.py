"""Passes: one at a time, and none is lost that was asked for while another ran."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.cycle import Result
from kgwe.apps.scheduler.planning.pass_runner import PassRunner
from kgwe.apps.scheduler.planning_errors import PlanningErrors


class Cycle:
    """A cycle whose passes run in the thread until they are let go."""

    is_light = False

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.runs = 0
        self.queue = self

    def next_due_s(self) -> None:
        return None

    def run(self, _now_s: float) -> Result:
        self.runs += 1
        self.began.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        return Result([], [], {}, [])


class Client:
    def needs_pass(self) -> bool:
        return True

    def postpone_s(self) -> float:
        return 0.0

    def prepare_pass(self) -> None: ...

    def requeue_all(self) -> None: ...

    def apply_result(self, *_: Any) -> None: ...


async def test_a_pass_that_is_asked_for_during_another_one_follows_it():
    """Capacity that came free during a pass was not seen by it, and nothing else may ever change again."""
    cycle: Any = Cycle()
    client: Any = Client()
    runner = PassRunner(cycle, client, PlanningErrors(Metrics()))
    try:
        runner.run_soon()
        assert await asyncio.to_thread(cycle.began.acquire, timeout=PATIENCE_S)
        runner.run_soon()
        await asyncio.sleep(0.1)  # the request falls into the pass
        cycle.go_on.release()
        assert await asyncio.to_thread(cycle.began.acquire, timeout=PATIENCE_S)
        cycle.go_on.release()
        assert cycle.runs == 2
    finally:
        cycle.go_on.release(10)
        runner.close()

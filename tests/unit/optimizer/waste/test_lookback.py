"""Judgements on request: one at a time, few that wait, and long times in coarse steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kgwe import errors
from kgwe.apps.optimizer.waste.detector import Assessment
from kgwe.apps.optimizer.waste.lookback import LookbackJudge, plan_step
from kgwe.rpc.server import Exhausted

WEEK_S = 7 * 86400.0


class Bed:
    def __init__(self) -> None:
        self.loaded: list[tuple[float, float, float]] = []
        self.running = self.most = 0
        self.go = asyncio.Event()
        self.judge = LookbackJudge(self._load, self._judge, now=lambda: 1_000_030.0)

    async def _load(self, end_s: float, length_s: float, step_s: float) -> Any:
        self.loaded.append((end_s, length_s, step_s))
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()

    async def _judge(self, window: Any, end_s: float, length_s: float) -> Assessment:
        del window, length_s
        self.running -= 1
        return Assessment(at_s=end_s)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_of_many_requests_one_is_judged_few_wait_and_the_others_are_refused():
    bed = Bed()
    tasks = [asyncio.create_task(bed.judge.assess(WEEK_S)) for _ in range(150)]
    await settle()
    assert len(bed.loaded) == 1
    bed.go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [Assessment] * 4 + [Exhausted] * 146
    assert bed.most == 1
    assert isinstance(await bed.judge.assess(WEEK_S), Assessment)


async def test_a_client_that_gives_up_makes_no_room_before_its_request_has_ended():
    bed = Bed()
    for _ in range(4):
        task = asyncio.create_task(bed.judge.assess(WEEK_S))
        await settle()
        task.cancel()
    with pytest.raises(Exhausted):
        await bed.judge.assess(WEEK_S)
    await bed.judge.close()
    await settle()
    bed.go.set()
    assert isinstance(await bed.judge.assess(WEEK_S), Assessment)


async def test_an_error_ends_one_request_only():
    bed = Bed()

    async def fail(*_: float) -> Any:
        raise errors.Transient("the store is locked")

    judge = LookbackJudge(fail, bed._judge, now=lambda: 0.0)
    for _ in range(10):
        with pytest.raises(errors.Transient, match="locked"):
            await judge.assess(60.0)


async def test_a_window_ends_with_a_minute_and_has_whole_steps():
    bed = Bed()
    bed.go.set()
    await bed.judge.assess(90.0)
    await bed.judge.assess(WEEK_S)
    assert bed.loaded == [(1_000_020.0, 120.0, 60.0), (1_000_020.0, WEEK_S, 840.0)]


def test_long_times_have_coarser_steps():
    assert [plan_step(hours * 3600.0) / 60 for hours in (0.1, 12, 13, 24, 168)] == [1, 1, 2, 2, 14]

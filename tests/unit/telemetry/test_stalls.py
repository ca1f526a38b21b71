"""What holds the loop up is named."""

from __future__ import annotations

import asyncio
import time

from tests.support.patience import PATIENCE_S

from kgwe.telemetry import stalls


def dawdle() -> None:
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass


async def test_who_keeps_the_loop_from_its_work_is_named():
    told: list[tuple[float, str]] = []
    with stalls.watch_stalls(0.05, lambda took_s, where: told.append((took_s, where))):
        await asyncio.sleep(0.1)
        dawdle()
        async with asyncio.timeout(PATIENCE_S):
            while not any("dawdle (test_stalls.py:" in where for _, where in told):  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.01)
    assert max(took_s for took_s, where in told if "dawdle" in where) > 0.1


async def test_without_a_limit_nothing_is_watched():
    told: list[tuple[float, str]] = []
    with stalls.watch_stalls(0.0, lambda took_s, where: told.append((took_s, where))):
        dawdle()
        await asyncio.sleep(0)
    assert not told

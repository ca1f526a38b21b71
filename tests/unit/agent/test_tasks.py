"""One part that breaks does not take the others down."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE_S

from kgwe.apps.agent.tasks import SupervisedTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def running(parts: SupervisedTasks) -> AsyncIterator[None]:
    task = asyncio.create_task(parts.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_part_that_breaks_is_named_and_started_again():
    parts = SupervisedTasks(first_pause_s=0.001)
    tries: list[int] = []
    steady, recovered = asyncio.Event(), asyncio.Event()

    async def shaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError(f"broken {len(tries)}")
        recovered.set()
        await asyncio.Event().wait()

    async def calm() -> None:
        steady.set()
        await asyncio.Event().wait()

    parts.add("shaky", shaky)
    parts.add("calm", calm)
    async with running(parts), asyncio.timeout(PATIENCE_S):
        await steady.wait()
        await recovered.wait()
        assert parts.problems == {"shaky": "RuntimeError: broken 2"}


async def test_a_part_that_is_done_is_not_started_again():
    parts = SupervisedTasks(first_pause_s=0.001)
    runs: list[int] = []

    async def once() -> None:
        runs.append(1)

    parts.add("once", once)
    async with running(parts):
        for _ in range(10):
            await asyncio.sleep(0.001)
    assert runs == [1]
    assert not parts.problems


async def test_all_parts_end_with_the_agent():
    parts = SupervisedTasks()
    ended: list[str] = []

    def part(name: str) -> None:
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        parts.add(name, run)

    part("a")
    part("b")
    async with running(parts):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert sorted(ended) == ["a", "b"]


async def test_a_part_that_swallows_its_end_is_told_again():
    parts = SupervisedTasks()
    began = asyncio.Event()
    ended: list[int] = []

    async def deaf() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(1)
        await asyncio.Event().wait()

    parts.add("deaf", deaf)
    async with running(parts), asyncio.timeout(PATIENCE_S):
        await began.wait()
    assert ended == [1]

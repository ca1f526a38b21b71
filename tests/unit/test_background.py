"""What runs beside the main work of a process ends with it, and takes it along when it breaks."""

from __future__ import annotations

import asyncio

import pytest

from kgwe.apps import background


async def test_it_ends_with_the_block() -> None:
    ended = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async with background.run_in_background(work(name) for name in "ab"):
        await asyncio.sleep(0)
        assert ended == []
    assert sorted(ended) == ["a", "b"]


async def test_what_breaks_ends_the_block_and_is_raised() -> None:
    async def breaks() -> None:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        async with background.run_in_background([breaks()]):
            await asyncio.Event().wait()


async def test_what_comes_to_an_end_by_itself_is_no_trouble() -> None:
    async def short() -> None:
        await asyncio.sleep(0)

    async with background.run_in_background([short()]):
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_loop_that_crashes_is_started_again_until_it_is_cancelled():
    starts = 0
    is_running = asyncio.Event()

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise ZeroDivisionError
        is_running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(background.keep_running("test", work, pause_s=0.0))
    await is_running.wait()
    assert starts == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

"""A thread with deadlines."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.hardware.nvml.worker import Worker


async def test_work_is_done_in_order_on_one_thread() -> None:
    worker = Worker("test")
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    jobs = [worker.run("job", functools.partial(note, number), PATIENCE_S) for number in range(20)]
    await asyncio.gather(*jobs)
    assert [i for i, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1
    worker.close()


async def test_what_it_raises_comes_to_the_caller_and_the_thread_goes_on() -> None:
    worker = Worker("test")

    def broken() -> None:
        raise errors.Conflict("no")

    with pytest.raises(errors.Conflict, match="no"):
        await worker.run("job", broken, PATIENCE_S)
    assert await worker.run("job", lambda: 7, PATIENCE_S) == 7
    worker.close()


async def test_work_that_was_given_up_before_it_began_is_not_done() -> None:
    worker, release, done = Worker("test"), threading.Event(), []
    first = asyncio.create_task(worker.run("the first", lambda: release.wait(PATIENCE_S), PATIENCE_S))
    await asyncio.sleep(0)
    with pytest.raises(errors.Transient, match=r"the second: .* within 0\.05 s"):
        await worker.run("the second", lambda: done.append(2), 0.05)
    assert not worker.is_hung, "the first still has time"
    release.set()
    assert await first
    await worker.run("the third", lambda: done.append(3), PATIENCE_S)
    assert done == [3]
    worker.close()


async def test_a_hung_call_refuses_the_others_until_it_returns() -> None:
    worker, release = Worker("test"), threading.Event()
    with pytest.raises(errors.Transient):
        await worker.run("the first", lambda: release.wait(PATIENCE_S), 0.05)
    with pytest.raises(errors.Transient, match="hangs in the first"):
        await worker.run("the second", lambda: 2, PATIENCE_S)
    release.set()
    async with asyncio.timeout(PATIENCE_S):
        while worker.is_hung:  # noqa: ASYNC110 -- a thread lets go of it
            await asyncio.sleep(0.01)
    assert await worker.run("the third", lambda: 3, PATIENCE_S) == 3
    worker.close()

"""The queue of keys, one behaviour at a time; `tests/property/test_workqueue.py` attacks their combinations."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.workqueue import WorkQueue


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue(base_s=0.001, ceiling_s=0.008, jitter=0.1, rng=random.Random(7))


async def drained(queue: WorkQueue[str]) -> list[str]:
    """Everything ready now, in order, each marked done at once."""
    keys = []
    while len(queue):
        key = await queue.get()
        keys.append(key)
        queue.mark_done(key)
    return keys


async def test_keys_come_out_in_the_order_they_went_in_and_each_once(queue):
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)

    assert await drained(queue) == ["a", "b", "c"]


async def test_a_key_added_while_worked_on_comes_again_only_after_done(queue):
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    again = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not again.done()

    queue.mark_done(key)

    assert await again == "a"
    queue.mark_done("a")
    assert len(queue) == 0


async def test_done_said_twice_does_not_hand_the_key_to_two_workers(queue):
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.mark_done(key)
    queue.mark_done(key)

    assert await queue.get() == "a"
    other = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not other.done()
    other.cancel()


async def test_done_for_a_key_that_only_waits_changes_nothing(queue):
    queue.add("a")
    queue.mark_done("a")

    assert await drained(queue) == ["a"]


async def test_a_waiting_worker_is_woken_by_an_appointment(queue):
    queue.add_after("a", 0.001)
    assert len(queue) == 0

    async with asyncio.timeout(PATIENCE_S):
        assert await queue.get() == "a"


async def test_the_earlier_of_two_appointments_stands(queue):
    queue.add_after("a", 3600)
    queue.add_after("a", 0.001)
    queue.add_after("a", 3600)

    async with asyncio.timeout(PATIENCE_S):
        assert await queue.get() == "a"
    queue.mark_done("a")
    assert len(queue) == 0
    assert queue._timers == {}


async def test_adding_now_keeps_the_promise_of_a_later_appointment(queue):
    queue.add_after("a", 3600)
    queue.add("a")
    queue.add_after("a", 3600)

    assert await drained(queue) == ["a"]
    assert queue._timers == {}


async def test_an_appointment_made_while_working_stands(queue):
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 0.001)
    queue.mark_done(key)

    async with asyncio.timeout(PATIENCE_S):
        assert await queue.get() == "a"


async def test_an_appointment_that_falls_due_during_work_is_kept_after_it(queue):
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 0.001)
    queue.add_after("later", 0.002)
    async with asyncio.timeout(PATIENCE_S):
        assert await queue.get() == "later"
    queue.mark_done(key)

    assert await queue.get() == "a"


async def test_a_delay_of_nothing_is_now(queue):
    queue.add_after("a", 0)
    queue.add_after("b", -1)

    assert await drained(queue) == ["a", "b"]


async def test_retries_double_up_to_a_ceiling_that_jitter_does_not_pass(queue):
    delays = [queue.retry("a") for _ in range(40)]

    for failures, delay_s in enumerate(delays[:3]):
        assert 0.001 * 2**failures <= delay_s <= 0.0011 * 2**failures
    assert max(delays) == 0.008
    assert queue.failures("a") == 40


async def test_success_starts_the_delays_anew(queue):
    for _ in range(5):
        queue.retry("a")
    queue.forget("a")

    assert queue.failures("a") == 0
    assert queue.retry("a") < 0.002


async def test_a_worker_cancelled_as_it_is_woken_hands_the_key_to_the_next(queue):
    first = asyncio.ensure_future(queue.get())
    second = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)

    queue.add("a")
    first.cancel()

    async with asyncio.timeout(PATIENCE_S):
        assert await second == "a"
    assert first.cancelled()


async def test_a_worker_cancelled_before_the_key_comes_is_passed_over(queue):
    first = asyncio.ensure_future(queue.get())
    second = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)

    first.cancel()
    queue.add("a")  # before the cancelled worker has run

    async with asyncio.timeout(PATIENCE_S):
        assert await second == "a"
    assert first.cancelled()


async def test_cancelled_waits_leave_nothing_behind(queue):
    for _ in range(100):
        waiting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert len(queue._getters) == 0


async def test_a_closed_queue_makes_no_more_appointments(queue):
    queue.add_after("a", 0.001)
    queue.close()
    queue.add_after("b", 0.001)
    queue.retry("c")

    assert queue._timers == {}

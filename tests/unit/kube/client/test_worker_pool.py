"""Workers over a queue: errors stay with their key, and a key that is processed may be finished."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.worker_pool import WorkerPool
from kgwe.kube.client.workqueue import WorkQueue


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue(base_s=0.001, ceiling_s=0.008)


async def test_every_key_is_processed_and_an_error_is_reported_with_its_key(queue):
    processed: asyncio.Queue[str] = asyncio.Queue()
    failed: list[tuple[str, str]] = []

    async def process(key: str) -> None:
        processed.put_nowait(key)
        if key == "bad":
            raise ValueError(key)

    pool = WorkerPool(queue, process, workers=2, on_error=lambda key, exc: failed.append((key, str(exc))))
    pool.start()
    for key in ("a", "bad", "b"):
        queue.add(key)
    async with asyncio.timeout(PATIENCE_S):
        assert {await processed.get() for _ in range(3)} == {"a", "bad", "b"}
    await pool.stop()
    assert failed == [("bad", "bad")]
    assert len(queue) == 0


@pytest.mark.parametrize(("grace_s", "finished"), [(PATIENCE_S, True), (0.0, False)])
async def test_a_worker_with_a_key_finishes_it_within_the_grace_period(queue, grace_s, finished):
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def process(_key: str) -> None:
        begun.set()
        await go_on.wait()
        done.set()

    pool = WorkerPool(queue, process, workers=3, on_error=lambda _key, _exc: None)
    pool.start()
    queue.add("a")
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        stopping = asyncio.create_task(pool.stop(grace_s=grace_s))
        await asyncio.sleep(0)
        go_on.set()
        await stopping
    assert done.is_set() == finished


async def test_a_worker_that_takes_too_long_is_cancelled(queue):
    begun = asyncio.Event()

    async def process(_key: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    pool = WorkerPool(queue, process, workers=1, on_error=lambda _key, _exc: None)
    pool.start()
    queue.add("a")
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        await pool.stop(grace_s=0.01)


async def test_a_pool_that_never_started_stops(queue):
    await WorkerPool(queue, asyncio.sleep, workers=1, on_error=lambda _key, _exc: None).stop()

"""Models: versions in the store, damaged ones are skipped, and training happens in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.builders.usage import NOON_S, fingerprint, run
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.training import ModelRegistry, train_apart
from kgwe.forecast.runtime.artifact import ModelHeader, RuntimeModel, digest_texts, dump_model
from kgwe.forecast.runtime.conformal import ConformalTable
from kgwe.forecast.runtime.replays import WORKLOADS
from kgwe.forecast.runtime.shortest import ShortestTable
from kgwe.forecast.runtime.training import Untrained
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


KIND = "runtime-model"


def model(trained_s: float, schema: str = WORKLOADS.digest) -> RuntimeModel:
    texts = ("low", "middle", "high")
    header = ModelHeader(
        feature_schema=schema,
        trained_at_s=trained_s,
        rows=500,
        first_s=0.0,
        last_s=1.0,
        shift=0.0,
        training_error=0.1,
        metrics={},
        table=ConformalTable(edges=(), lower=(0.0,), upper=(0.0,), coverage=0.8),
        shortest=ShortestTable(shares=(), price=0.01, coverage=0.8),
        lengths=tuple(len(each) for each in texts),
        checksum=digest_texts(texts),
    )
    return RuntimeModel(header, texts)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreThread]:
    made = StoreThread(lambda: HistoryStore.open(str(tmp_path / "optimizer.db")))
    yield made
    await made.close()


async def write(store: StoreThread, version: str, body: object) -> None:
    await store.call(lambda opened: opened.put_document(KIND, version, body, NOON_S))


async def test_there_is_no_model_at_first(store: StoreThread):
    assert await ModelRegistry(store).load_newest() is None


async def test_the_newest_model_is_used(store: StoreThread):
    registry = ModelRegistry(store)
    for trained_s in (NOON_S, NOON_S + 7200.0, NOON_S + 3600.0):
        await registry.save(model(trained_s), NOON_S)
    found = await registry.load_newest()
    assert found == (f"{NOON_S + 7200}", model(NOON_S + 7200.0))


@pytest.mark.parametrize(
    "body",
    [
        {"text": dump_model(model(NOON_S + 3600.0))[:-3]},
        {"text": dump_model(model(NOON_S + 3600.0, "of-other-features"))},
        {"text": "nonsense"},
        {"text": None},
        {},
        ["no", "mapping"],
        "text",
    ],
)
async def test_a_newer_model_that_is_damaged_or_does_not_fit_is_skipped(store: StoreThread, body: object):
    registry = ModelRegistry(store)
    await registry.save(model(NOON_S), NOON_S)
    await write(store, f"{NOON_S + 3600}", body)
    found = await registry.load_newest()
    assert found is not None
    assert found[0] == f"{NOON_S}"


async def test_after_a_rollback_the_model_before_is_used(store: StoreThread):
    registry = ModelRegistry(store)
    await registry.save(model(NOON_S), NOON_S)
    version = await registry.save(model(NOON_S + 60.0), NOON_S)
    await registry.roll_back(version)
    found = await registry.load_newest()
    assert found is not None
    assert found[0] == f"{NOON_S}"
    await registry.roll_back(version)  # a second time changes nothing


async def test_five_versions_are_kept(store: StoreThread):
    registry = ModelRegistry(store)
    for number in range(8):
        await registry.save(model(NOON_S + 60.0 * number), NOON_S)
    kept = await store.call(lambda opened: [each.name for each in opened.list_documents(KIND)])
    assert kept == [f"{NOON_S + 60 * number}" for number in range(3, 8)]


async def test_a_few_runs_are_not_enough_for_a_model():
    made = await train_apart([run(of=fingerprint().key)], {fingerprint().key: fingerprint()}, NOON_S + 100)
    assert isinstance(made, Untrained)
    assert "1 finished runs are known" in made.reason
    for child in multiprocessing.active_children():
        child.join(PATIENCE_S)


async def test_a_training_process_that_is_killed_is_a_transient_error():
    task = asyncio.create_task(train_apart([], {}, NOON_S))
    async with asyncio.timeout(PATIENCE_S):
        while not (children := multiprocessing.active_children()):  # noqa: ASYNC110 - no event says that it started
            await asyncio.sleep(0)
    for child in children:
        child.kill()
    with pytest.raises(errors.Transient, match="training process died"):
        await task


def test_a_training_process_does_not_outlive_the_optimizer():
    program = (
        "import time\n"
        "from kgwe.apps.optimizer.training import make_executor\n"
        "if __name__ == '__main__':\n"
        "    executor = make_executor()\n"
        "    executor.submit(time.sleep, 3600)\n"
        "    print(next(iter(executor._processes)), flush=True)\n"
        "    executor.submit(time.sleep, 3600).result()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as optimizer:
        assert optimizer.stdout is not None
        worker = os.pidfd_open(int(optimizer.stdout.readline()))
        optimizer.kill()
    ready, _, _ = select.select([worker], [], [], PATIENCE_S)
    os.close(worker)
    assert ready


def is_running(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_training_that_is_cancelled_leaves_no_process():
    task = asyncio.create_task(train_apart([], {}, NOON_S))
    async with asyncio.timeout(PATIENCE_S):
        while not (children := multiprocessing.active_children()):  # noqa: ASYNC110 - no event says that it started
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(PATIENCE_S):
        while any(is_running(child.pid) for child in children):  # noqa: ASYNC110 - another thread reaps it
            await asyncio.sleep(0.01)

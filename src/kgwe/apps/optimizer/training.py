"""Training of run-time models in a process of its own, and the versions of models in the store.

A model that is damaged, or was trained with other features, is skipped; the newest one that fits is used.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.forecast.runtime.artifact import dump_model, load_model
from kgwe.forecast.runtime.replays import WORKLOADS, make_training_set
from kgwe.forecast.runtime.training import Untrained, train_model
from kgwe.forecast.runtime.trees import BadModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.apps.optimizer.history.writer import StoreThread
    from kgwe.forecast.runtime.artifact import RuntimeModel
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import Run
    from kgwe.store.history import HistoryStore

log = structlog.get_logger(__name__)

_KIND: Final = "runtime-model"
# Versions that are kept, for a rollback.
_KEPT: Final = 5
_TIMEOUT_S: Final = 900.0


class ModelRegistry:
    """Versions of models in the store, newest first."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    async def save(self, model: RuntimeModel, now_s: float) -> str:
        """Store a model and return its version; old versions beyond the last five are deleted."""
        version = f"{model.header.trained_at_s:.0f}"

        def write(store: HistoryStore) -> None:
            store.put_document(_KIND, version, {"text": dump_model(model)}, now_s)
            for document in sorted(store.list_documents(_KIND), key=lambda each: each.name, reverse=True)[_KEPT:]:
                store.delete_document(_KIND, document.name)

        await self._store.call(write)
        return version

    async def load_newest(self) -> tuple[str, RuntimeModel] | None:
        """Return the newest model that fits this program; None if there is none."""
        documents = await self._store.call(lambda store: store.list_documents(_KIND))
        for document in sorted(documents, key=lambda each: each.name, reverse=True):
            try:
                return document.name, load_model(str(document.body["text"]), WORKLOADS)
            except (BadModel, KeyError, TypeError) as exc:
                log.warning("model_skipped", version=document.name, error=str(exc))
        return None

    async def roll_back(self, version: str) -> None:
        """Delete a version, so that the one before it is used."""
        await self._store.call(lambda store: store.delete_document(_KIND, version))


async def train_apart(
    runs: Sequence[Run], fingerprints: Mapping[str, Fingerprint], now_s: float
) -> RuntimeModel | Untrained:
    """Train a model in a process of its own, so that predictions are not delayed; raise Transient if it dies."""
    executor = make_executor()
    try:
        future = asyncio.get_running_loop().run_in_executor(executor, _train, list(runs), dict(fingerprints), now_s)
        async with asyncio.timeout(_TIMEOUT_S):
            text = await future
    except TimeoutError as exc:
        raise errors.Transient(f"training took more than {_TIMEOUT_S:.0f} s") from exc
    except concurrent.futures.process.BrokenProcessPool as exc:
        raise errors.Transient("the training process died; the last model stays in use") from exc
    finally:
        _kill_workers(executor)
    return text if isinstance(text, Untrained) else load_model(text, WORKLOADS)


def make_executor() -> concurrent.futures.ProcessPoolExecutor:
    """Return an executor with one process, which ends with this one."""
    # Spawned, not forked: gRPC and threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Run in the process: end it when the optimizer is killed. An executor's process would wait forever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _train(runs: list[Run], fingerprints: dict[str, Fingerprint], now_s: float) -> str | Untrained:
    """Run in the process: return the model as text, which crosses the border between processes."""
    made = train_model(make_training_set(runs, fingerprints, now_s=now_s), now_s=now_s)
    return made if isinstance(made, Untrained) else dump_model(made)


def _kill_workers(executor: concurrent.futures.ProcessPoolExecutor) -> None:
    """End the process, also in the middle of a training: a process that stops must not wait for it."""
    for process in list((executor._processes or {}).values()):  # noqa: SLF001 - there is no other way before Python 3.14
        process.kill()
    executor.shutdown(wait=False, cancel_futures=True)

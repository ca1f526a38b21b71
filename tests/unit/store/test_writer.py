"""The writing thread: order, retries, and stores that are locked or full for a while."""

from __future__ import annotations

import sqlite3
import threading
from operator import methodcaller
from typing import TYPE_CHECKING

import pytest
import structlog
from tests.support.builders.usage import NOON_S, run
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.store.history import HistoryStore
from kgwe.store.writer import HistoryWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    with HistoryStore.open(str(tmp_path / "history.db"), busy_timeout_s=0.001) as opened:
        yield opened


def test_writes_are_done_in_order(store: HistoryStore):
    writer = HistoryWriter(store)
    for number in range(20):
        writer.submit(methodcaller("put_document", "a", "b", number, NOON_S, number))
    assert writer.close(PATIENCE_S)
    document = store.load_document("a", "b")
    assert document is not None
    assert (document.version, document.body) == (20, 19)
    assert writer.counts == {"written": 20}


def test_a_store_that_is_locked_for_a_while_loses_nothing(store: HistoryStore, tmp_path: Path):
    other = sqlite3.connect(tmp_path / "history.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tried = threading.Event()

    def write(each: HistoryStore) -> None:
        try:
            each.put_runs([run()])
        except errors.Transient:
            tried.set()
            raise

    with structlog.testing.capture_logs() as logs:
        writer = HistoryWriter(store, backoff_s=0.001)
        writer.submit(write)
        writer.submit(lambda each: each.put_runs([run("second")]))
        assert tried.wait(PATIENCE_S)
        assert not writer.flush(0)
        other.close()
        assert writer.close(PATIENCE_S)
    assert len(store.load_runs(0)) == 2
    assert writer.problem() is None
    # One line however often it was tried.
    assert [entry["event"] for entry in logs] == ["history_not_written"]


def test_a_write_that_can_never_succeed_delays_no_other(store: HistoryStore):
    with structlog.testing.capture_logs() as logs:
        writer = HistoryWriter(store)
        writer.submit(lambda each: each.put_document("a", "b", object(), NOON_S))
        assert writer.flush(PATIENCE_S)
        assert "cannot be written as JSON" in (writer.problem() or "")
        writer.submit(lambda each: each.put_runs([run()]))
        assert writer.close(PATIENCE_S)
    assert writer.problem() is None
    assert writer.counts == {"failed": 1, "written": 1}
    assert [entry["event"] for entry in logs] == ["history_write_failed"]


def test_a_full_queue_drops_the_oldest_and_counts_it(store: HistoryStore):
    held, release = threading.Event(), threading.Event()

    def hold(_: HistoryStore) -> None:
        held.set()
        release.wait()

    writer = HistoryWriter(store, most_waiting=2)
    writer.submit(hold)
    assert held.wait(PATIENCE_S)
    for uid in ("a", "b", "c"):
        writer.submit(methodcaller("put_runs", [run(uid)]))
    release.set()
    assert writer.close(PATIENCE_S)
    assert writer.counts["dropped"] == 1
    assert [each.uid for each in store.load_runs(0)] == ["b", "c"]


def test_closing_while_the_store_is_away_ends(store: HistoryStore, tmp_path: Path):
    other = sqlite3.connect(tmp_path / "history.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = HistoryWriter(store, backoff_s=100)
    writer.submit(lambda each: each.put_runs([run()]))
    assert not writer.close(0.01)
    other.close()

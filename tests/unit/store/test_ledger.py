"""A ledger in SQLite keeps the contract that PostgreSQL keeps (tests/integration/store/test_postgresql_ledger.py)."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.support.contracts.ledger import (
    CONTRACT,
    a_ledger_of_the_first_version_is_migrated,
    dump,
    make_segments,
)

from kgwe import errors
from kgwe.costing import books
from kgwe.store.history import HistoryStore
from kgwe.store.ledger import names
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader
from kgwe.store.ledger.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.costing.segments import Segment


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_sqlite(clause, tmp_path: Path):
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        clause(ledger)


def test_migrations_make_the_declared_tables(tmp_path: Path):
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger, ledger.database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_ledger_of_the_first_version_is_migrated(tmp_path: Path):
    with Ledger.open(str(tmp_path / "donor.db")) as donor:
        a_ledger_of_the_first_version_is_migrated(lambda: str(tmp_path / "old.db"), donor)


def test_a_history_is_not_taken_for_a_ledger(tmp_path: Path):
    HistoryStore.open(str(tmp_path / "history.db")).close()
    with pytest.raises(errors.Permanent, match="belongs to another program"):
        Ledger.open(str(tmp_path / "history.db"))


def test_a_ledger_that_does_not_exist_names_the_process_that_makes_it(tmp_path: Path):
    with pytest.raises(errors.Transient, match="kgwe cost-engine"):
        Ledger.open(str(tmp_path / "ledger.db"), read_only=True)


def test_more_pods_than_are_remembered_keep_their_numbers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(names, "_MOST_PODS", 3)
    segments = make_segments(range(4))
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        for start in range(0, len(segments), 20):
            ledger.put(segments[max(start - 20, 0) : start + 20])
        window = min(each.start_s for each in segments), max(each.end_s for each in segments)
        lines = LedgerReader(ledger.database).read(*window, books.Dimension.POD).lines
    assert lines == books.attribute(segments, *window, books.Dimension.POD)


def test_a_batch_that_fails_stores_nothing(tmp_path: Path):
    segments = make_segments(range(2))
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        ledger.put(segments[:10])
        before = dump(ledger)
        with ledger.database.transaction() as connection:
            connection.execute(
                sa.text("CREATE TRIGGER stop BEFORE INSERT ON cost_state BEGIN SELECT RAISE(FAIL, 'full'); END")
            )
        with pytest.raises(errors.KgweError, match="full"):
            ledger.put(segments, {"settled_s": "1"})
        assert dump(ledger) == before
        with ledger.database.transaction() as connection:
            connection.execute(sa.text("DROP TRIGGER stop"))
        ledger.put(segments)
        assert len(dump(ledger)[0]) == len({each.key for each in segments})


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_leaves_whole_batches(tmp_path: Path, rounds: int):
    segments = make_segments(range(6))
    batches = [segments[start : start + 50] for start in range(0, len(segments), 50)]
    path = str(tmp_path / "ledger.db")
    luck = random.Random(5)
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            _write_forever(path, batches)
        # The moment is what is drawn, not something to wait for.
        threading.Event().wait(luck.random() * 0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with Ledger.open(path) as ledger:
            stored = int(ledger.load_state().get("batches", "0"))
            expected = {each.key: each for batch in batches[:stored] for each in batch}
            reader = LedgerReader(ledger.database)
            window = min(each.start_s for each in segments), max(each.end_s for each in segments)
            assert reader.sum_window(*window) == reader.scan(*window)
            lines = reader.read(*window, books.Dimension.POD).lines
            assert lines == books.attribute(expected.values(), *window, books.Dimension.POD)


def _write_forever(path: str, batches: list[list[Segment]]) -> None:
    """In a forked child: continue after the last stored batch, and run no cleanup of the parent."""
    try:
        ledger = Ledger.open(path)
        for number in range(int(ledger.load_state().get("batches", "0")), len(batches)):
            ledger.put(batches[number], {"batches": str(number + 1)})
    finally:
        os._exit(0)

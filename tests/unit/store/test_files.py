"""What can go wrong with a SQLite file: damage, other programs, a full disk, locks and newer schemas."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.support.builders.usage import NOON_S, device, run, same_windows, window

from kgwe import errors
from kgwe.store.address import parse_address
from kgwe.store.database import Database
from kgwe.store.history import HistoryStore
from kgwe.store.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def test_the_migrations_make_the_tables_of_the_schema(path: Path):
    database = Database.open(str(path))
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []
    database.close()


def test_tables_are_strict_and_the_connection_is_configured(path: Path):
    database = Database.open(str(path))
    with database.transaction() as connection:
        names = [row[1] for row in connection.exec_driver_sql("PRAGMA table_list") if row[1] in METADATA.tables]
        strict = [row[1] for row in connection.exec_driver_sql("PRAGMA table_list") if row[5] and row[1] in names]
        assert sorted(strict) == sorted(METADATA.tables)
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
    assert values == ["wal", 1, 1, 5000]
    database.close()


def test_history_survives_closing(path: Path):
    for _ in range(2):
        with HistoryStore.open(f"sqlite:///{path}") as store:
            store.put_runs([run()])
    with HistoryStore.open(str(path)) as store:
        assert store.load_runs(0) == [run()]


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\x00", b"\x00" * 8192, b"hello"])
def test_a_file_that_is_no_database_is_refused_and_not_changed(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(errors.Permanent, match=r"is damaged .* was not changed: move it away"):
        HistoryStore.open(str(path))
    assert path.read_bytes() == content


def test_a_truncated_file_is_refused_and_not_changed(path: Path):
    _fill(path)
    content = path.read_bytes()[:-4096]
    path.write_bytes(content)
    with pytest.raises(errors.Permanent, match="is damaged"):
        HistoryStore.open(str(path))
    assert path.read_bytes() == content


def test_damage_inside_a_file_is_reported_when_it_is_read(path: Path):
    _fill(path)
    content = bytearray(path.read_bytes())
    content[4096 * 4 :] = b"\x5a" * (len(content) - 4096 * 4)
    path.write_bytes(content)
    with pytest.raises(errors.Permanent, match="is damaged"):
        _read_everything(path)


def test_the_file_is_free_after_a_refusal(path: Path):
    path.write_bytes(b"garbage" * 100)
    with pytest.raises(errors.Permanent):
        HistoryStore.open(str(path))
    path.rename(path.with_suffix(".damaged"))
    HistoryStore.open(str(path)).close()


def test_a_file_that_is_moved_away_while_it_is_open_is_followed_by_a_new_one(path: Path):
    with HistoryStore.open(str(path)) as store:
        store.put_minutes(window([device("a", 1), device("b", 2)]))
        old = path.with_suffix(".old")
        path.rename(old)
        with pytest.raises(errors.Permanent, match="-wal has its last writes"):
            store.put_minutes(window([device("b", 2)]))
        path.with_name("history.db-wal").rename(path.with_name("history.old-wal"))
        store.put_minutes(window([device("b", 2)]))
        assert store.load_minutes(NOON_S, NOON_S + 180, 60).devices == (device("b", 2),)
    with HistoryStore.open(str(old)) as store:
        assert len(store.load_minutes(NOON_S, NOON_S + 180, 60).devices) == 2


def test_an_empty_file_is_a_new_store(path: Path):
    path.touch()
    with HistoryStore.open(str(path)) as store:
        assert store.load_runs(0) == []


def test_the_database_of_another_program_is_left_alone(path: Path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    with pytest.raises(errors.Permanent, match=r"another program \(tables customers\)"):
        HistoryStore.open(str(path))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(path: Path, read_only: bool):  # noqa: FBT001 -- a parameter
    HistoryStore.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 -- a constant
    connection.close()
    with pytest.raises(errors.Permanent, match=r"a newer version of KGWE wrote .*schema 9999"):
        HistoryStore.open(str(path), read_only=read_only)


def test_a_second_writer_is_refused_with_the_name_of_the_first(path: Path):
    with HistoryStore.open(str(path)):
        with pytest.raises(errors.Transient, match=rf"another process writes .*process {os.getpid()} on"):
            HistoryStore.open(str(path))
        with HistoryStore.open(str(path), read_only=True) as reader:
            assert reader.load_runs(0) == []
    HistoryStore.open(str(path)).close()


def test_a_reader_does_not_write_and_does_not_create(path: Path):
    with pytest.raises(errors.Transient, match="does not exist yet"):
        HistoryStore.open(str(path), read_only=True)
    HistoryStore.open(str(path)).close()
    with HistoryStore.open(str(path), read_only=True) as reader, pytest.raises(errors.Permanent, match="be written"):
        reader.put_runs([run()])


def test_a_locked_database_is_transient_and_the_batch_can_be_sent_again(path: Path):
    with HistoryStore.open(str(path), busy_timeout_s=0.01) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.Transient, match="locked by another program"):
            store.put_runs([run()])
        other.close()
        store.put_runs([run()])
        assert store.load_runs(0) == [run()]


def test_a_full_disk_is_transient_and_loses_nothing(path: Path):
    with HistoryStore.open(str(path)) as store:
        store.put_runs([run()])
        large = window([device(str(number), number) for number in range(500)], steps=20)
        _limit_pages(store, 40)
        for _ in range(2):
            with pytest.raises(errors.Transient, match="no space left"):
                store.put_minutes(large)
        assert store.load_runs(0) == [run()]
        assert store.load_minutes(NOON_S, NOON_S + 1200, 60).devices == ()
        _limit_pages(store, 100_000)
        store.put_minutes(large)
        assert len(store.load_minutes(NOON_S, NOON_S + 1200, 60).devices) == 500


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(errors.Permanent, match="check that the directory exists"):
        HistoryStore.open(str(tmp_path / "missing" / "history.db"))


def test_a_closed_store_says_so(path: Path):
    store = HistoryStore.open(str(path))
    store.close()
    store.close()
    with pytest.raises(errors.Permanent, match="is closed"):
        store.load_runs(0)


def test_a_block_that_fails_stores_nothing(path: Path):
    database = Database.open(str(path))
    store = HistoryStore(database)
    with pytest.raises(errors.Permanent, match="failed"):
        _write_and_fail(database)
    assert store.load_document("kind", "name") is None
    store.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("sqlite://", "in memory"),
        ("mysql://host/name", "cannot be in mysql"),
        ("postgresql://ann:geheim@host:port/name", "not a URL"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(text: str, message: str):
    with pytest.raises(errors.Permanent, match=message) as caught:
        parse_address(text)
    assert "geheim" not in str(caught.value)


def test_an_address_is_named_without_its_password():
    address = parse_address("postgresql://ann:geheim@db.example.com/history?sslmode=require&password=geheim")
    assert str(address) == "postgresql+psycopg://ann:***@db.example.com/history"


def test_a_directory_is_no_store(tmp_path: Path):
    with pytest.raises(errors.Permanent, match="is a directory"):
        parse_address(str(tmp_path))


def _fill(path: Path) -> None:
    with HistoryStore.open(str(path)) as store:
        store.put_minutes(window([device(str(number), number) for number in range(50)], steps=20))
        store.put_runs([run(str(number)) for number in range(100)])


def _read_everything(path: Path) -> None:
    with HistoryStore.open(str(path)) as store:
        store.load_minutes(NOON_S, NOON_S + 3600, 60)
        store.load_runs(0)


def _write_and_fail(database: Database) -> None:
    with database.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO documents VALUES ('kind', 'name', 1, 1.0, '1')")
        connection.exec_driver_sql("INSERT INTO documents VALUES ('kind', 'other', 'not a number', 1.0, '1')")


def _limit_pages(store: HistoryStore, pages: int) -> None:
    with store._database.transaction() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def test_both_ways_to_name_a_file_are_the_same_store(path: Path):
    with HistoryStore.open(f"sqlite:///{path}") as store:
        store.put_minutes(window())
    with HistoryStore.open(str(path), read_only=True) as store:
        assert same_windows(store.load_minutes(NOON_S, NOON_S + 180, 60), window())

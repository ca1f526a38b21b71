"""A history in PostgreSQL keeps the contract of SQLite, and survives its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.support.builders.usage import NOON_S, run, same_windows, window
from tests.support.contracts.history import CONTRACT

from kgwe import errors
from kgwe.store.database import Database
from kgwe.store.history import HistoryStore
from kgwe.store.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_postgresql(clause: Callable[[HistoryStore], None], url: str):
    with HistoryStore.open(url) as store:
        clause(store)


def test_the_migrations_make_the_tables_of_the_schema(url: str):
    database = Database.open(url)
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []
    database.close()


def test_a_second_writer_is_refused_with_the_name_of_the_first(url: str):
    with HistoryStore.open(url):
        with pytest.raises(errors.Transient, match=r"another process writes .*kgwe process \d+"):
            HistoryStore.open(url)
        with HistoryStore.open(url, read_only=True) as reader:
            assert reader.load_runs(0) == []
    HistoryStore.open(url).close()


def test_a_reader_does_not_write(url: str):
    HistoryStore.open(url).close()
    with HistoryStore.open(url, read_only=True) as reader, pytest.raises(errors.KgweError, match="read-only"):
        reader.put_runs([run()])


def test_a_lost_connection_is_transient_and_the_next_call_connects_again(url: str):
    with HistoryStore.open(url) as store:
        store.put_minutes(window())
        _end_connections(url)
        with pytest.raises(errors.Transient):
            store.put_runs([run()])
        store.put_runs([run()])
        store.put_minutes(window())
        assert store.load_runs(0) == [run()]


def test_after_a_lost_connection_another_process_may_be_the_writer(url: str):
    with HistoryStore.open(url) as store:
        _end_connections(url)
        with HistoryStore.open(url) as other:
            for _ in range(2):
                with pytest.raises(errors.Transient):
                    store.put_runs([run()])
            other.put_runs([run("other")])
        store.put_runs([run()])
        assert {each.uid for each in store.load_runs(0)} == {"run-1", "other"}


def test_nothing_is_lost_while_the_server_is_away(url: str, postgresql: Any):
    with HistoryStore.open(url) as store:
        store.put_minutes(window())
        postgresql.stop()
        for _ in range(2):
            with pytest.raises(errors.Transient):
                store.put_runs([run()])
        postgresql.ensure_postgres_running()
        store.put_runs([run()])
        assert store.load_runs(0) == [run()]
        assert same_windows(store.load_minutes(NOON_S, NOON_S + 180, 60), window())


def test_a_wrong_database_is_named_without_the_password():
    with pytest.raises(errors.Transient, match="no connection to PostgreSQL") as caught:
        HistoryStore.open("postgresql://ann:geheim@127.0.0.1:1/history")
    assert "geheim" not in str(caught.value)


def test_tables_of_another_program_are_left_alone(url: str):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE runs (a int)")
    with pytest.raises(errors.Permanent, match="another program"):
        HistoryStore.open(url)


def _end_connections(url: str) -> None:
    """End the connections of KGWE from the side of the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'kgwe process %'"
        )

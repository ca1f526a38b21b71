"""A ledger in PostgreSQL keeps the contract that SQLite keeps (tests/unit/store/test_ledger.py)."""

from __future__ import annotations

import psycopg
import pytest
from tests.support.contracts.ledger import CONTRACT, a_ledger_of_the_first_version_is_migrated

from kgwe.store.history import HistoryStore
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.schema import METADATA, VERSION_TABLE


def drop_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in (*METADATA.tables, VERSION_TABLE):
            connection.execute(psycopg.sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(table)))


@pytest.fixture
def ledger(url: str):
    drop_tables(url)
    with Ledger.open(url) as opened:
        yield opened


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_postgresql(clause, ledger):
    clause(ledger)


def test_a_ledger_of_the_first_version_is_migrated(ledger, url: str):
    def make_url() -> str:
        ledger.close()
        drop_tables(url)
        return url

    a_ledger_of_the_first_version_is_migrated(make_url, ledger)


def test_a_history_may_live_in_the_same_database(ledger, url):
    HistoryStore.open(url).close()
    ledger.put([], {"method": "market"})
    assert ledger.load_state() == {"method": "market"}

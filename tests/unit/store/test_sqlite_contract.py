"""A history in SQLite keeps the contract that PostgreSQL keeps (tests/integration/store/test_postgresql.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.contracts.history import CONTRACT

from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_sqlite(clause, tmp_path: Path):
    with HistoryStore.open(f"sqlite:///{tmp_path / 'history.db'}") as store:
        clause(store)

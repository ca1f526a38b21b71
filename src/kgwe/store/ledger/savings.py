"""Savings that were computed and recorded, with the method of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from kgwe.store.ledger.schema import SAVINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.store.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class SavingRecord:
    """What was saved in a namespace in the time that ended at a second."""

    at_s: int
    namespace: str
    kind: str
    micros: int
    method: str


def load_savings(ledger: Ledger, start_s: int, end_s: int) -> list[SavingRecord]:
    """Return the records of a window."""
    query = sa.select(SAVINGS).where(SAVINGS.c.at_s > start_s, SAVINGS.c.at_s <= end_s)
    with ledger.database.transaction() as connection:
        return [SavingRecord(*row) for row in connection.execute(query)]


def record_savings(ledger: Ledger, records: Sequence[SavingRecord]) -> None:
    """Store records; one with the same time, namespace and kind is replaced."""
    if not records:
        return
    insert = ledger.database.insert(SAVINGS)
    changed = {"micros": insert.excluded.micros, "method": insert.excluded.method}
    upsert = insert.on_conflict_do_update(index_elements=["at_s", "namespace", "kind"], set_=changed)
    with ledger.database.transaction() as connection:
        connection.execute(upsert, [asdict(each) for each in records])

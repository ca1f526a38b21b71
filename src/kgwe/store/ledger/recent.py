"""The last segments of a ledger, as they were written: a process that starts corrects them by what it sees now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from kgwe.costing.money import DAY_S
from kgwe.costing.segments import Bucket, Part, Piece, Segment
from kgwe.store.ledger.names import NOTHING, find_pods, hash_pod
from kgwe.store.ledger.reader import load_accounts
from kgwe.store.ledger.schema import PIECES, PRICES, SEGMENTS, WORKLOADS
from kgwe.store.rows import clean_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlalchemy.engine import Connection

    from kgwe.costing.segments import Holder
    from kgwe.store.database import Database


def load_recent(
    database: Database, holders: Iterable[Holder], spare: Collection[Bucket], since_s: int
) -> list[Segment]:
    """Return the segments of these holders, and those in the spare buckets, that end after a time.

    A holder is found by its UID and its workload, also under other names than its pod has now.
    """
    with database.transaction() as connection:
        numbers = _number_holders(connection, holders)
        pieces = {row[0]: Piece(row[1], Part(row[2]), *row[3:]) for row in connection.execute(sa.select(PIECES))}
        prices = {NOTHING: ""} | {row[0]: row[1] for row in connection.execute(sa.select(PRICES))}
        # No segment is longer than a day.
        query = sa.select(SEGMENTS).where(
            SEGMENTS.c.start_s > since_s - DAY_S, SEGMENTS.c.start_s + SEGMENTS.c.seconds > since_s
        )
        found = []
        for row in connection.execute(query):
            bucket, holder = Bucket(row.bucket), numbers.get(row.pod)
            if holder is None and (row.pod != NOTHING or bucket not in spare):
                continue
            end_s, price = row.start_s + row.seconds, prices[row.price]
            segment = Segment(row.start_s, end_s, bucket, pieces[row.piece], row.rate, row.ppm, holder, price)
            found.append(replace(segment, measured_s=row.measured_s, busy_ms=row.busy_ms))
    return found


def _number_holders(connection: Connection, holders: Iterable[Holder]) -> dict[int, Holder]:
    """Return the holders by the numbers of their pods, with the accounts under which these were stored."""
    accounts = load_accounts(connection)
    workloads: dict[str, list[tuple[int, int]]] = {}
    for number, account, name in connection.execute(sa.select(WORKLOADS)):
        workloads.setdefault(name, []).append((number, account))
    by_key = {
        hash_pod(each.uid, number): replace(each, account=accounts[account])
        for each in holders
        for number, account in workloads.get(clean_text(each.workload), ())
    }
    found = {number: by_key[key] for key, number in find_pods(connection, list(by_key)).items()}
    # A pod whose names changed has several numbers; the last is the one that went on.
    last = {found[number].uid: number for number in sorted(found)}
    return {number: found[number] for number in last.values()}

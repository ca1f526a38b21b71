"""Reading a ledger: the books of a window and their attribution.

Whole days come from the sums by day, whole hours from the sums by hour, and the rest from segments. All three give the
same ticks, so a report is as exact as a scan of all segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from kgwe.costing.books import Books, Dimension, Sums
from kgwe.costing.charges import Attribution, Filter, add_memo
from kgwe.costing.money import DAY_S, HOUR_S
from kgwe.costing.segments import HELD, Account, Bucket
from kgwe.store.ledger import rollups
from kgwe.store.ledger.schema import ACCOUNTS, DAYS, HOURS, PIECES, PODS, SEGMENTS, SUM_NAMES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database

_COLUMNS: Final = [column for column in SEGMENTS.c]  # noqa: C416 -- a list of columns, in order
# Ticks are summed in whole micro-dollars and the rest, so that no sum of 64 bits overflows.
_TICKS: Final = 3600
_SPLIT: Final = ("ticks", "idle_ticks", "measured_ticks")
_RAW: Final = frozenset({Dimension.WORKLOAD, Dimension.POD, Dimension.NODE, Dimension.MODEL})


class LedgerReader:
    """Questions to a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, start_s: int, end_s: int, by: Dimension, wanted: Filter = Filter()) -> Attribution:  # noqa: B008 -- frozen
        """Return the books of a window and the costs of pods by a dimension."""
        with self._database.transaction() as connection:
            accounts = load_accounts(connection)
            sums = _sum_window(connection, start_s, end_s)
            books = Books()
            for (_, bucket), each in sums.items():
                books.open_line(Bucket(bucket)).merge(each)
            if by in _RAW:
                lines = _attribute_raw(connection, (start_s, end_s), by, accounts, wanted)
                return Attribution(books, lines, _list_memo(sums, accounts))
        lines = {}
        for (account, bucket), each in sums.items():
            known = accounts.get(account, Account())
            if bucket in HELD and wanted.matches(known):
                lines.setdefault(name_account(known, by), Sums()).merge(each)
        return Attribution(books, lines, _list_memo(sums, accounts))

    def scan(self, start_s: int, end_s: int) -> dict[tuple[int, int], Sums]:
        """Return the sums of a window from segments only, by account and bucket. Checks the fast way."""
        with self._database.transaction() as connection:
            return _sum_segments(connection, start_s, end_s)

    def sum_window(self, start_s: int, end_s: int) -> dict[tuple[int, int], Sums]:
        """Return the sums of a window by account and bucket."""
        with self._database.transaction() as connection:
            return _sum_window(connection, start_s, end_s)

    def sum_teams(self, start_s: int, end_s: int) -> dict[tuple[str, str], int]:
        """Return the ticks of pods in a window by namespace and team."""
        with self._database.transaction() as connection:
            accounts = load_accounts(connection)
            sums = _sum_window(connection, start_s, end_s)
        found: dict[tuple[str, str], int] = {}
        for (number, bucket), each in sums.items():
            if bucket in HELD:
                account = accounts.get(number, Account())
                key = account.namespace, account.team
                found[key] = found.get(key, 0) + each.ticks
        return found

    def sum_accounts(self, start_s: int, end_s: int) -> dict[Account, Sums]:
        """Return what pods cost in a window, by account."""
        with self._database.transaction() as connection:
            accounts = load_accounts(connection)
            sums = _sum_window(connection, start_s, end_s)
        found: dict[Account, Sums] = {}
        for (number, bucket), each in sums.items():
            if bucket in HELD:
                found.setdefault(accounts.get(number, Account()), Sums()).merge(each)
        return found

    def find_range(self) -> tuple[int, int] | None:
        """Return the first second of the ledger's days and the end of its last segment; None if it is empty."""
        with self._database.transaction() as connection:
            first = connection.execute(sa.select(sa.func.min(DAYS.c.day))).scalar()
            recent = sa.select(sa.func.max(SEGMENTS.c.start_s)).scalar_subquery()
            query = sa.select(sa.func.max(SEGMENTS.c.start_s + SEGMENTS.c.seconds))
            last = connection.execute(query.where(SEGMENTS.c.start_s > recent - DAY_S)).scalar()
        return None if first is None or last is None else (first * DAY_S, last)


def _list_memo(sums: Mapping[tuple[int, int], Sums], accounts: Mapping[int, Account]) -> dict[Bucket, dict[str, Sums]]:
    found: dict[Bucket, dict[str, Sums]] = {}
    for (number, bucket), each in sums.items():
        account = accounts.get(number, Account())
        add_memo(found, Bucket(bucket), account, each)
    return found


def name_account(account: Account, by: Dimension) -> str:
    """Return the name of an account in a dimension."""
    return str(getattr(account, by.value.replace("-", "_")))


def load_accounts(connection: Connection) -> dict[int, Account]:
    return {row[0]: Account(*row[1:]) for row in connection.execute(sa.select(ACCOUNTS))}


def _sum_window(connection: Connection, start_s: int, end_s: int) -> dict[tuple[int, int], Sums]:
    first_day, last_day = -(-start_s // DAY_S), end_s // DAY_S
    first_hour, last_hour = -(-start_s // HOUR_S), end_s // HOUR_S
    if first_hour >= last_hour:
        return _sum_segments(connection, start_s, end_s)
    found: dict[tuple[int, int], Sums] = {}
    if first_day < last_day:
        _merge(found, _sum_table(connection, DAYS, "day", first_day, last_day))
        _merge(found, _sum_table(connection, HOURS, "hour", first_hour, first_day * 24))
        _merge(found, _sum_table(connection, HOURS, "hour", last_day * 24, last_hour))
    else:
        _merge(found, _sum_table(connection, HOURS, "hour", first_hour, last_hour))
    for edge in ((start_s, first_hour * HOUR_S), (last_hour * HOUR_S, end_s)):
        if edge[0] < edge[1]:
            _merge(found, _sum_segments(connection, *edge))
    return found


def _sum_table(
    connection: Connection, table: sa.Table, period: str, first: int, last: int
) -> dict[tuple[int, int], Sums]:
    if first >= last:
        return {}
    columns: list[Any] = []
    for name in SUM_NAMES:
        column = table.c[name]
        parts = (column // _TICKS, column % _TICKS) if name in _SPLIT else (column,)
        columns += [sa.func.sum(sa.cast(part, sa.BigInteger) if name in _SPLIT else part) for part in parts]
    query = (
        sa.select(table.c.account, table.c.bucket, *columns)
        .where(table.c[period] >= first, table.c[period] < last)
        .group_by(table.c.account, table.c.bucket)
    )
    found = {}
    for account, bucket, *values in connection.execute(query):
        whole = [int(each) for each in values]
        ticks = [whole[2 * n] * _TICKS + whole[2 * n + 1] for n in range(len(_SPLIT))]
        found[account, bucket] = Sums(*ticks, *whole[2 * len(_SPLIT) :])
    return found


def _sum_segments(connection: Connection, start_s: int, end_s: int) -> dict[tuple[int, int], Sums]:
    account = sa.func.coalesce(WORKLOADS.c.account, 0)
    rows = fetch_segments(connection, start_s, end_s, account)
    if not len(rows):
        return {}
    keys, sums = rollups.sum_by_key(rows[:, 10] * 16 + rows[:, 3], rollups.clip_rows(rows, start_s, end_s))
    pairs = zip(keys.tolist(), sums.T.tolist(), strict=True)
    return {(key // 16, key % 16): Sums(*each) for key, each in pairs if any(each)}


def fetch_segments(connection: Connection, start_s: int, end_s: int, group: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the segments of a window with a number to group them by. No segment is longer than a day."""
    query = (
        sa.select(*_COLUMNS, group)
        .select_from(
            SEGMENTS.outerjoin(PODS, PODS.c.id == SEGMENTS.c.pod).outerjoin(
                WORKLOADS, WORKLOADS.c.id == PODS.c.workload
            )
        )
        .where(SEGMENTS.c.start_s > start_s - DAY_S, SEGMENTS.c.start_s < end_s)
        .where(SEGMENTS.c.start_s + SEGMENTS.c.seconds > start_s)
    )
    cursor: Any = connection.execute(query).cursor
    return np.array(cursor.fetchall(), dtype=np.int64).reshape(-1, len(_COLUMNS) + 1)


def _attribute_raw(
    connection: Connection,
    window: tuple[int, int],
    by: Dimension,
    accounts: Mapping[int, Account],
    wanted: Filter,
) -> dict[str, Sums]:
    """Return the costs of pods by a dimension that the sums do not have."""
    is_piece = by in {Dimension.NODE, Dimension.MODEL}
    rows = fetch_segments(connection, *window, SEGMENTS.c.piece if is_piece else SEGMENTS.c.pod)
    rows = rows[np.isin(rows[:, 3], [int(each) for each in HELD])]
    if not len(rows):
        return {}
    # Both numbers are needed: the pod for the account, the piece for node and model.
    keys, sums = rollups.sum_by_key(rows[:, 1] << 32 | rows[:, 2], rollups.clip_rows(rows, *window))
    pods = load_pods(connection, {key >> 32 for key in keys.tolist()}, accounts)
    pieces = {row[0]: row for row in connection.execute(sa.select(PIECES.c.id, PIECES.c.node, PIECES.c.model))}
    lines: dict[str, Sums] = {}
    for key, each in zip(keys.tolist(), sums.T.tolist(), strict=True):
        account, workload, name = pods.get(key >> 32, (Account(), "", ""))
        if not wanted.matches(account) or not any(each):
            continue
        if is_piece:
            piece = pieces[key & 0xFFFFFFFF]
            line = piece[1] if by is Dimension.NODE else piece[2]
        else:
            line = f"{account.namespace}/{workload if by is Dimension.WORKLOAD else name}"
        lines.setdefault(line, Sums()).merge(Sums(*each))
    return lines


def load_pods(
    connection: Connection, wanted: Iterable[int], accounts: Mapping[int, Account]
) -> dict[int, tuple[Account, str, str]]:
    query = sa.select(PODS.c.id, WORKLOADS.c.account, WORKLOADS.c.name, PODS.c.name).select_from(
        PODS.join(WORKLOADS, WORKLOADS.c.id == PODS.c.workload)
    )
    kept = set(wanted)
    return {
        row[0]: (accounts.get(row[1], Account()), row[2], row[3]) for row in connection.execute(query) if row[0] in kept
    }


def _merge(total: dict[tuple[int, int], Sums], more: Mapping[tuple[int, int], Sums]) -> None:
    for key, each in more.items():
        total.setdefault(key, Sums()).merge(each)

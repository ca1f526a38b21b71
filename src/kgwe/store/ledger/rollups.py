"""Sums of segments by hour and by day, as differences that are added to the stored sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe.costing.money import DAY_S, HOUR_S
from kgwe.store.ledger.schema import SUM_NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database

    Integers = NDArray[np.int64]

#: Columns of the rows that are summed: those of a segment, then its account.
START, POD, PIECE, BUCKET, SECONDS, RATE, PPM, PRICE, MEASURED, BUSY, ACCOUNT = range(11)
_ACCOUNT_BITS: Final = 32
_BUCKET_BITS: Final = 4
_MILLI: Final = 1000


def add_differences(connection: Connection, database: Database, rows: Integers, signs: Integers) -> None:
    """Add rows with sign 1, and take away rows with sign -1."""
    kept = rows[:, SECONDS] > 0
    rows, signs = rows[kept], signs[kept]
    if not len(rows):
        return
    for table, name, length in (("cost_hours", "hour", HOUR_S), ("cost_days", "day", DAY_S)):
        _upsert(connection, database, table, name, sum_periods(rows, signs, length))


def sum_periods(rows: Integers, signs: Integers, length: int) -> list[tuple[int, ...]]:
    """Return (period, account, bucket, sums…) of segments, each cut at the ends of periods."""
    each, period = cut_periods(rows, length)
    sums = clip_rows(rows[each], period * length, (period + 1) * length)
    sign = signs[each]
    key = (period << (_ACCOUNT_BITS + _BUCKET_BITS)) | (rows[each, ACCOUNT] << _BUCKET_BITS) | rows[each, BUCKET]
    key, totals = sum_by_key(key, sums * sign)
    account = (key >> _BUCKET_BITS) & ((1 << _ACCOUNT_BITS) - 1)
    table = np.stack([key >> (_ACCOUNT_BITS + _BUCKET_BITS), account, key & ((1 << _BUCKET_BITS) - 1), *totals])
    return list(map(tuple, table[:, totals.any(axis=0)].T.tolist()))


def cut_periods(rows: Integers, length: int) -> tuple[Integers, Integers]:
    """Return a row number and a period for each period that a segment has a part in."""
    start, end = rows[:, START], rows[:, START] + rows[:, SECONDS]
    first = start // length
    counts = (end - 1) // length - first + 1
    each = np.repeat(np.arange(len(rows)), counts)
    offset = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
    return each, np.asarray(first[each] + offset)


def clip_rows(rows: Integers, low: Integers | int, high: Integers | int) -> Integers:
    """Return the sums of each segment within a window, one column per segment: the same as `Segment.clip`."""
    start, seconds, rate = rows[:, START], rows[:, SECONDS], rows[:, RATE]
    low = np.clip(low - start, 0, seconds)
    high = np.maximum(np.clip(high - start, 0, seconds), low)
    idle = rate * (rows[:, MEASURED] * _MILLI - rows[:, BUSY]) // _MILLI
    measured = rate * rows[:, MEASURED]
    ppm_s = rows[:, PPM] * (high - low)
    return np.stack(
        [
            rate * (high - low),
            _spread(idle, high, seconds) - _spread(idle, low, seconds),
            _spread(measured, high, seconds) - _spread(measured, low, seconds),
            ppm_s,
            np.where(rows[:, PRICE] == 0, ppm_s, 0),
        ]
    )


def sum_by_key(key: Integers, sums: Integers) -> tuple[Integers, Integers]:
    """Return the distinct keys in order, and the sums of their columns."""
    order = np.argsort(key, kind="stable")
    key, sums = key[order], sums[:, order]
    begins = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    return key[begins], np.asarray(np.add.reduceat(sums, begins, axis=1))


def _spread(amount: Integers, offset: Integers, length: Integers) -> Integers:
    """Return amount x offset // length without an overflow: the same running sum as `Segment.clip`."""
    whole, rest = np.divmod(amount, length)
    return np.asarray(whole * offset + rest * offset // length)


def _upsert(connection: Connection, database: Database, table: str, period: str, rows: list[tuple[int, ...]]) -> None:
    if not rows:
        return
    columns = (period, "account", "bucket", *SUM_NAMES)
    mark = "%s" if database.is_postgresql else "?"
    changes = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in SUM_NAMES)
    statement = (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"  # noqa: S608 -- constants
        f" ON CONFLICT ({period}, account, bucket) DO UPDATE SET {changes}"
    )
    parameters: Any = rows
    connection.exec_driver_sql(statement, parameters)

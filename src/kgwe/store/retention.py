"""What a store forgets, and when.

Ages count from the newest stored data or from now, whichever is earlier: a clock that jumps ahead deletes nothing.
An out-of-memory fact goes only with its fingerprint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from kgwe.store.minutes import MINUTE_S, REFRESH_MINUTES
from kgwe.store.schema import DEVICES, FINGERPRINTS, MINUTES, PEAKS, RUNS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database

DAY_S: Final = 86_400
MINUTES_KEPT_S: Final = 7 * DAY_S
PEAKS_KEPT_S: Final = 30 * DAY_S
RUNS_KEPT_S: Final = 180 * DAY_S
# One transaction deletes at most this range, so that the writer is never blocked for long.
_RANGE_MINUTES: Final = 60


def apply_retention(database: Database, now_s: float) -> None:
    """Delete what is too old. An interrupted pass is continued by the next one."""
    _delete_minutes(database, now_s)
    with database.transaction() as connection:
        _delete_peaks(connection, now_s)
    with database.transaction() as connection:
        _delete_runs(connection, now_s)


def _delete_minutes(database: Database, now_s: float) -> None:
    with database.transaction() as connection:
        oldest, newest = connection.execute(
            sa.select(sa.func.min(MINUTES.c.minute), sa.func.max(MINUTES.c.minute))
        ).one()
    if oldest is None:
        return
    limit = int(min(now_s, newest * MINUTE_S) - MINUTES_KEPT_S) // MINUTE_S
    if oldest >= limit:
        return
    for begin in _list_begins(database, oldest, limit):
        end = min(begin + _RANGE_MINUTES, limit)
        with database.transaction() as connection:
            connection.execute(sa.delete(MINUTES).where(MINUTES.c.minute >= begin, MINUTES.c.minute < end))
    with database.transaction() as connection:
        connection.execute(sa.delete(DEVICES).where(DEVICES.c.last_minute < limit - REFRESH_MINUTES))


def _list_begins(database: Database, oldest: int, limit: int) -> list[int]:
    """Return the ranges that hold rows: minutes of a wrong clock may be decades away from the others."""
    number = MINUTES.c.minute // _RANGE_MINUTES
    query = sa.select(number).distinct().where(MINUTES.c.minute >= oldest, MINUTES.c.minute < limit)
    with database.transaction() as connection:
        return sorted(int(each) * _RANGE_MINUTES for (each,) in connection.execute(query))


def _delete_peaks(connection: Connection, now_s: float) -> None:
    """Delete old hours, except the highest use of memory of each fingerprint: a monthly job needs it next month."""
    limit = _find_limit(connection, PEAKS.c.hour_s, now_s, PEAKS_KEPT_S)
    higher = PEAKS.alias("higher")
    outdone = sa.exists().where(
        higher.c.fingerprint == PEAKS.c.fingerprint,
        sa.or_(
            higher.c.memory_peak_mib > PEAKS.c.memory_peak_mib,
            sa.and_(higher.c.memory_peak_mib == PEAKS.c.memory_peak_mib, higher.c.hour_s > PEAKS.c.hour_s),
        ),
    )
    connection.execute(
        sa.delete(PEAKS).where(PEAKS.c.hour_s < limit, sa.or_(PEAKS.c.memory_peak_mib.is_(None), outdone))
    )


def _delete_runs(connection: Connection, now_s: float) -> None:
    """Forget fingerprints without a run in 180 days, with all their facts, and the old runs of the others."""
    limit = min(
        _find_limit(connection, RUNS.c.last_s, now_s, RUNS_KEPT_S),
        _find_limit(connection, FINGERPRINTS.c.last_s, now_s, RUNS_KEPT_S),
    )
    recent = sa.exists().where(RUNS.c.fingerprint == FINGERPRINTS.c.key, RUNS.c.last_s >= limit)
    connection.execute(sa.delete(FINGERPRINTS).where(FINGERPRINTS.c.last_s < limit, sa.not_(recent)))
    connection.execute(sa.delete(RUNS).where(RUNS.c.last_s < limit))


def _find_limit(connection: Connection, column: sa.Column[Any], now_s: float, kept_s: float) -> float:
    newest = connection.execute(sa.select(sa.func.max(column))).scalar()
    return min(now_s, float("inf") if newest is None else float(newest)) - kept_s

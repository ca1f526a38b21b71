"""Periods of a budget: days, weeks and months in a time zone, also across daylight saving."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECEMBER: Final = 12


class PeriodLength(StrEnum):
    DAILY = "Daily"
    WEEKLY = "Weekly"
    MONTHLY = "Monthly"


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A time from its first second up to, but not including, its end. Unix seconds."""

    start_s: int
    end_s: int

    @property
    def length_s(self) -> int:
        return self.end_s - self.start_s

    def overlap_s(self, start_s: int, end_s: int) -> int:
        """Return the seconds that a time has in common with the period."""
        return max(min(end_s, self.end_s) - max(start_s, self.start_s), 0)


def find_period(length: PeriodLength, zone: dt.tzinfo, at_s: float) -> Period:
    """Return the period at a time. Weeks begin on Monday."""
    day = dt.datetime.fromtimestamp(at_s, zone).date()
    if length is PeriodLength.DAILY:
        first, after = day, day + dt.timedelta(days=1)
    elif length is PeriodLength.WEEKLY:
        first = day - dt.timedelta(days=day.weekday())
        after = first + dt.timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = first.replace(year=first.year + first.month // _DECEMBER, month=first.month % _DECEMBER + 1)
    return Period(_find_midnight(first, zone), _find_midnight(after, zone))


def list_periods(length: PeriodLength, zone: dt.tzinfo, start_s: float, end_s: float) -> Iterator[Period]:
    """Yield the periods from a time to another in order; at least the first."""
    period = find_period(length, zone, start_s)
    yield period
    while period.end_s < end_s:
        period = find_period(length, zone, period.end_s)
        yield period


def _find_midnight(day: dt.date, zone: dt.tzinfo) -> int:
    # Where the clock skips midnight, this is the first second of the day: the offset before the change is used.
    return int(dt.datetime.combine(day, dt.time(), zone).timestamp())

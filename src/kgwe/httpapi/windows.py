"""Windows of time in queries: `7d`, `today`, or two times with a comma."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from typing import Final, NamedTuple

from kgwe import errors
from kgwe.costing import dates
from kgwe.costing.money import DAY_S, HOUR_S
from kgwe.httpapi import problems

_LENGTH: Final = re.compile(r"(\d{1,6})(m|h|d|w)", re.ASCII)
_UNITS: Final = {"m": 60, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_MOST_S: Final = 3660 * DAY_S
_MOST_TIME: Final = 2**40


class Window(NamedTuple):
    """From a second until before another."""

    start_s: int
    end_s: int


def parse_window(text: str, now_s: int) -> Window:
    """Return the window of a text; raise a Problem with 400 for anything else."""
    if match := _LENGTH.fullmatch(text):
        return _check(now_s - int(match[1]) * _UNITS[match[2]], now_s)
    if text in _NAMED:
        return _find_named(text, now_s)
    first, comma, second = text.partition(",")
    if comma:
        return _check(_parse_time(first), _parse_time(second))
    raise problems.bad_request(
        "window is a length such as 24h, 7d or 4w; today, yesterday, week, month, lastweek or lastmonth; or two times"
        " with a comma, such as 2026-11-01T00:00:00Z,2026-11-08T00:00:00Z"
    )


def parse_step(text: str, window: Window) -> int:
    """Return the seconds of a step; the whole window for an empty text."""
    if not text:
        return window.end_s - window.start_s
    match = _LENGTH.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if seconds <= 0:
        raise problems.bad_request("step is a length such as 1h or 1d")
    return seconds


def _check(start_s: int, end_s: int) -> Window:
    if not 0 <= start_s < end_s <= _MOST_TIME or end_s - start_s > _MOST_S:
        raise problems.bad_request("window: its end comes after its start, and it is at most ten years long")
    return Window(start_s, end_s)


def _parse_time(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 12:  # noqa: PLR2004 - seconds since 1970
        return int(text)
    try:
        return dates.parse_time(text)
    except errors.Permanent as exc:
        raise problems.bad_request(f"window: {exc}") from exc


_NAMED: Final = ("today", "yesterday", "week", "month", "lastweek", "lastmonth")


def _find_named(text: str, now_s: int) -> Window:
    today = dt.datetime.fromtimestamp(now_s, dt.UTC).date()
    monday, first = today - dt.timedelta(days=today.weekday()), today.replace(day=1)
    starts = {
        "today": (today, None),
        "yesterday": (today - dt.timedelta(days=1), today),
        "week": (monday, None),
        "month": (first, None),
        "lastweek": (monday - dt.timedelta(days=7), monday),
        "lastmonth": ((first - dt.timedelta(days=1)).replace(day=1), first),
    }
    start, end = starts[text]
    end_s = max(now_s, _to_seconds(start) + 1) if end is None else _to_seconds(end)
    return _check(_to_seconds(start), end_s)


def _to_seconds(day: dt.date) -> int:
    return calendar.timegm(day.timetuple())

"""Dates and times of price files as seconds since 1970."""

from __future__ import annotations

import calendar
import functools
import re
from typing import Final

from kgwe import errors

_GRAMMAR: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_MONTHS: Final = 12
_DAY_LIMITS: Final = (23, 59, 59)


@functools.lru_cache(maxsize=4096)
def parse_time(text: str) -> int:
    """Return the second of `2026-08-22` or `2026-08-22T01:26:53+00:00`; without an offset it is UTC."""
    match = _GRAMMAR.fullmatch(text.strip())
    if match is None:
        raise errors.Permanent(f"{text.strip()[:40]!r} is not a date; write it like 2026-08-22 or 2026-08-22T00:00:00Z")
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    clock = [int(part or 0) for part in match.group(4, 5, 6)]
    is_month = 1 <= month <= _MONTHS and year > 0
    if not is_month or not 1 <= day <= calendar.monthrange(year, month)[1]:
        raise errors.Permanent(f"{text.strip()} is not a day of the calendar")
    if any(part > most for part, most in zip(clock, _DAY_LIMITS, strict=True)):
        raise errors.Permanent(f"{text.strip()} is not a time of the day")
    return calendar.timegm((year, month, day, *clock)) - _read_offset(match[7] or "Z")


def _read_offset(text: str) -> int:
    if text == "Z":
        return 0
    seconds = int(text[1:3]) * 3600 + int(text[-2:]) * 60
    return -seconds if text[0] == "-" else seconds


def format_time(at_s: int) -> str:
    """Return the time of a second in UTC: `2026-08-22T00:00:00Z`."""
    days, rest = divmod(at_s, 86_400)
    # Years begin in March here, so that a leap day is the last of its year.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9  # noqa: PLR2004 -- March is 0
    year = year_of_era + era * 400 + (month <= 2)  # noqa: PLR2004
    return f"{year:04}-{month:02}-{day:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"

"""The saving after advice was followed: cost and use before and after, and reversals.

Costs are metered, by the hour. A span that was not metered well enough gives no result. A workload that went back to
its old size is a reversal: its saving ends there. A workload that is too tight now should go back.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.units import phrasing

if TYPE_CHECKING:
    from collections.abc import Iterable


class Result(enum.StrEnum):
    """What became of a recommendation."""

    TOO_EARLY = "TooEarly"
    UNKNOWN = "Unknown"
    REALIZED = "Realized"
    PARTLY = "Partly"
    NOT_REALIZED = "NotRealized"
    HARMFUL = "Harmful"
    """The workload runs out of memory or of compute now."""
    REVERSED = "Reversed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Use and metered cost of a workload over some time."""

    hours: float
    """Wall-clock time."""
    metered_hours: float
    """Part of it that was metered."""
    cost: float | None
    """Metered; None if unknown."""
    activity: float | None = None
    p95: float | None = None
    oom_kills: int = 0
    is_original: bool = False
    """Whether the workload has its original devices."""

    @property
    def hourly_cost(self) -> float | None:
        if self.cost is None or self.metered_hours <= 0:
            return None
        return self.cost / self.metered_hours


@dataclass(frozen=True, slots=True)
class Saving:
    """The result of one recommendation."""

    result: Result
    promised_per_hour: float | None = None
    realized_per_hour: float | None = None
    realized: float | None = None
    """Since the advice was followed."""
    error: float | None = None
    """Realized minus promised, as a share of promised."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sums over verified recommendations."""

    followed: int
    realized: float
    reversals: int
    harmful: int
    unknown: int


_HOUR_S: Final = 3600.0
_MIN_HOURS: Final = 1.0
_MIN_METERED: Final = 0.9
# Realized at this part of the promise: prices are rounded and pods start and stop inside an hour.
_ENOUGH: Final = 0.95
_TIGHT: Final = 0.98


def verify_saving(
    promised_per_hour: float | None, before: Span, after: Span, *, min_hours: float = _MIN_HOURS
) -> Saving:
    """Return what advice has saved. `after` begins when it was followed and ends now, or at the reversal.

    With less than `min_hours` of it, it is too early.
    """
    saved = _compare(before, after)
    total = None if saved is None else saved * after.hours
    if after.is_original:
        return Saving(Result.REVERSED, promised_per_hour, saved, total, reasons=("it has its original devices again",))
    if harm := _find_harm(before, after):
        return Saving(Result.HARMFUL, promised_per_hour, saved, total, reasons=(harm,))
    if after.hours < min_hours:
        needed = phrasing.format_duration(min_hours * _HOUR_S)
        return Saving(Result.TOO_EARLY, promised_per_hour, reasons=(f"less than {needed} of it was observed",))
    if saved is None:
        return Saving(Result.UNKNOWN, promised_per_hour, reasons=("too little of the time was metered",))
    error = None if not promised_per_hour else (saved - promised_per_hour) / promised_per_hour
    return Saving(_grade(saved, promised_per_hour), promised_per_hour, saved, total, error)


def _compare(before: Span, after: Span) -> float | None:
    """Return the saving per hour; None unless both spans were metered well."""
    for span in (before, after):
        if span.hours <= 0 or span.metered_hours < _MIN_METERED * span.hours:
            return None
    old, new = before.hourly_cost, after.hourly_cost
    return None if old is None or new is None else old - new


def _find_harm(before: Span, after: Span) -> str:
    if after.oom_kills > before.oom_kills:
        return f"{after.oom_kills - before.oom_kills} more out-of-memory kills than before: go back"
    if after.p95 is not None and after.p95 >= _TIGHT and (before.p95 is None or before.p95 < _TIGHT):
        return f"its devices are active {100 * after.p95:.0f} % in the busiest times: go back or take the next size"
    return ""


def _grade(saved: float, promised: float | None) -> Result:
    if saved <= 0:
        return Result.NOT_REALIZED
    return Result.REALIZED if promised is None or saved >= _ENOUGH * promised else Result.PARTLY


def sum_ledger(savings: Iterable[Saving]) -> Ledger:
    """Return the sums. A reversal keeps what was saved until then; a loss counts as a loss."""
    found = list(savings)
    return Ledger(
        followed=len(found),
        realized=math.fsum(each.realized for each in found if each.realized is not None),
        reversals=sum(each.result is Result.REVERSED for each in found),
        harmful=sum(each.result is Result.HARMFUL for each in found),
        unknown=sum(each.result in {Result.UNKNOWN, Result.TOO_EARLY} for each in found),
    )

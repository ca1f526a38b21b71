"""Alerts of a budget: thresholds once per period, how fast it is used up, and what the period will have cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.costing.budgets.periods import Period

_DAY_S: Final = 86_400
_LEAST_DAYS: Final = 3
#: Both windows must burn this many times faster than the budget allows.
BURN_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class AlertState:
    """The thresholds that were crossed in a period. A new period starts with none."""

    period: Period
    fired: frozenset[float] = frozenset()
    exceeded_since_s: int | None = None


def advance_alerts(
    state: AlertState | None, period: Period, used_share: float, thresholds: Sequence[float], now_s: int
) -> tuple[AlertState, tuple[float, ...]]:
    """Return the new state and the thresholds that were crossed just now, lowest first.

    A threshold fires once per period, also if a corrected price takes the spend below it for a while.
    """
    if state is None or state.period != period:
        state = AlertState(period)
    crossed = {each for each in thresholds if used_share >= each}
    new = tuple(sorted(crossed - state.fired))
    since = None if used_share <= 1 else state.exceeded_since_s if state.exceeded_since_s is not None else now_s
    return AlertState(period, state.fired | crossed, since), new


def is_grace_over(state: AlertState, grace_s: int, now_s: int) -> bool:
    """Whether the limit has been exceeded for longer than the grace period."""
    return state.exceeded_since_s is not None and now_s - state.exceeded_since_s >= grace_s


def compute_burn_rate(spent_share: float, window_s: int, period: Period) -> float:
    """Return how fast a window used the budget; 1 uses it up exactly at the end of the period."""
    return spent_share * period.length_s / window_s if window_s > 0 else 0.0


def is_burning(short: float, long: float, factor: float = BURN_FACTOR) -> bool:
    """Whether the short and the long window both burn too fast: a short peak alone does not alert."""
    return short >= factor and long >= factor


@dataclass(frozen=True, slots=True)
class Projection:
    """What a period will have cost. Bounds are None where too few days are known."""

    expected: float
    lower: float | None
    upper: float | None


def project_spend(
    spent: float, encumbered: float, days: Sequence[float], left_s: float, coverage: float = 0.8
) -> Projection:
    """Project the spend at the end of the period.

    `days` are the costs of the last whole days. What is encumbered is the least that will be added.
    """
    left_days = max(left_s, 0.0) / _DAY_S
    if len(days) < _LEAST_DAYS:
        return Projection(spent + encumbered, None, None)
    mean = fmean(days)
    expected = max(mean * left_days, encumbered)
    # Days differ, and the mean of few days is uncertain itself.
    spread = stdev(days) * math.sqrt(left_days + left_days**2 / len(days))
    reach = NormalDist().inv_cdf(0.5 + coverage / 2) * spread
    return Projection(spent + expected, spent + max(expected - reach, encumbered), spent + expected + reach)

"""A series of demand in equal steps, and the features of its forecasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_DAY_S: Final = 86400.0
_LAGS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 18, 24, 36, 48, 72)
_DAYS: Final = (1, 2, 3, 4, 5, 6, 7, 14)
_WINDOWS: Final = (3, 6, 12)


@dataclass(frozen=True, slots=True, eq=False)
class DemandSeries:
    """Demand in equal steps. NaN is unknown. Companions are other series known at the same steps, such as jobs."""

    values: Floats
    step_s: float
    start_s: float = 0.0
    companions: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_s <= 0 or self.values.ndim != 1:
            raise errors.Permanent("a demand series needs one dimension and a positive step")
        if any(len(each) != len(self.values) for each in self.companions.values()):
            raise errors.Permanent("companions of a demand series must have its length")

    @property
    def day(self) -> int:
        """Steps of a day."""
        return max(round(_DAY_S / self.step_s), 1)

    def head(self, length: int) -> DemandSeries:
        """Return the first steps: what was known then."""
        known = {name: each[:length] for name, each in self.companions.items()}
        return DemandSeries(self.values[:length], self.step_s, self.start_s, known)

    def tail(self, begin: int) -> DemandSeries:
        """Return the steps from `begin` on."""
        known = {name: each[begin:] for name, each in self.companions.items()}
        return DemandSeries(self.values[begin:], self.step_s, self.start_s + begin * self.step_s, known)


def take_log(values: Floats) -> Floats:
    """Return log(1 + demand). Negative demand is unknown."""
    return np.log1p(np.where(values >= 0, values, np.nan))


def shift(values: Floats, lag: int) -> Floats:
    """Return the series as it was `lag` steps before; NaN where it had not begun."""
    if lag <= 0:
        return values
    result = np.full(len(values), np.nan)
    result[lag:] = values[:-lag] if lag < len(values) else []
    return result


def find_anchor(logs: Floats, window: int) -> Floats:
    """Return the mean of the last `window` steps, without unknown ones: forecasts are differences to it."""
    if window == 1:
        return fill_forward(logs)
    known = ~np.isnan(logs)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, logs, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(logs) + 1)
    begins = np.maximum(ends - window, 0)
    number = count[ends] - count[begins]
    mean = (total[ends] - total[begins]) / np.maximum(number, 1)
    return np.asarray(np.where(number > 0, mean, np.nan), dtype=np.float64)


def fill_forward(values: Floats) -> Floats:
    """Return the series with unknown steps replaced by the last known one."""
    positions = np.where(np.isnan(values), 0, np.arange(len(values)))
    return np.asarray(values[np.maximum.accumulate(positions)], dtype=np.float64)


def describe_steps(series: DemandSeries, anchor: Floats, ahead: int) -> Floats:
    """Return one row of features per step: what is known at its end about the demand `ahead` steps later."""
    logs, day = take_log(series.values), series.day
    columns = [shift(logs, lag) - anchor for lag in (0, *sorted({*_LAGS, day // 4, day // 2, day}))]
    columns += _describe_same_time(logs, anchor, day, ahead)
    for window in (*_WINDOWS, day // 4, day // 2, day, 3 * day, 7 * day):
        columns.append(find_anchor(logs, max(window, 2)) - anchor)
    spread = find_anchor(logs**2, day) - find_anchor(logs, day) ** 2
    columns.append(np.sqrt(np.maximum(spread, 0.0)))
    for companion in series.companions.values():
        other = take_log(companion)
        columns += [shift(other, lag) - other for lag in (1, 3, 6, day)]
        columns += [anchor - other, find_anchor(other, 6) - other]
    columns.append(anchor)
    columns += _describe_calendar(series, ahead)
    return np.stack(columns, axis=1)


def _describe_same_time(logs: Floats, anchor: Floats, day: int, ahead: int) -> list[Floats]:
    """Describe the same time of earlier days: its level, and how demand changed over the same hours."""
    columns = []
    for days in _DAYS:
        lag = days * day - ahead
        columns += [shift(logs, lag + off) - anchor for off in (-1, 0, 1) if lag + off >= 0]
    first = -(-ahead // day)
    changes = np.stack(
        [shift(logs, days * day - ahead) - shift(logs, days * day) for days in range(first, first + 14)], axis=1
    )
    levels = np.stack([shift(logs, days * day - ahead) for days in range(first, first + 7)], axis=1)
    levels = levels - anchor[:, None]
    for days in (3, 7, 14):
        columns += [_mean(changes[:, :days]), _median(changes[:, :days])]
    columns += [_mean(levels), np.min(levels, axis=1), np.max(levels, axis=1)]
    return [*columns, changes[:, 6], changes[:, 13]]


def _mean(values: Floats) -> Floats:
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    mean = np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    return np.asarray(np.where(count > 0, mean, np.nan), dtype=np.float64)


def _median(values: Floats) -> Floats:
    return np.asarray(np.median(values, axis=1), dtype=np.float64)


def _describe_calendar(series: DemandSeries, ahead: int) -> list[Floats]:
    target_s = series.start_s + series.step_s * (np.arange(len(series.values)) + ahead)
    turn = 2 * np.pi * (target_s % _DAY_S) / _DAY_S
    return [np.sin(turn), np.cos(turn), target_s % _DAY_S, target_s // _DAY_S % 7.0]

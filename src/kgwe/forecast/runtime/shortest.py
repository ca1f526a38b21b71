"""Short intervals with stated coverage over all runs: the durations that are most likely, by one bound for all runs.

The distances of past runs from their median, in units of the predicted distances of the quantiles, give a distribution.
An interval starts at the median and grows to the side that is more likely, as long as the next part holds at least
`price` of all runs per second. One price for all runs gives the least mean width for the stated coverage: intervals are
wide where that is cheap, and narrow where a run is hard to predict. Each interval holds `LEAST_COVERED` at least. Where
ends lie on a grid, the ends of an interval are points of it: the seconds between the points contain none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.runtime.ticks import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Least probability that each interval holds, as predicted.
LEAST_COVERED: Final = 0.65
# Distances from the median, in units of the distance of the predicted quantile on the same side.
_DISTANCES: Final = np.linspace(-4.5, 4.5, 121)
_IS_BELOW: Final = _DISTANCES < 0
# How far each past run is smeared.
_SMOOTHING: Final = 0.09
# Least distance of a quantile from the median in log seconds, so that a unit is never zero.
_LEAST_SPREAD: Final = 0.02
_LEAST_PRICE: Final = 1e-9
_STEP: Final = 0.005


@dataclass(frozen=True, slots=True)
class ShortestTable:
    """How past runs lay around their median, and the price of coverage. Without runs the quantiles are the interval."""

    shares: tuple[float, ...]
    """Share of runs up to each of the distances; empty: no run is known."""
    price: float
    """Least share of runs per second of width."""
    coverage: float
    resolution_s: float = 0.0
    """Durations are multiples of this where no ticks are seen; 0: they are not rounded."""

    def make_grid(self, ticks: Floats) -> Grid:
        """Return the grid of durations for ticks: rows of period and first duration, NaN where none are seen."""
        is_seen = np.isfinite(ticks[..., 0])
        return Grid(np.where(is_seen, ticks[..., 0], self.resolution_s), np.where(is_seen, ticks[..., 1], 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Predictions of the models in log seconds, with the ticks that were seen: period and first duration."""

    median: Floats
    low: Floats
    high: Floats
    ticks: Floats

    def __getitem__(self, row: int) -> Answers:
        return Answers(self.median[row], self.low[row], self.high[row], self.ticks[row])

    def measure(self, value: Floats) -> Floats:
        """Return the distance of log seconds from the median, in units of the quantile on the same side."""
        below, above = self.find_units()
        distance = value - self.median
        return np.asarray(distance / np.where(distance < 0, below, above), dtype=np.float64)

    def widen(self, factor: float) -> Answers:
        """Return the predictions with quantiles that are so many times as far from the median."""
        below, above = self.find_units()
        return Answers(self.median, self.median - factor * below, self.median + factor * above, self.ticks)

    def find_units(self) -> tuple[Floats, Floats]:
        """Return the distances of the quantiles from the median."""
        return np.maximum(self.median - self.low, _LEAST_SPREAD), np.maximum(self.high - self.median, _LEAST_SPREAD)


def find_shortest(answers: Answers, lasted_s: Floats, coverage: float) -> ShortestTable:
    """Return the table for predictions of runs whose duration is known."""
    resolution = 1.0 if len(lasted_s) and bool(np.all(lasted_s == np.rint(lasted_s))) else 0.0
    if not len(lasted_s):
        return ShortestTable((), _LEAST_PRICE, coverage, resolution)
    seen = np.clip(answers.measure(np.log1p(lasted_s)), _DISTANCES[0], _DISTANCES[-1])
    smeared = 0.5 + 0.5 * np.tanh((_DISTANCES[:, np.newaxis] - seen) / (2 * _SMOOTHING))
    table = ShortestTable(tuple(smeared.mean(axis=1).tolist()), _LEAST_PRICE, coverage, resolution)
    prices = [_find_price(table, answers[row], float(lasted)) for row, lasted in enumerate(lasted_s)]
    # As many runs as stated have this price or a higher one, so they are inside.
    rank = min(math.ceil(coverage * (len(prices) + 1)), len(prices))
    price = max(sorted(prices, reverse=True)[rank - 1], _LEAST_PRICE)
    return ShortestTable(table.shares, min(price, 1.0), coverage, resolution)


def _find_price(table: ShortestTable, answer: Answers, lasted_s: float) -> float:
    """Return the highest price at which the interval of a prediction contains the duration; 0 if there is none."""
    paid, held = math.inf, 0.0
    for lower, upper, share, price in _grow(table, answer):
        if held >= LEAST_COVERED:
            paid = min(paid, price)
        if lower <= lasted_s <= upper:
            return paid
        held += share
    return 0.0


def _grow(table: ShortestTable, answer: Answers) -> Iterator[tuple[float, float, float, float]]:
    """Yield intervals that grow from the median: their ends, and the share of runs that came last with its price.

    The first one is the median alone, on the grid.
    """
    below, above = answer.find_units()
    grid = table.make_grid(answer.ticks)
    units = np.where(_IS_BELOW, below, above)
    points = grid.round(np.expm1(np.maximum(answer.median + _DISTANCES * units, 0.0)))
    points = points[np.append(np.True_, points[1:] > points[:-1])]
    between = answer.measure(np.log1p(0.5 * (points[1:] + points[:-1])))
    passed = np.interp(between, _DISTANCES, table.shares)
    shares = np.diff(passed, prepend=0.0, append=1.0).tolist()
    low = high = int(np.searchsorted(points, grid.round(np.expm1(answer.median))))
    ends = points.tolist()
    yield ends[low], ends[high], shares[low], math.inf
    while low > 0 or high < len(ends) - 1:
        down = shares[low - 1] / (ends[low] - ends[low - 1]) if low > 0 else -1.0
        up = shares[high + 1] / (ends[high + 1] - ends[high]) if high < len(ends) - 1 else -1.0
        low, high = (low - 1, high) if down >= up else (low, high + 1)
        yield ends[low], ends[high], shares[low if down >= up else high], max(down, up)


@dataclass(slots=True)
class ShortestIntervals:
    """Intervals in seconds. One factor for all of them follows the coverage of the ends that were seen since."""

    table: ShortestTable
    factor: float = 1.0

    def find(self, answer: Answers) -> tuple[float, float, float]:
        """Return the lower end, the median and the upper end for one prediction."""
        if not self.table.shares:
            low, middle, high = (max(math.expm1(each), 0.0) for each in (answer.low, answer.median, answer.high))
            return min(low, middle), middle, max(high, middle)
        # Runs that lie further apart are fewer per second.
        least = self.table.price / self.factor
        grown = _grow(self.table, answer.widen(self.factor))
        lower, upper, held, _ = next(grown)
        middle = lower
        for low, high, share, price in grown:
            if held >= LEAST_COVERED and price < least:
                break
            lower, upper, held = low, high, held + share
        return lower, middle, upper

    def observe(self, interval: tuple[float, float], lasted_s: float) -> None:
        """Widen all intervals after a miss, narrow them after a hit, balanced at the stated coverage."""
        is_missed = not interval[0] <= lasted_s <= interval[1]
        self.factor *= math.exp(_STEP * (is_missed - (1.0 - self.table.coverage)))

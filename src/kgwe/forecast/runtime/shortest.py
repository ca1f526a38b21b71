"""Short intervals with stated coverage over all runs: wide where that is cheap, narrow where a run is hard to predict.

Runs are grouped by how many seconds the quantile models leave open. Each group gets factors for both sides, such that
the mean width is least while the stated share of all runs is covered. No group is covered less than `LEAST_COVERED`.
Where ends lie on a grid, the ends of an interval are points of it: the parts outside its outermost points contain none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.runtime.ticks import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Least coverage of a group, in the runs that the factors are chosen on.
LEAST_COVERED: Final = 0.7
_MOST_GROUPS: Final = 5
_GROUP_ROWS: Final = 150
_FACTORS: Final = np.linspace(0.0, 2.5, 26)
# Least distance of a quantile from the median in log seconds, so that a factor always has an effect.
_LEAST_SPREAD: Final = 0.02
_STEP: Final = 0.01
_HALVINGS: Final = 50


@dataclass(frozen=True, slots=True)
class ShortestTable:
    """For each group of predicted widths: factors on the distances of the two quantiles from the median."""

    edges: tuple[float, ...]
    """Upper edges of the groups, in seconds of width."""
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    coverage: float
    resolution_s: float = 0.0
    """Durations are multiples of this where no ticks are seen; 0: they are not rounded."""

    def make_grid(self, ticks: Floats) -> Grid:
        """Return the grid of durations for ticks: rows of period and first duration, NaN where none are seen."""
        is_seen = np.isfinite(ticks[..., 0])
        return Grid(np.where(is_seen, ticks[..., 0], self.resolution_s), np.where(is_seen, ticks[..., 1], 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One group: what each factor on each side covers, as a share of the group, and its mean width in seconds."""

    share: float
    covered: Floats
    width: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Predictions of the models in log seconds, with the ticks that were seen: period and first duration."""

    median: Floats
    low: Floats
    high: Floats
    ticks: Floats

    def select(self, rows: NDArray[np.bool_]) -> Answers:
        return Answers(self.median[rows], self.low[rows], self.high[rows], self.ticks[rows])


def find_shortest(answers: Answers, lasted_s: Floats, coverage: float) -> ShortestTable:
    """Return the table for predictions of runs whose duration is known."""
    resolution = 1.0 if len(lasted_s) and bool(np.all(lasted_s == np.rint(lasted_s))) else 0.0
    table = ShortestTable((), (1.0,), (1.0,), coverage, resolution)
    if not len(lasted_s):
        return table
    widths = np.expm1(answers.high) - np.expm1(answers.low)
    count = int(np.clip(len(lasted_s) // _GROUP_ROWS, 1, _MOST_GROUPS))
    edges = np.unique(np.quantile(widths, np.arange(1, count) / count))
    number = np.searchsorted(edges, widths, side="right")
    groups = []
    for index in range(len(edges) + 1):
        rows = number == index
        share = float(rows.mean())
        rows = rows if share else np.ones_like(rows)
        groups.append(_tabulate(table, answers.select(rows), lasted_s[rows], share))
    chosen = _FACTORS[np.array(_allot(groups, coverage))]
    return ShortestTable(
        tuple(edges.tolist()), tuple(chosen[:, 0].tolist()), tuple(chosen[:, 1].tolist()), coverage, resolution
    )


def _tabulate(table: ShortestTable, answers: Answers, lasted_s: Floats, share: float) -> _Group:
    factors = _FACTORS[:, np.newaxis]
    lower, middle, upper = _place(answers, factors, factors, table.make_grid(answers.ticks))
    is_short = lasted_s < middle
    below = ((lasted_s >= lower) & is_short).mean(axis=1)
    above = ((lasted_s <= upper) & ~is_short).mean(axis=1)
    return _Group(
        share,
        below[:, np.newaxis] + above,
        (middle - lower).mean(axis=1)[:, np.newaxis] + (upper - middle).mean(axis=1),
    )


def _place(answers: Answers, lower: Floats, upper: Floats, grid: Grid) -> tuple[Floats, Floats, Floats]:
    """Return the lower end, the median and the upper end in seconds for factors on the distances of the quantiles."""
    median = answers.median
    below = lower * np.maximum(median - answers.low, _LEAST_SPREAD)
    above = upper * np.maximum(answers.high - median, _LEAST_SPREAD)
    middle = grid.round(np.maximum(np.expm1(median), 0.0))
    low = np.minimum(grid.round_up(np.expm1(np.maximum(median - below, 0.0))), middle)
    return low, middle, np.maximum(grid.round_down(np.expm1(median + above)), middle)


def _allot(groups: list[_Group], coverage: float) -> list[tuple[int, int]]:
    """Return the factors of each group: one price of coverage, in seconds, for all of them."""
    cheap, dear = 1e-3, 1e9
    best = [_choose(group, dear) for group in groups]
    for _ in range(_HALVINGS):
        price = math.sqrt(cheap * dear)
        chosen = [_choose(group, price) for group in groups]
        if sum(group.share * group.covered[pair] for group, pair in zip(groups, chosen, strict=True)) < coverage:
            cheap = price
        else:
            dear, best = price, chosen
    return best


def _choose(group: _Group, price: float) -> tuple[int, int]:
    """Return the pair of factors that is worth most among those that cover enough."""
    enough = group.covered >= min(LEAST_COVERED, float(group.covered.max()))
    cost = np.where(enough, group.width - price * group.covered, np.inf)
    lower, upper = np.unravel_index(int(cost.argmin()), cost.shape)
    return int(lower), int(upper)


@dataclass(slots=True)
class ShortestIntervals:
    """Intervals in seconds. One factor for all of them follows the coverage of the ends that were seen since."""

    table: ShortestTable
    factor: float = 1.0

    def find(self, answer: Answers) -> tuple[float, float, float]:
        """Return the lower end, the median and the upper end for one prediction."""
        group = bisect_right(self.table.edges, math.expm1(float(answer.high)) - math.expm1(float(answer.low)))
        lower, upper = (np.asarray(self.factor * each[group]) for each in (self.table.lower, self.table.upper))
        low, middle, high = _place(answer, lower, upper, self.table.make_grid(answer.ticks))
        return float(low), float(middle), float(high)

    def observe(self, interval: tuple[float, float], lasted_s: float) -> None:
        """Widen all intervals after a miss, narrow them after a hit, balanced at the stated coverage."""
        is_missed = not interval[0] <= lasted_s <= interval[1]
        self.factor *= math.exp(_STEP * (is_missed - (1.0 - self.table.coverage)))

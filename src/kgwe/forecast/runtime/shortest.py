"""Short intervals with stated coverage over all runs: wide where that is cheap, narrow where a run is hard to predict.

Runs are grouped by how many seconds the quantile models leave open. Each group gets factors for both sides, such that
the mean width is least while the stated share of all runs is covered. No group is covered less than `LEAST_COVERED`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

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
    """Durations are multiples of this; 0: they are not rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One group: what each factor on each side covers, as a share of the group, and its mean width in seconds."""

    share: float
    covered: Floats
    width: Floats


def find_shortest(median: Floats, low: Floats, high: Floats, lasted_s: Floats, coverage: float) -> ShortestTable:
    """Return the table for predictions in log seconds of runs whose duration is known."""
    resolution = 1.0 if len(lasted_s) and bool(np.all(lasted_s == np.rint(lasted_s))) else 0.0
    if not len(median):
        return ShortestTable((), (1.0,), (1.0,), coverage, resolution)
    widths = np.expm1(high) - np.expm1(low)
    count = int(np.clip(len(median) // _GROUP_ROWS, 1, _MOST_GROUPS))
    edges = np.unique(np.quantile(widths, np.arange(1, count) / count))
    number = np.searchsorted(edges, widths, side="right")
    groups = []
    for index in range(len(edges) + 1):
        rows = number == index
        if rows.any():
            groups.append(_tabulate(median[rows], low[rows], high[rows], lasted_s[rows], float(rows.mean())))
        else:
            groups.append(_tabulate(median, low, high, lasted_s, 0.0))
    chosen = _FACTORS[np.array(_allot(groups, coverage))]
    return ShortestTable(
        tuple(edges.tolist()), tuple(chosen[:, 0].tolist()), tuple(chosen[:, 1].tolist()), coverage, resolution
    )


def _tabulate(median: Floats, low: Floats, high: Floats, lasted_s: Floats, share: float) -> _Group:
    below, above = np.maximum(median - low, _LEAST_SPREAD), np.maximum(high - median, _LEAST_SPREAD)
    error = np.log1p(lasted_s) - median
    is_short = error < 0
    lower = ((-error / below <= _FACTORS[:, None]) & is_short).mean(axis=1)
    upper = ((error / above <= _FACTORS[:, None]) & ~is_short).mean(axis=1)
    middle = np.expm1(median)
    narrower = (middle - np.expm1(np.maximum(median - below * _FACTORS[:, None], 0.0))).mean(axis=1)
    wider = (np.expm1(median + above * _FACTORS[:, None]) - middle).mean(axis=1)
    return _Group(share, lower[:, None] + upper, narrower[:, None] + wider)


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

    def find(self, median: float, low: float, high: float) -> tuple[float, float]:
        """Return the interval of a prediction in log seconds. It always contains the median."""
        group = bisect_right(self.table.edges, math.expm1(high) - math.expm1(low))
        below = self.factor * self.table.lower[group] * max(median - low, _LEAST_SPREAD)
        above = self.factor * self.table.upper[group] * max(high - median, _LEAST_SPREAD)
        lower, upper = math.expm1(max(median - below, 0.0)), math.expm1(median + above)
        if self.table.resolution_s:
            # Durations lie on a grid: the parts outside the outermost points of it contain none.
            lower = math.ceil(lower / self.table.resolution_s) * self.table.resolution_s
            upper = math.floor(upper / self.table.resolution_s) * self.table.resolution_s
        middle = max(math.expm1(median), 0.0)
        return min(lower, middle), max(upper, middle)

    def observe(self, interval: tuple[float, float], lasted_s: float) -> None:
        """Widen all intervals after a miss, narrow them after a hit, balanced at the stated coverage."""
        is_missed = not interval[0] <= lasted_s <= interval[1]
        self.factor *= math.exp(_STEP * (is_missed - (1.0 - self.table.coverage)))

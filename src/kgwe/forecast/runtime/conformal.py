"""Intervals with stated coverage: quantiles are widened until past runs were covered as often as promised.

The tables come from runs after the training part (split conformal). While predictions are scored against ends, each
group's correction follows the coverage it sees (adaptive conformal inference).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Upper edges of the groups of predictions, in log seconds of the predicted median, are quantiles of the training part.
GROUPS: Final = 4
_STEP: Final = 0.02
_LEAST: Final = 30


@dataclass(frozen=True, slots=True)
class ConformalTable:
    """For each group: by how much, in log seconds, the lower and the upper quantile must move outwards."""

    edges: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    coverage: float


def calibrate(median: Floats, low: Floats, high: Floats, truth: Floats, coverage: float) -> ConformalTable:
    """Return the table for predictions of runs whose truth is known, all in log seconds."""
    edges = tuple(float(edge) for edge in np.quantile(median, np.arange(1, GROUPS) / GROUPS)) if len(median) else ()
    groups = np.searchsorted(edges, median, side="right")
    tail = 1 - (1 - coverage) / 2
    lower = [_shift(low - truth, groups == group, tail) for group in range(len(edges) + 1)]
    upper = [_shift(truth - high, groups == group, tail) for group in range(len(edges) + 1)]
    return ConformalTable(edges, tuple(lower), tuple(upper), coverage)


def _shift(outside: Floats, mask: NDArray[np.bool_], level: float) -> float:
    """Return the quantile with the finite-sample correction; of all runs where the group is small."""
    chosen = outside[mask] if mask.sum() >= _LEAST else outside
    if not len(chosen):
        return 0.0
    rank = min(int(np.ceil(level * (len(chosen) + 1))), len(chosen))
    return float(np.sort(chosen)[rank - 1])


@dataclass(slots=True)
class AdaptiveIntervals:
    """Intervals whose corrections follow the ends that were seen since."""

    table: ConformalTable
    step: float = _STEP
    _lower: list[float] = field(default_factory=list)
    _upper: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lower, self._upper = list(self.table.lower), list(self.table.upper)

    def find_group(self, median: float) -> int:
        """Return the group of a predicted median."""
        return int(np.searchsorted(self.table.edges, median, side="right"))

    def widen(self, median: float, low: float, high: float) -> tuple[float, float]:
        """Return the interval of a prediction in log seconds. It always contains the median."""
        group = self.find_group(median)
        return min(low - self._lower[group], median), max(high + self._upper[group], median)

    def observe(self, median: float, interval: tuple[float, float], truth: float) -> None:
        """Move the corrections of the group: out after a miss, in after a hit, balanced at the stated coverage."""
        group, miss = self.find_group(median), (1 - self.table.coverage) / 2
        self._lower[group] += self.step * ((truth < interval[0]) - miss)
        self._upper[group] += self.step * ((truth > interval[1]) - miss)


def measure_coverage(lower: Sequence[float], upper: Sequence[float], truth: Sequence[float]) -> float:
    """Return the share of runs inside their intervals."""
    low, high, value = (np.asarray(each) for each in (lower, upper, truth))
    return float(np.mean((value >= low) & (value <= high)))

"""Ticks: a system that looks for finished runs every few seconds sees their ends on a grid of time.

The grid is found from the ends that were seen. The end of a new run lies on the same grid, so its duration is one of
few values. The grid drifts slowly, because a round of looking takes a little longer than its period: only recent ends
count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_PERIODS: Final = tuple(range(2, 11))
# Share of gaps between ends that must be multiples of a period. By chance one in two is a multiple of 2.
_LEAST_SHARE: Final = 0.75
_RATE: Final = 0.02
_LONGEST_GAP_S: Final = 60.0
_OLDEST_S: Final = 120.0


@dataclass(slots=True)
class Ticks:
    """The shares of recent gaps between ends that are multiples of each period in seconds, and the last end."""

    last_s: float = -math.inf
    shares: list[float] = field(default_factory=lambda: [0.0] * len(_PERIODS))

    def observe(self, ended_s: float) -> None:
        """Count an end. Ends in the same second say nothing about the period."""
        gap = ended_s - self.last_s
        if gap <= 0:
            return
        self.last_s = ended_s
        if gap <= _LONGEST_GAP_S:
            for index, period in enumerate(_PERIODS):
                self.shares[index] += _RATE * ((gap % period == 0) - self.shares[index])

    def find(self, now_s: float) -> tuple[float, float]:
        """Return the period, and the first duration at which a run submitted now can end; NaN where no grid is seen."""
        period = next((each for each, share in _COARSE_FIRST if self.shares[share] >= _LEAST_SHARE), None)
        if period is None or now_s - self.last_s > _OLDEST_S:
            return math.nan, math.nan
        return float(period), (self.last_s - now_s) % period


_COARSE_FIRST: Final = tuple((period, index) for index, period in reversed(tuple(enumerate(_PERIODS))))


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The durations at which runs can end: `first` and multiples of `step` more. A step of 0: any duration."""

    step: Floats
    first: Floats

    def round(self, seconds: Floats) -> Floats:
        """Return the nearest durations of the grid."""
        return self._place(np.rint, seconds)

    def round_up(self, seconds: Floats) -> Floats:
        return self._place(np.ceil, seconds)

    def round_down(self, seconds: Floats) -> Floats:
        return self._place(np.floor, seconds)

    def _place(self, how: np.ufunc, seconds: Floats) -> Floats:
        steps = how((seconds - self.first) / np.where(self.step > 0, self.step, 1.0))
        on_grid = self.first + np.maximum(steps, 0.0) * self.step
        return np.asarray(np.where(self.step > 0, on_grid, seconds), dtype=np.float64)

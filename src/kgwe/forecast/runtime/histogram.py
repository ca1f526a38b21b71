"""Decayed histograms of durations: log-spaced buckets whose weights halve with time and with newer runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Each bucket is 5 % wider than the one before, as in the Vertical Pod Autoscaler. The first begins at one second.
RATIO: Final = 1.05
BUCKETS: Final = 340  # up to 180 days
HALF_LIFE_S: Final = 7 * 86400.0
HALF_LIFE_RUNS: Final = 60.0
_LOG_RATIO: Final = math.log(RATIO)
_RESCALE: Final = 60.0
#: The middle of each bucket in seconds.
CENTRES: Final = np.expm1((np.arange(BUCKETS) + 0.5) * _LOG_RATIO)


def find_bucket(seconds: float) -> int:
    """Return the bucket of a duration."""
    return min(int(math.log1p(max(seconds, 0.0)) / _LOG_RATIO), BUCKETS - 1)


@dataclass(slots=True)
class DecayedHistogram:
    """Durations of past runs. Newer runs count more: by their age, and by how many runs came after them."""

    weights: dict[int, float] = field(default_factory=dict)
    reference: float = 0.0
    """Exponent that is subtracted from all weights, so that they stay finite."""
    count: int = 0

    def add(self, seconds: float, at_s: float) -> None:
        """Count a run that ended. Durations that are not finite are ignored."""
        if not math.isfinite(seconds) or not math.isfinite(at_s):
            return
        self.count += 1
        exponent = at_s / HALF_LIFE_S + self.count / HALF_LIFE_RUNS
        if not self.weights:
            self.reference = exponent
        if exponent - self.reference > _RESCALE:
            fade = 2.0 ** (self.reference - exponent)
            self.weights = {bucket: weight * fade for bucket, weight in self.weights.items() if weight * fade > 0.0}
            self.reference = exponent
        bucket = find_bucket(seconds)
        self.weights[bucket] = self.weights.get(bucket, 0.0) + 2.0 ** (exponent - self.reference)

    def read(self, now_s: float) -> NDArray[np.float64]:
        """Return the weight of each bucket now. A run that just ended weighs about 1."""
        result = np.zeros(BUCKETS)
        if self.weights:
            fade = 2.0 ** (self.reference - now_s / HALF_LIFE_S - self.count / HALF_LIFE_RUNS)
            result[list(self.weights)] = np.fromiter(self.weights.values(), float) * fade
        return result


def blend(histograms: Sequence[NDArray[np.float64]], prior_weight: float) -> NDArray[np.float64]:
    """Return one distribution from histograms ordered coarse to fine.

    Each one is drawn to the one before it, which counts as `prior_weight` runs. All zeros: nothing is known.
    """
    result = np.zeros(BUCKETS)
    for weights in histograms:
        total = weights.sum()
        if total > 0:
            result = (weights + prior_weight * result) / (total + prior_weight * (result.sum() > 0))
    return result


def find_quantiles(distribution: NDArray[np.float64], quantiles: Sequence[float]) -> list[float]:
    """Return seconds for each quantile, interpolated inside the bucket."""
    total = np.cumsum(distribution)
    positions = np.interp(np.asarray(quantiles) * total[-1], np.concatenate([[0.0], total]), np.arange(BUCKETS + 1))
    return [float(value) for value in np.expm1(positions * _LOG_RATIO)]

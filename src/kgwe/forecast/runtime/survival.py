"""Runs that have not ended: they last at least as long as they have run (right-censored observations)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.forecast.runtime.histogram import BUCKETS, find_bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def add_running(weights: Floats, elapsed_s: Sequence[float]) -> Floats:
    """Return a histogram with running runs counted: each is spread over the buckets above its elapsed time.

    This is Efron's redistribution to the right, which gives the Kaplan-Meier estimate. A run beyond every known
    duration counts in its own bucket: it lasts at least that long.
    """
    result = weights.copy()
    for elapsed in sorted(elapsed_s):
        bucket = find_bucket(elapsed)
        above = result[bucket:].sum()
        if above > 0:
            result[bucket:] *= 1.0 + 1.0 / above
        else:
            result[min(bucket + 1, BUCKETS - 1)] += 1.0
    return result


def estimate_survival(lasted_s: Floats, has_ended: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the Kaplan-Meier estimate: times of ends, and the share of runs that last longer than each."""
    times = np.unique(lasted_s[has_ended])
    ordered = np.sort(lasted_s)
    at_risk = len(ordered) - np.searchsorted(ordered, times, side="left")
    ended = np.sort(lasted_s[has_ended])
    ends = np.searchsorted(ended, times, side="right") - np.searchsorted(ended, times, side="left")
    return times, np.cumprod(1.0 - ends / at_risk, dtype=np.float64)


def weigh_ended(lasted_s: Floats, has_ended: NDArray[np.bool_], most: float = 10.0) -> Floats:
    """Return the weight of each run in training: 1 / probability that a run of this length was seen to its end.

    Long runs are more often cut off by the end of the observation, so the ones that ended stand for those that did
    not (inverse probability of censoring). Running runs get weight 0.
    """
    times, still_seen = estimate_survival(lasted_s, ~has_ended)
    known = np.concatenate([[1.0], still_seen])[np.searchsorted(times, lasted_s, side="left")]
    return np.where(has_ended, np.minimum(1.0 / np.maximum(known, 1.0 / most), most), 0.0)

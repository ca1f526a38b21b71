"""The speed of a workload on a MIG slice.

    speed = 1 / (1 - p + p * units of the whole GPU / units of the slice)

p is the share of its time that grows as the GPU gets smaller: measured per family (MISO), otherwise the workload's own
activity on a whole GPU. The fraction of a slice alone is a poor predictor: p is .09 for mobilenet and .82 for a
transformer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.hints.points import LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_WHOLE: Final = 7.0
# At half speed a node loses all points.
_FULL_LOSS: Final = 0.5


def find_parallel_share(shares: Mapping[str, float], text: str, activity: float | None = None) -> float:
    """Return p by the family that a text mentions, else by the activity of the workload; NaN if neither is known."""
    for family, share in shares.items():
        if re.search(rf"(?<![a-z0-9]){re.escape(family)}", text.lower()):
            return share
    return float("nan") if activity is None else min(max(activity, 0.0), 1.0)


def predict_slice_speed(parallel_share: float, compute_units: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the speed on slices of so many compute units (7: whole GPU), relative to a whole GPU; NaN: unknown."""
    units = np.clip(np.asarray(compute_units, dtype=np.float64), 1.0, _WHOLE)
    return np.asarray(1.0 / (1.0 - parallel_share + parallel_share * _WHOLE / units), dtype=np.float64)


def score_slices(parallel_share: float, compute_units: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return points per node, by the slice that the pod would get there; NaN where it is unknown."""
    loss = 1.0 - predict_slice_speed(parallel_share, compute_units)
    return np.asarray(-LIMIT * np.clip(loss / _FULL_LOSS, 0.0, 1.0), dtype=np.float64)

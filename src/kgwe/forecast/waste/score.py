"""Waste score: 0 (the held GPUs are fully used) to 100 (they do nothing).

The default is the unused part of compute time: `100 * (1 - use)`, where use is the larger of compute activity and
memory traffic. A score above 50 is the same as an activity below 50 %. Memory that a busy pod leaves free is not waste:
the GPU works. It only decides which smaller device would do, and the recommendation uses it for that.

`Formula.WEIGHTED` is the formula of the GPU Autoscaler: `0.6 * (100 - gpu %) + 0.4 * (100 - memory %)`. It rates a GPU
that is 80 % busy with light memory at 52.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from kgwe.forecast.waste.states import State

if TYPE_CHECKING:
    from kgwe.forecast.waste.verdicts import Verdict

_GPU_WEIGHT: Final = 0.6
_MEMORY_WEIGHT: Final = 0.4


class Formula(enum.StrEnum):
    UNUSED = "unused"
    WEIGHTED = "weighted"


def score_verdict(verdict: Verdict, formula: Formula = Formula.UNUSED) -> float | None:
    """Return the waste score of a pod; None if its state, or a number that the formula needs, is unknown."""
    if verdict.state is State.UNKNOWN or verdict.activity is None:
        return None
    if formula is Formula.WEIGHTED:
        return _score_weighted(verdict)
    # DRAM counters of a shared GPU are of all its pods.
    traffic = 0.0 if verdict.is_shared else verdict.dram or 0.0
    return round(100.0 * (1.0 - min(max(verdict.activity, traffic), 1.0)), 1)


def _score_weighted(verdict: Verdict) -> float | None:
    if verdict.activity is None or verdict.memory_peak_mib is None or not verdict.memory_total_mib:
        return None
    memory = min(verdict.memory_peak_mib / verdict.memory_total_mib, 1.0)
    return round(100.0 * (_GPU_WEIGHT * (1.0 - verdict.activity) + _MEMORY_WEIGHT * (1.0 - memory)), 1)

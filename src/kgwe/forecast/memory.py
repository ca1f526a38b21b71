"""How much GPU memory a workload needs, from its measured peaks and from the times it ran out of memory.

Peaks fade: the newest hours count most. An out-of-memory fact never does: it is a floor as long as the fingerprint
lives. Memory that a preallocator takes says nothing about its need, so the answer is unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.usage.history import OutOfMemory, UsagePeak

HALF_LIFE_S: Final = 7 * 86400.0
LEAST_HOURS: Final = 3
# The margin above the highest peak shrinks with the root of the measured hours of devices: replicas count together,
# because each shows a peak that the others may reach. Chosen on the first half of recorded histories.
_MARGIN_OF_ONE_HOUR: Final = 0.66
LEAST_MARGIN, MOST_MARGIN = 0.02, 0.50
_MINUTES_PER_HOUR: Final = 60.0
# After an out-of-memory kill: a fifth more than the device had, at least 512 MiB.
_OOM_FACTOR: Final = 1.2
_OOM_LEAST_MIB: Final = 512.0
_SPREAD: Final = 2.0
_FULL_CONFIDENCE_HOURS: Final = 48.0
_MOST_CONFIDENCE_AFTER_GAPS: Final = 0.5


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """GPU memory per device. `is_known` is False where it cannot be told; the floor holds even then."""

    is_known: bool
    recommended_mib: float | None = None
    peak_mib: float | None = None
    floor_mib: float = 0.0
    """More than the memory with which the workload has run out."""
    confidence: float = 0.0
    reasons: tuple[str, ...] = ()


def predict_memory(
    peaks: Sequence[UsagePeak],
    facts: Sequence[OutOfMemory],
    *,
    is_preallocator: bool = False,
    half_life_s: float = HALF_LIFE_S,
) -> MemoryNeed:
    """Return the memory that a workload needs, with a margin. A peak counts in full for two half-lives."""
    floor = find_floor(facts)
    if is_preallocator:
        return MemoryNeed(
            is_known=False,
            floor_mib=floor,
            reasons=("the workload takes all memory at its start, so its use does not show its need",),
        )
    known = [peak for peak in peaks if peak.memory_peak_mib is not None and math.isfinite(peak.memory_peak_mib)]
    if len(known) < LEAST_HOURS:
        if floor > 0:
            return MemoryNeed(
                is_known=True, recommended_mib=floor, floor_mib=floor, confidence=0.2, reasons=(_say_floor(facts),)
            )
        return MemoryNeed(
            is_known=False,
            reasons=(f"GPU memory: {format_count(len(known), 'hour')} of use measured, {LEAST_HOURS} are needed",),
        )
    return _combine(known, facts, floor, half_life_s)


def compute_margin(device_hours: float) -> float:
    """Return the margin above the highest peak, as a share of it."""
    return min(max(_MARGIN_OF_ONE_HOUR / math.sqrt(max(device_hours, 1.0)), LEAST_MARGIN), MOST_MARGIN)


def _combine(known: Sequence[UsagePeak], facts: Sequence[OutOfMemory], floor: float, half_life_s: float) -> MemoryNeed:
    values = np.array([peak.memory_peak_mib for peak in known], dtype=np.float64)
    hours = np.array([peak.hour_s for peak in known], dtype=np.float64)
    # Age counts from the newest hour: a workload that has not run for months is still the same workload.
    ages = hours.max() - hours
    weights = 0.5 ** (ages / half_life_s)
    highest = float(values.max())
    # An old peak counts less than a recent one, but never below the mean of what was seen since.
    mean = float(np.average(values, weights=weights))
    spread = math.sqrt(float(np.average((values - mean) ** 2, weights=weights)))
    recent = float((values * np.where(weights > 0.25, 1.0, 0.0)).max())  # noqa: PLR2004 -- two half-lives
    peak = max(recent, min(highest, mean + _SPREAD * spread))
    margin = compute_margin(sum(each.samples for each in known) / _MINUTES_PER_HOUR)
    wanted = max(peak * (1 + margin), floor)
    gaps = sum(each.gaps for each in known) / max(sum(each.gaps + each.samples for each in known), 1)
    confidence = min(len(known) / _FULL_CONFIDENCE_HOURS, 1.0) * (1 - _MOST_CONFIDENCE_AFTER_GAPS * gaps)
    reasons = [f"the highest peak in {len(known)} hours is {peak:.0f} MiB", f"a margin of {margin:.0%} is added"]
    if floor > peak * (1 + margin):
        reasons.insert(0, _say_floor(facts))
    return MemoryNeed(
        is_known=True,
        recommended_mib=float(math.ceil(wanted)),
        peak_mib=peak,
        floor_mib=floor,
        confidence=round(confidence, 3),
        reasons=tuple(reasons[:3]),
    )


def find_floor(facts: Sequence[OutOfMemory]) -> float:
    """Return the least memory that is more than what has not been enough. Age does not matter."""
    limits = [fact.limit_mib for fact in facts if fact.limit_mib is not None and math.isfinite(fact.limit_mib)]
    return max((max(limit * _OOM_FACTOR, limit + _OOM_LEAST_MIB) for limit in limits), default=0.0)


def _say_floor(facts: Sequence[OutOfMemory]) -> str:
    times = "once" if len(facts) == 1 else f"{len(facts)} times"
    return f"the workload ran out of GPU memory {times}"

"""What a workload will need: GPUs, memory, utilisation, run time and cost, with reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.forecast.memory import MemoryNeed
    from kgwe.forecast.runtime.query import Prediction
    from kgwe.model.usage.history import UsagePeak

_MIB_PER_GIB: Final = 1024.0
# Below this activity a workload on several GPUs could use fewer.
_LOW_ACTIVITY: Final = 0.4
_LEAST_HOURS: Final = 3
_COMMUNICATING_GPUS: Final = 2
_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class ResourceForecast:
    """The answer of PredictResources. None is unknown."""

    recommended_gpus: float
    recommended_memory_gb: float | None
    expected_utilization: float | None
    expected_duration_seconds: float | None
    duration_lower_seconds: float | None
    duration_upper_seconds: float | None
    confidence: float
    prefer_nvlink: bool
    recommended_mig_profile: str
    estimated_cost_per_hour: float | None
    estimated_cost: float | None
    reasoning: tuple[str, ...]


def forecast_resources(
    *,
    requested_gpus: float,
    runtime: Prediction,
    memory: MemoryNeed,
    peaks: Sequence[UsagePeak],
    gpu_memory_mib: float | None = None,
    profiles: Sequence[tuple[str, float]] = (),
    price_per_gpu_hour: float | None = None,
) -> ResourceForecast:
    """Return the forecast of a workload from the forecasts of its parts.

    `profiles` are the MIG profiles that may be used, with MiB. Without history the request itself is recommended.
    """
    utilization = measure_activity(peaks)
    gpus = recommend_gpus(requested_gpus, utilization, memory, gpu_memory_mib)
    duration = runtime.median_s if runtime.is_known else None
    per_hour = None if price_per_gpu_hour is None else gpus * price_per_gpu_hour
    reasons = [*runtime.reasons[:1], *memory.reasons[:1]]
    if utilization is not None:
        reasons.insert(0, f"its GPUs were active {utilization:.0%} of the time")
    return ResourceForecast(
        recommended_gpus=gpus,
        recommended_memory_gb=_to_gib(memory.recommended_mib) if memory.is_known else None,
        expected_utilization=utilization,
        expected_duration_seconds=duration,
        duration_lower_seconds=runtime.lower_s if runtime.is_known else None,
        duration_upper_seconds=runtime.upper_s if runtime.is_known else None,
        confidence=_combine_confidence(runtime, memory),
        prefer_nvlink=gpus >= _COMMUNICATING_GPUS,
        recommended_mig_profile=choose_profile(gpus, utilization, memory, profiles),
        estimated_cost_per_hour=per_hour,
        estimated_cost=None if per_hour is None or duration is None else per_hour * duration / 3600.0,
        reasoning=tuple(reasons[:_REASONS]),
    )


def measure_activity(peaks: Sequence[UsagePeak]) -> float | None:
    """Return the mean activity of measured hours; None where fewer than three are known."""
    known = [
        (peak.activity_mean, peak.samples) for peak in peaks if peak.activity_mean is not None and peak.samples > 0
    ]
    if len(known) < _LEAST_HOURS:
        return None
    values, weights = (np.array(each, dtype=np.float64) for each in zip(*known, strict=True))
    return float(np.clip(np.average(values, weights=weights), 0.0, 1.0))


def recommend_gpus(
    requested: float, utilization: float | None, memory: MemoryNeed, gpu_memory_mib: float | None
) -> float:
    """Return how many GPUs are enough: fewer only where low activity and known memory both allow it."""
    if requested <= 1 or utilization is None or utilization >= _LOW_ACTIVITY:
        return requested
    if not memory.is_known or memory.recommended_mib is None or not gpu_memory_mib:
        return requested
    by_memory = math.ceil(memory.recommended_mib * requested / gpu_memory_mib)
    by_activity = math.ceil(requested * utilization / 0.8)
    return float(min(max(by_memory, by_activity, 1), requested))


def choose_profile(
    gpus: float, utilization: float | None, memory: MemoryNeed, profiles: Sequence[tuple[str, float]]
) -> str:
    """Return the smallest MIG profile that holds the workload. Empty: a whole GPU, or too little is known."""
    if gpus != 1 or utilization is None or utilization >= _LOW_ACTIVITY:
        return ""
    if not memory.is_known or memory.recommended_mib is None:
        return ""
    fitting = [(mib, name) for name, mib in profiles if mib >= memory.recommended_mib]
    return min(fitting)[1] if fitting else ""


def _to_gib(mib: float | None) -> float | None:
    return None if mib is None else round(mib / _MIB_PER_GIB, 2)


def _combine_confidence(runtime: Prediction, memory: MemoryNeed) -> float:
    """Return the mean confidence of the known parts; 0 where none is known."""
    known = [part.confidence for part in (runtime, memory) if part.is_known]
    return round(sum(known) / len(known), 3) if known else 0.0

"""What the use of a pod's GPUs over time looks like, as a few numbers. NaN is unknown."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.model.usage.window import UsageWindow

    Floats = NDArray[np.floating]

#: Steps that must be measured, of those in the window.
LEAST_STEPS: Final = 20
_ACTIVE: Final = 0.01
# Correlation from which a repetition counts as a period.
_LEAST_CORRELATION: Final = 0.4
_LEAST_POWER: Final = 1e-9


@dataclass(frozen=True, slots=True)
class UsageSignature:
    """The numbers that rules read."""

    steps: int = 0
    """Measured steps of the best measured device."""
    mean: float = float("nan")
    low: float = float("nan")
    """Activity between bursts: 10th percentile."""
    high: float = float("nan")
    """Activity in bursts: 90th percentile."""
    spread: float = float("nan")
    """Standard deviation of activity."""
    duty: float = float("nan")
    """Share of time above the middle of low and high."""
    period_s: float = float("nan")
    """Of the bursts; NaN: none was found."""
    tensor_ratio: float = float("nan")
    """Tensor activity over activity while active."""
    memory_share: float = float("nan")
    power_w: float = float("nan")

    @property
    def is_known(self) -> bool:
        return self.steps >= LEAST_STEPS


def measure_signature(window: UsageWindow, rows: Sequence[int]) -> UsageSignature:
    """Return the signature of the devices of one pod: the median over its devices, step by step.

    Devices that several pods share say nothing about one of them and are left out.
    """
    own = [row for row in rows if window.devices[row].sharers == 1]
    if not own:
        return UsageSignature()
    activity = _median_rows(window.activity[own])
    known = ~np.isnan(activity)
    if not known.any():
        return UsageSignature()
    measured = activity[known]
    low, high = np.percentile(measured, [10, 90])
    tensor = _median_rows(window.tensor[own])
    active = known & ~np.isnan(tensor) & (activity > _ACTIVE)
    memory = _median_rows(window.memory_used_mib[own] / window.memory_total_mib[own])
    power = _median_rows(window.power_w[own])
    return UsageSignature(
        steps=int(known.sum()),
        mean=float(measured.mean()),
        low=float(low),
        high=float(high),
        spread=float(measured.std()),
        duty=float((measured > (low + high) / 2).mean()) if high - low > _ACTIVE else 1.0,
        period_s=find_period(activity) * window.step_s,
        tensor_ratio=float((tensor[active] / activity[active]).mean()) if active.any() else float("nan"),
        memory_share=_median(memory),
        power_w=_median(power),
    )


def find_period(values: Floats) -> float:
    """Return the number of steps after which values repeat best; NaN if they do not."""
    known = ~np.isnan(values)
    if known.sum() < LEAST_STEPS or not known.all():
        return float("nan")
    centred = np.asarray(values, dtype=np.float64) - float(values.mean())
    power = float(centred @ centred)
    if power < _LEAST_POWER:
        return float("nan")
    longest = len(centred) // 2
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(centred))) ** 2
    overlap = len(centred) / (len(centred) - np.arange(longest))
    correlation = np.fft.irfft(spectrum)[:longest] / power * overlap
    # The first peak after the correlation has fallen below zero.
    below = np.flatnonzero(correlation < 0.0)
    if not len(below):
        return float("nan")
    rest = correlation[below[0] :]
    if not len(rest) or rest.max() < _LEAST_CORRELATION:
        return float("nan")
    # Multiples of the period correlate as well: the first that is nearly as good is the period.
    return float(below[0] + np.flatnonzero(rest >= 0.85 * rest.max())[0])


def _median_rows(values: Floats) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step in which no device was measured stays NaN
        return np.asarray(np.nanmedian(values, axis=0))


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")

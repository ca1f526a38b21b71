"""Hourly peaks of each fingerprint, from windows of usage.

The peaks of the running hour are written every minute. After a restart the hour starts again in memory; the store
merges both parts and never lowers a peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.usage.history import UsagePeak

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.usage.window import PodKey, UsageWindow

_HOUR_S: Final = 3600
# Activity is kept in hundredths: enough for a 95th percentile, and small.
_BINS: Final = 100
_P95: Final = 0.95


@dataclass(slots=True)
class _Hour:
    samples: int = 0
    gaps: int = 0
    memory_peak: float = -1.0
    memory_total: float = -1.0
    power_sum: float = 0.0
    power_count: int = 0
    activity: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(_BINS + 1, np.int64))
    activity_sum: float = 0.0


class PeakTracker:
    """Sums up windows by fingerprint and hour."""

    def __init__(self) -> None:
        self._hours: dict[tuple[str, int], _Hour] = {}

    def add_window(self, window: UsageWindow, fingerprints: Mapping[PodKey, str]) -> None:
        """Take in a window whose steps were not taken in before. Devices with several pods are not attributed."""
        hours = ((window.ends_s - window.step_s / 2) // _HOUR_S * _HOUR_S).astype(np.int64)
        for row, device in enumerate(window.devices):
            pod = device.key.pod
            key = fingerprints.get(pod) if pod is not None and device.sharers <= 1 else None
            if key is None:
                continue
            for hour in np.unique(hours):
                self._add(key, int(hour), window, row, hours == hour)

    def _add(
        self,
        fingerprint: str,
        hour_s: int,
        window: UsageWindow,
        row: int,
        steps: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        hour = self._hours.setdefault((fingerprint, hour_s), _Hour())
        activity = window.activity[row, steps]
        known = activity[~np.isnan(activity)]
        hour.samples += known.size
        hour.gaps += activity.size - known.size
        hour.activity += np.bincount((np.clip(known, 0, 1) * _BINS).astype(np.int64), minlength=_BINS + 1)
        hour.activity_sum += float(known.sum())
        hour.memory_peak = max(hour.memory_peak, _highest(window.memory_used_mib[row, steps]))
        hour.memory_total = max(hour.memory_total, _highest(window.memory_total_mib[row, steps]))
        power = window.power_w[row, steps]
        hour.power_sum += float(np.nansum(power))
        hour.power_count += int((~np.isnan(power)).sum())

    def collect(self, now_s: float) -> list[UsagePeak]:
        """Return the peaks of all hours, and forget hours that are over."""
        peaks = [_make_peak(key, hour_s, hour) for (key, hour_s), hour in self._hours.items()]
        # One more hour: late windows may still end in it.
        self._hours = {key: hour for key, hour in self._hours.items() if key[1] + 2 * _HOUR_S > now_s}
        return peaks


def _highest(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else -1.0


def _make_peak(fingerprint: str, hour_s: int, hour: _Hour) -> UsagePeak:
    return UsagePeak(
        fingerprint=fingerprint,
        hour_s=hour_s,
        samples=hour.samples,
        gaps=hour.gaps,
        memory_peak_mib=hour.memory_peak if hour.memory_peak >= 0 else None,
        memory_total_mib=hour.memory_total if hour.memory_total >= 0 else None,
        activity_mean=hour.activity_sum / hour.samples if hour.samples else None,
        activity_p95=_find_p95(hour) if hour.samples else None,
        power_mean_w=hour.power_sum / hour.power_count if hour.power_count else None,
    )


def _find_p95(hour: _Hour) -> float:
    reached = np.cumsum(hour.activity) >= _P95 * hour.samples
    return float(np.argmax(reached)) / _BINS

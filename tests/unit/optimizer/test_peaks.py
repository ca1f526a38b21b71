"""Hourly peaks of fingerprints."""

import numpy as np
import pytest

from kgwe.apps.optimizer.history.peaks import PeakTracker
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window

POD = PodKey("ml", "train-0")
HOUR_S = 1793527200


def _window(values, *, start_s=HOUR_S, sharers=1, memory=1000.0):
    device = Device(DeviceKey("n1", "GPU-1", pod=POD), sharers=sharers)
    window = make_window(start_s, 60.0, len(values), (device,))
    window.activity[0] = values
    window.memory_used_mib[0] = np.where(np.isnan(window.activity[0]), np.nan, memory)
    window.memory_total_mib[0] = 80_000
    window.power_w[0] = 300
    return window


def test_peaks_count_samples_and_gaps():
    tracker = PeakTracker()
    tracker.add_window(_window([0.5, np.nan, 0.7]), {POD: "f"})
    (peak,) = tracker.collect(HOUR_S + 300)
    assert (peak.fingerprint, peak.hour_s, peak.samples, peak.gaps) == ("f", HOUR_S, 2, 1)
    assert peak.memory_peak_mib == 1000
    assert peak.power_mean_w == 300
    assert peak.activity_mean == pytest.approx(0.6)


def test_a_window_over_the_hour_belongs_to_both():
    tracker = PeakTracker()
    tracker.add_window(_window([0.1, 0.9], start_s=HOUR_S + 3540), {POD: "f"})
    peaks = tracker.collect(HOUR_S + 3700)
    assert {peak.hour_s: round(peak.activity_mean or 0.0, 1) for peak in peaks} == {HOUR_S: 0.1, HOUR_S + 3600: 0.9}


def test_unknown_stays_unknown():
    tracker = PeakTracker()
    tracker.add_window(_window([np.nan, np.nan]), {POD: "f"})
    (peak,) = tracker.collect(HOUR_S)
    assert (peak.memory_peak_mib, peak.activity_mean, peak.activity_p95) == (None, None, None)


def test_shared_devices_and_unknown_pods_are_not_attributed():
    tracker = PeakTracker()
    tracker.add_window(_window([0.5], sharers=4), {POD: "f"})
    tracker.add_window(_window([0.5]), {})
    assert tracker.collect(HOUR_S) == []


def test_hours_that_are_over_are_forgotten_after_they_were_collected():
    tracker = PeakTracker()
    tracker.add_window(_window([0.5]), {POD: "f"})
    assert len(tracker.collect(HOUR_S + 3 * 3600)) == 1
    assert tracker.collect(HOUR_S + 3 * 3600) == []

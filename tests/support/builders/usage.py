"""Fingerprints, runs, hours and windows of usage, with as few words as a test needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kgwe.model.usage.fingerprint import Fingerprint, Shape, make_fingerprint
from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak
from kgwe.model.usage.window import QUANTITIES, Device, DeviceKey, PodKey, UsageWindow, make_window

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A full hour in November 2026.
NOON_S = 1_795_003_200
DAY_S = 86_400


def fingerprint(name: str = "train", image: str = "example.com/train:1", gpus: int = 1, **more: Any) -> Fingerprint:
    fields: dict[str, Any] = {"namespace": "team", "owner_kind": "Job", "shape": Shape(1, 1000 * gpus)} | more
    return make_fingerprint(owner_name=name, image=image, **fields)


def run(uid: str = "run-1", of: str = "f" * 32, started_s: float = NOON_S, lasted_s: float = 60, **more: Any) -> Run:
    """A run that ended; with `ended_s=None` one that still runs."""
    fields: dict[str, Any] = {"submitted_s": started_s, "started_s": started_s, "ended_s": started_s + lasted_s} | more
    return Run(uid, of, **fields)


def peak(of: str = "f" * 32, hour_s: int = NOON_S, memory_mib: float | None = 1000, **more: Any) -> UsagePeak:
    fields: dict[str, Any] = {
        "samples": 60,
        "gaps": 0,
        "memory_total_mib": 81559.0,
        "activity_mean": 0.5,
        "activity_p95": 0.9,
        "power_mean_w": 300.0,
    }
    return UsagePeak(of, hour_s, memory_peak_mib=memory_mib, **(fields | more))


def out_of_memory(of: str = "f" * 32, at_s: float = NOON_S, uid: str = "pod-1", **more: Any) -> OutOfMemory:
    return OutOfMemory(of, at_s, uid, **more)


def device(pod: str | None = "train-0", number: int = 0, **more: Any) -> Device:
    held_by = None if pod is None else PodKey("team", pod)
    return Device(DeviceKey("node-1", f"GPU-{number}", "", held_by, "main" if pod else ""), "H100", **more)


def window(
    devices: Sequence[Device] = (), start_s: float = NOON_S, step_s: float = 60, steps: int = 3, value: float = 0.5
) -> UsageWindow:
    """A window in which every quantity of every device has one value."""
    made = make_window(start_s, step_s, steps, tuple(devices) or (device(),))
    for name in QUANTITIES:
        getattr(made, name)[:] = value
    return made


def same_windows(left: UsageWindow, right: UsageWindow) -> bool:
    return (left.start_s, left.step_s, left.devices) == (right.start_s, right.step_s, right.devices) and all(
        np.array_equal(getattr(left, name), getattr(right, name), equal_nan=True) for name in QUANTITIES
    )

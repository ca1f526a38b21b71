"""States of published usage: GPU duty cycle and memory of serving containers (Alibaba, ~143 containers over a day)."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.forecast.waste import states
from kgwe.model.usage.window import Device, DeviceKey, PodKey, UsageWindow, make_window

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.forecast.waste.rules import Rules

DUTY_FILE: Final = "history/pod_gpu_duty_cycle.csv.gz"
MEMORY_FILE: Final = "history/pod_gpu_memory_used_bytes.csv.gz"
_STEP_S: Final = 60.0
_STRIDE_S: Final = 600.0
_MIB: Final = 1 << 20

_Points = list[tuple[str, float, float]]


def judge_published(folder: Path, rules: Rules) -> dict[str, Any]:
    """Return the share of each state over all containers and windows, and of unknown windows by reason."""
    duty = _read_points(folder / DUTY_FILE)
    memory = _read_points(folder / MEMORY_FILE) if (folder / MEMORY_FILE).is_file() else []
    window = _make_window(duty, memory)
    first_s = np.array([_first(window, row) for row in range(len(window.devices))])
    found, reasons = Counter[str](), Counter[str]()
    steps, stride = rules.count_steps(_STEP_S), round(_STRIDE_S / _STEP_S)
    for end in range(steps, window.steps + 1, stride):
        part = _cut(window, end - steps, end)
        judged = states.judge_devices(part, first_s, rules)
        found.update(str(states.STATES[code]) for code in judged.state.tolist())
        reasons.update(str(states.REASONS[code]) for code in judged.reason.tolist())
    total = found.total() or 1
    known = total - found[str(states.State.UNKNOWN)] or 1
    return {
        "published": {"containers": len(window.devices), "windows": total},
        "published_states": {
            "of_all": {state: round(count / total, 4) for state, count in found.most_common()},
            "of_known": {
                str(state): round(found[str(state)] / known, 4)
                for state in states.STATES
                if state is not states.State.UNKNOWN
            },
        },
        "published_unknown": {reason: count for reason, count in reasons.most_common() if reason != "Measured"},
    }


def _read_points(path: Path) -> _Points:
    """Return (container, time, value) of a file."""
    if not path.is_file():
        raise errors.NotFound(f"{path} is absent; name the folder of the published data with --data or KGWE_DATA")
    with gzip.open(path, "rt", newline="") as lines:
        return [
            (row["container_ip"], float(row["timestamp_anon"]), float(row["value"])) for row in csv.DictReader(lines)
        ]


def _make_window(duty: _Points, memory: _Points) -> UsageWindow:
    names = sorted({name for name, _, _ in duty})
    start_s = min(at_s for _, at_s, _ in duty) - _STEP_S
    steps = round((max(at_s for _, at_s, _ in duty) - start_s) / _STEP_S)
    devices = tuple(Device(DeviceKey("published", name, "", PodKey("published", name))) for name in names)
    window = make_window(start_s, _STEP_S, steps, devices)
    rows = {name: row for row, name in enumerate(names)}
    _fill(window.activity, duty, rows, start_s, 0.01)
    _fill(window.memory_used_mib, memory, rows, start_s, 1 / _MIB)
    return window


def _fill(array: NDArray[np.float32], points: _Points, rows: dict[str, int], start_s: float, scale: float) -> None:
    for name, at_s, value in points:
        column = round((at_s - start_s) / _STEP_S) - 1
        if name in rows and 0 <= column < array.shape[1]:
            array[rows[name], column] = value * scale


def _first(window: UsageWindow, row: int) -> float:
    """Return when a container is first seen: it started then or before."""
    known = np.flatnonzero(~np.isnan(window.activity[row]))
    return float(window.start_s + window.step_s * known[0]) if known.size else float("nan")


def _cut(window: UsageWindow, begin: int, end: int) -> UsageWindow:
    part = make_window(window.start_s + begin * window.step_s, window.step_s, end - begin, window.devices)
    part.activity[:] = window.activity[:, begin:end]
    part.memory_used_mib[:] = window.memory_used_mib[:, begin:end]
    return part

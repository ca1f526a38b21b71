"""The use of GPUs by node: what is not measured is not known."""

from __future__ import annotations

import asyncio

import numpy as np

from kgwe.apps.autoscaler.gpu_use import GpuUse, average_by_node
from kgwe.model.usage.window import Device, DeviceKey, UsageWindow, make_window


def make(*rows: tuple[str, list[float]]) -> UsageWindow:
    devices = tuple(Device(DeviceKey(node, f"GPU-{number}")) for number, (node, _) in enumerate(rows))
    window = make_window(0.0, 60.0, 4, devices)
    window.activity[:] = np.array([row for _, row in rows], dtype=np.float32)
    return window


def test_a_node_is_known_if_all_its_devices_are() -> None:
    nan = float("nan")
    window = make(("a", [0.1] * 4), ("a", [0.3] * 4), ("b", [0.1] * 4), ("b", [nan, nan, nan, 0.0]), ("c", [nan] * 4))
    found = average_by_node(window)
    assert set(found) == {"a"}
    assert abs(found["a"] - 0.2) < 1e-6


class _Source:
    async def read_window(self, *_: float) -> UsageWindow:
        return make(("a", [0.1] * 4))

    def problem(self) -> str | None:
        return None

    async def close(self) -> None:
        return None


def test_what_is_old_is_not_known_any_more() -> None:
    now = [1000.0]
    use = GpuUse(_Source(), 60.0, lambda: now[0])
    assert use.by_node() == {}
    asyncio.run(use.read())
    assert set(use.by_node()) == {"a"}
    now[0] += 121
    assert use.by_node() == {}
    assert GpuUse(None, 60.0).by_node() == {}

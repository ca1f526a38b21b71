"""Windows of GPU usage for tests of the waste detector: one call per device, then `build`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.forecast.waste.verdicts import PodFacts
from kgwe.model.usage.window import QUANTITIES, Device, DeviceKey, PodKey, make_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.usage.window import UsageWindow

H100 = "NVIDIA H100 80GB HBM3"
STEPS = 20
STEP_S = 30.0
START_S = 1_700_000_000.0
END_S = START_S + STEPS * STEP_S
LONG_AGO_S = START_S - 86_400.0


def pod_key(name: str) -> PodKey:
    return PodKey("team", name)


class WindowBuilder:
    """Collects devices and the pods that hold them."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self.pods: dict[PodKey, PodFacts] = {}
        self._devices: list[Device] = []
        self._values: list[dict[str, object]] = []

    def add(
        self,
        pod: str,
        activity: float | Sequence[float],
        *,
        uuid: str = "",
        node: str = "n1",
        instance: str = "",
        container: str = "main",
        model: str = H100,
        profile: str = "",
        sharers: int = 1,
        started_s: float | None = LONG_AGO_S,
        gang: str = "",
        devices: int | None = None,
        **values: float | Sequence[float],
    ) -> WindowBuilder:
        """Add a device with its activity. Other quantities are by name; memory and power are those of an idle GPU."""
        key = pod_key(pod)
        uuid = uuid or f"GPU-{len(self._devices)}"
        self._devices.append(Device(DeviceKey(node, uuid, instance, key, container), model, profile, sharers))
        known: dict[str, object] = {"memory_used_mib": 500.0, "memory_total_mib": 81_000.0, "power_w": 80.0}
        self._values.append({**known, "activity": activity, **values})
        self.pods[key] = PodFacts(key, started_s, devices, gang)
        return self

    def build(self) -> UsageWindow:
        window = make_window(END_S - self.steps * STEP_S, STEP_S, self.steps, tuple(self._devices))
        for row, values in enumerate(self._values):
            for name in QUANTITIES:
                if name in values:
                    getattr(window, name)[row, :] = np.asarray(values[name], dtype=np.float32)
        return window

"""What the devices of all pods did in a window of time, as arrays. NaN is unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


class PodKey(NamedTuple):
    """A pod. Metrics carry no uid, so a pod that is created again with the same name has the same key."""

    namespace: str
    name: str


class DeviceKey(NamedTuple):
    """A device that a pod holds, or that no pod holds (`pod` is None)."""

    node: str
    uuid: str
    """Of the GPU."""
    instance: str = ""
    """GPU instance id of a MIG slice; empty for a whole GPU."""
    pod: PodKey | None = None
    container: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A row of a window: a device and the pod that holds it."""

    key: DeviceKey
    model: str = ""
    """Product name, such as `NVIDIA H100 80GB HBM3`; empty if the exporter does not say."""
    mig_profile: str = ""
    """Such as `3g.40gb`; empty for a whole GPU."""
    sharers: int = 1
    """Pods on this device in the window. With more than one, device metrics are not those of one pod."""


@dataclass(frozen=True, slots=True, eq=False)
class UsageWindow:
    """Usage of devices in steps of equal length. Row i of every array is `devices[i]`; column j ends at `ends_s[j]`.

    A step without a sample is NaN. A source that cannot measure a quantity leaves its whole array NaN.
    """

    start_s: float
    """Unix time at which the first step begins."""
    step_s: float
    devices: tuple[Device, ...]
    activity: Floats
    """Share of time in which the compute engine was active, 0..1: GR_ENGINE_ACTIVE; GPU_UTIL of whole GPUs without it.
    """
    tensor: Floats
    """Share of cycles in which the tensor pipe was active, 0..1."""
    dram: Floats
    """Share of cycles in which the memory interface was active, 0..1."""
    memory_used_mib: Floats
    memory_total_mib: Floats
    power_w: Floats
    """Of the whole GPU, also for a MIG slice."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Samples that were skipped: reason -> count (`nan`, `negative`, `out_of_range`, `out_of_order`, `duplicate`)."""

    @property
    def steps(self) -> int:
        return int(self.activity.shape[1])

    @property
    def ends_s(self) -> NDArray[np.float64]:
        """Return the end of each step in Unix time."""
        return np.asarray(self.start_s + self.step_s * np.arange(1, self.steps + 1), dtype=np.float64)

    def find_rows(self, pod: PodKey) -> list[int]:
        """Return the rows of the devices that a pod holds."""
        return [row for row, device in enumerate(self.devices) if device.key.pod == pod]


#: The arrays of a window.
QUANTITIES: Final = ("activity", "tensor", "dram", "memory_used_mib", "memory_total_mib", "power_w")


def make_window(start_s: float, step_s: float, steps: int, devices: tuple[Device, ...]) -> UsageWindow:
    """Return a window in which everything is unknown."""
    shape = (len(devices), steps)
    activity, tensor, dram, used, total, power = (np.full(shape, np.nan, dtype=np.float32) for _ in QUANTITIES)
    return UsageWindow(start_s, step_s, devices, activity, tensor, dram, used, total, power)

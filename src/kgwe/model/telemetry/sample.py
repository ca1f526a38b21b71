"""Samples: all values measured on a machine at one time. None means unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.model.gpu.driver_data import Device, Instance, Reading
    from kgwe.model.telemetry.attribution import Memory, TimeShares
    from kgwe.model.telemetry.window import Aggregate

#: What work runs on: (uuid of the GPU, GPU instance id of the MIG instance or None for the whole GPU).
Unit = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a unit's hardware, each a share of time or cycles from 0 to 1. Only DCGM measures it."""

    engine: float | None = None
    """Time any of the compute or graphics engine is active: the only measure of use on MIG."""
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per second."""

    tx: float | None = None
    rx: float | None = None


@dataclass(frozen=True, slots=True)
class InstanceSample:
    """One MIG instance."""

    instance: Instance
    shares: TimeShares
    """Of the instance."""
    activity: Activity = Activity()
    memory_used_mib: int | None = None
    memory: Memory | None = None
    in_use: bool | None = None
    """Whether a pod holds it or a process runs on it."""

    @property
    def util(self) -> float | None:
        """Activity of the engines, because the driver does not measure the utilization of an instance."""
        return self.activity.engine


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU."""

    device: Device
    reading: Reading
    shares: TimeShares
    """Of the whole GPU, also where it is cut."""
    activity: Activity = Activity()
    memory: Memory | None = None
    nvlink: Traffic = Traffic()
    peers: Mapping[str, Traffic] = field(default_factory=dict)
    """uuid -> traffic over direct links to that GPU; unknown behind a switch."""
    instances: tuple[InstanceSample, ...] = ()

    @property
    def util(self) -> float | None:
        """The driver's figure, else DCGM's; none where the GPU is cut: then its instances have theirs."""
        if self.device.mig.is_enabled:
            return None
        return self.reading.util if self.reading.util is not None else self.activity.engine


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine."""

    at_s: float
    """Of the clock that measures intervals."""
    gpus: tuple[GpuSample, ...] = ()


class Series(NamedTuple):
    """The identity of a series in a window."""

    uuid: str
    """Of the GPU, or of the MIG instance."""
    name: str
    pod: str = ""
    """Empty: the device as a whole."""


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """The readings of all devices of a node at one time."""

    unix_ms: int
    readings: Sequence[Reading]
    series: Mapping[Series, float | None] = field(default_factory=dict)
    """Values that are aggregated over time; None where a value was not measured."""
    aggregates: Mapping[Series, Aggregate] = field(default_factory=dict)
    """Over the samples since the last message to this watcher, if it asked for aggregates."""

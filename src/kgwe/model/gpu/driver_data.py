"""What a driver says of the GPUs of one machine. None, or an empty text, is always "not known", never zero.

Three kinds of fact that change at different speeds:

    Machine   what is built in and how it is cut: read at start, after a cut, and now and then
    Reading   instruments of one GPU: every few seconds
    Event     something went wrong: as it happens
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.model.gpu.catalog import Architecture
    from kgwe.model.gpu.topology import Nic, Relation, Slot


# --- what is built in -----------------------------------------------------------------------------------


class Remote(enum.StrEnum):
    """What is at the other end of an NVLink."""

    GPU = "GPU"
    SWITCH = "Switch"
    OTHER = "Other"
    """A CPU that speaks NVLink, a bridge."""
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink of a GPU."""

    index: int
    is_up: bool | None
    version: int | None = None
    remote: Remote = Remote.UNKNOWN
    remote_bus: str = ""
    """PCI bus id of the other end, in the long form of `wiring.Slot.bus`."""
    gb_per_s: float | None = None
    """One direction."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: a GPU instance with one compute instance that fills it."""

    uuid: str
    """`MIG-…`; empty while it has no compute instance, and so cannot be used."""
    instance_id: int
    profile: str
    start: int
    size: int
    memory_mib: int
    is_busy: bool | None = None
    """Whether a process runs on it."""


@dataclass(frozen=True, slots=True)
class MigState:
    is_capable: bool = False
    is_enabled: bool = False
    is_pending: bool = False
    """The mode that was asked for is not the mode that is on: the GPU must be reset first."""
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink domain that reaches beyond the machine."""

    cluster_uuid: str
    clique_id: int


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    uuid: str
    index: int
    product: str
    memory_mib: int | None
    slot: Slot
    minor: int | None = None
    """The number in /dev/nvidia<minor>."""
    architecture: Architecture | None = None
    compute_capability: tuple[int, int] | None = None
    links: tuple[Link, ...] = ()
    mig: MigState = MigState()
    fabric: Fabric | None = None
    is_lost: bool = False
    """It has fallen off the bus: nothing more can be read of it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of one machine."""

    driver_version: str
    cuda_version: str
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    seen: tuple[tuple[Relation, ...], ...] = ()
    """Per pair of devices, the PCIe path the driver reports."""
    peer_access: tuple[tuple[bool | None, ...], ...] = ()
    """Per pair of devices, whether one can read the other's memory."""


# --- instruments ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU or on one of its instances."""

    pid: int
    memory_mib: int | None = None
    util: float | None = None
    """Share of the time its kernels ran, 0..1; not known on MIG instances."""
    instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class LinkErrors:
    """Since the driver was loaded."""

    index: int
    replays: int | None = None
    recoveries: int | None = None
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Faults:
    """Counters of things that went wrong, since the driver was loaded unless said otherwise."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    """Over the life of the GPU."""
    is_retirement_pending: bool | None = None
    rows_remapped: int | None = None
    """For uncorrectable errors, over the life of the GPU."""
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    pcie_replays: int | None = None
    links: tuple[LinkErrors, ...] = ()


class Throttle(enum.Flag):
    """Why clocks are lower than they could be."""

    NONE = 0
    IDLE = enum.auto()
    POWER_CAP = enum.auto()
    THERMAL_SOFTWARE = enum.auto()
    THERMAL_HARDWARE = enum.auto()
    POWER_BRAKE = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Reading:
    """The instruments of one GPU."""

    uuid: str
    util: float | None = None
    """Share of the time any kernel ran, 0..1; not measured where the GPU is cut."""
    memory_util: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    gpu_c: int | None = None
    memory_c: int | None = None
    slowdown_c: int | None = None
    """Where the hardware begins to slow itself down."""
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle: Throttle | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes: tuple[tuple[int, int], ...] = ()
    """(link, bytes sent since the driver was loaded)."""
    nvlink_rx_bytes: tuple[tuple[int, int], ...] = ()
    instance_memory_mib: tuple[tuple[int, int], ...] = ()
    """(instance id, memory in use)."""
    processes: tuple[Process, ...] = ()
    faults: Faults = Faults()
    is_lost: bool = False


# --- what happens ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """An XID error, as the driver reports it."""

    uuid: str
    """Empty: the driver could not say which GPU."""
    xid: int
    instance_id: int | None = None

"""GPU metrics in dcgm-exporter's format, compatible with its dashboards and alerts.

Names, types, help texts and labels are those of dcgm-exporter 4. One row is one GPU, or one MIG instance of a
partitioned GPU. Rows of instances repeat the device's clocks, temperature, power and XID, and have their own memory
and activity. DCGM_FI_DEV_GPU_UTIL is 0 there, because the driver does not measure it. A field that a device does not
have is absent, not zero.

A fleet has tens of thousands of rows with some thirty fields. The labels of a row are built once and kept; rendering
only joins them with a name and a number.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.gpu.catalog import GpuModel
    from kgwe.model.simfleet.sensors import Sensors
    from kgwe.model.simfleet.usage import Usage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Field(enum.Enum):
    """A metric: its name, Prometheus type and help text. Rows have their values in this order."""

    SM_CLOCK = ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).")
    MEM_CLOCK = ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).")
    MEMORY_TEMP = ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).")
    GPU_TEMP = ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).")
    POWER_USAGE = ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).")
    ENERGY = ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).")
    PCIE_REPLAY = ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.")
    GPU_UTIL = ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).")
    MEM_COPY_UTIL = ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).")
    ENC_UTIL = ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).")
    DEC_UTIL = ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).")
    XID_ERRORS = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.")
    FB_FREE = ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
    FB_USED = ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).")
    FB_RESERVED = ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).")
    ECC_SBE = ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.")
    ECC_DBE = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.")
    UNCORRECTABLE_ROWS = (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for uncorrectable errors",
    )
    CORRECTABLE_ROWS = (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for correctable errors",
    )
    ROW_REMAP_FAILURE = ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed")
    NVLINK = (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "counter",
        "Total number of NVLink bandwidth counters for all lanes.",
    )
    GR_ENGINE_ACTIVE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.")
    SM_ACTIVE = ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.")
    TENSOR_ACTIVE = (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
    )
    DRAM_ACTIVE = (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
    )
    PCIE_TX = (
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        (
            "The rate of data transmitted over the PCIe bus"
            " - including both protocol headers and data payloads - in bytes per second."
        ),
    )
    PCIE_RX = (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        (
            "The rate of data received over the PCIe bus"
            " - including both protocol headers and data payloads - in bytes per second."
        ),
    )


Number = int | float
#: A row's values in the order of Field; None if the device has no such value.
Values = tuple[Number | None, ...]
#: The labels of a row (`{gpu="0",…} `) and its values.
Row = tuple[str, Values]


@dataclass(frozen=True, slots=True)
class Device:
    """The labels that identify a row."""

    index: int
    uuid: str
    bus_id: str
    model_name: str
    hostname: str
    driver_version: str
    mig_profile: str = ""
    mig_instance: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """Values that only grow."""

    energy_mj: int = 0
    nvlink_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """Errors that the driver has reported."""

    last_xid: int = 0

    @property
    def double_bit_errors(self) -> int:
        return int(self.last_xid in _DOUBLE_BIT_XIDS)

    @property
    def remapped_rows(self) -> int:
        return int(self.last_xid in _REMAP_XIDS)

    @property
    def remap_failed(self) -> int:
        return int(self.last_xid == _REMAP_FAILURE_XID)


# https://docs.nvidia.com/deploy/xid-errors: 48 double-bit error, 94/95 contained/uncontained memory error, 63 row
# remapped, 64 row remapping failed.
_DOUBLE_BIT_XIDS: Final = frozenset({48, 94, 95})
_REMAP_XIDS: Final = frozenset({63, 94})
_REMAP_FAILURE_XID: Final = 64


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that holds a device."""

    namespace: str
    pod: str
    container: str


def label_block(device: Device, owner: Owner | None = None) -> str:
    """Return `{gpu="0",UUID="GPU-…",…} `, the text between a metric name and its value."""
    labels = [
        ("gpu", str(device.index)),
        ("UUID", device.uuid),
        ("pci_bus_id", device.bus_id),
        ("device", f"nvidia{device.index}"),
        ("modelName", device.model_name),
    ]
    if device.mig_profile:
        labels += [("GPU_I_PROFILE", device.mig_profile), ("GPU_I_ID", str(device.mig_instance))]
    labels += [("Hostname", device.hostname), ("DCGM_FI_DRIVER_VERSION", device.driver_version)]
    if owner is not None:
        labels += [("container", owner.container), ("namespace", owner.namespace), ("pod", owner.pod)]
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "} "


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU at one moment, for all rows about it."""

    model: GpuModel
    sensors: Sensors
    counters: Counters
    faults: Faults
    has_nvlink: bool


def read_gpu_values(card: Reading, use: Usage) -> Values:
    """Return the row of a whole GPU."""
    total, reserved = card.model.memory_mib, card.model.reserved_mib
    used = round((total - reserved) * use.memory)
    return (
        *_device_part(card),
        round(use.util * 100),
        round(use.dram * 100),
        0,
        0,
        card.faults.last_xid,
        total - reserved - used,
        used,
        reserved,
        *_health_part(card),
        *_activity_part(card, use),
    )


def read_instance_values(card: Reading, use: Usage, memory_mib: int) -> Values:
    """Return the row of a MIG instance with its own usage and memory on `card`."""
    used = round(memory_mib * use.memory)
    return (
        *_device_part(card),
        0,  # the driver does not measure utilization of an instance
        0,
        0,
        0,
        card.faults.last_xid,
        memory_mib - used,
        used,
        0,
        *_health_part(card),
        *_activity_part(card, use),
    )


def _device_part(card: Reading) -> Values:
    read = card.sensors
    return (
        read.sm_mhz,
        card.model.memory_mhz,
        read.memory_c,
        read.gpu_c,
        read.power_w,
        card.counters.energy_mj,
        0,
    )


def _health_part(card: Reading) -> Values:
    faults = card.faults
    nvlink = card.counters.nvlink_bytes if card.has_nvlink else None
    return (0, faults.double_bit_errors, faults.remapped_rows, 0, faults.remap_failed, nvlink)


def _activity_part(card: Reading, use: Usage) -> Values:
    return (
        round(use.util, 6),
        round(use.util * 0.95, 6),
        round(use.tensor, 6),
        round(use.dram, 6),
        card.sensors.pcie_tx_bytes_per_s,
        card.sensors.pcie_rx_bytes_per_s,
    )


def render_metrics(rows: Sequence[Row]) -> bytes:
    """Return the exposition of all rows, grouped by metric as the format requires."""
    out: list[str] = []
    columns = zip(*(values for _, values in rows), strict=True)
    for field, column in zip(Field, columns, strict=False):  # no rows, no columns
        name, kind, text = field.value
        here = [(labels, value) for (labels, _), value in zip(rows, column, strict=True) if value is not None]
        if here:
            out.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            # Join pieces instead of lines: one join halves the work.
            out += itertools.chain.from_iterable((name, labels, str(value), "\n") for labels, value in here)
    return "".join(out).encode()


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""The memory of the simulated hardware: the layout that `c/state.h` declares, for ctypes.

The fields are described there. A size or offset that differs is detected when a library is opened.
"""

from __future__ import annotations

import ctypes as c
from typing import Final

MAGIC: Final = 0x6B67776567707573
VERSION: Final = 1
MAX_GPUS: Final = 16
MAX_LINKS: Final = 36
MAX_PROFILES: Final = 18
MAX_STARTS: Final = 12
MAX_GPU_INSTANCES: Final = 12
MAX_COMPUTE_INSTANCES: Final = 8
MAX_PROCESSES: Final = 64
MAX_EVENTS: Final = 256
MAX_FAULTS: Final = 32
MAX_CLIENTS: Final = 32
CPU_WORDS: Final = 16
LINK_ERRORS: Final = 5
NO_INSTANCE: Final = 0xFFFFFFFF


class Profile(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("used", "id", "compute", "units", "limit", "media", "starts_count")),
        ("starts", c.c_uint32 * MAX_STARTS),
        ("memory_mib", c.c_uint64),
        ("name", c.c_char * 96),
    )


class ComputeInstance(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("used", "id", "slices", "serial")),
        ("uuid", c.c_char * 48),
    )


class GpuInstance(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("used", "id", "profile", "start", "serial", "spare")),
        ("compute", ComputeInstance * MAX_COMPUTE_INSTANCES),
    )


class Link(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("present", "up", "version", "remote_type", "speed_mbps", "spare")),
        ("remote_bus", c.c_char * 32),
        ("errors", c.c_uint64 * LINK_ERRORS),
        ("tx_kib", c.c_uint64),
        ("rx_kib", c.c_uint64),
    )


class Process(c.Structure):
    _fields_ = (
        *(
            (name, c.c_uint32)
            for name in ("used", "pid", "kind", "gpu_instance", "compute_instance", "sm_util", "memory_util", "spare")
        ),
        ("memory", c.c_uint64),
    )


class Gpu(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("lost", "minor", "architecture", "major_capability", "minor_capability")),
        ("numa", c.c_int32),
        ("uuid", c.c_char * 48),
        ("name", c.c_char * 96),
        ("serial", c.c_char * 32),
        ("bus", c.c_char * 32),
        ("cpus", c.c_uint64 * CPU_WORDS),
        *((name, c.c_uint32) for name in ("mig_capable", "mig_mode", "mig_pending", "mode_needs_reset")),
        ("instances", GpuInstance * MAX_GPU_INSTANCES),
        ("fabric_state", c.c_uint32),
        ("clique", c.c_uint32),
        ("cluster", c.c_uint8 * 16),
        ("links", Link * MAX_LINKS),
        *((name, c.c_uint64) for name in ("memory_total", "memory_reserved", "memory_other")),
        *((name, c.c_uint32) for name in ("memory_v1_missing", "util", "memory_util", "power_mw", "power_limit_mw")),
        *((name, c.c_int32) for name in ("gpu_c", "memory_c", "slowdown_c")),
        *((name, c.c_uint32) for name in ("sm_mhz", "memory_mhz", "pcie_tx_kb", "pcie_rx_kb")),
        ("throttle", c.c_uint64),
        ("energy_mj", c.c_uint64),
        *(
            (name, c.c_uint32)
            for name in (
                "ecc_supported",
                "pages_supported",
                "rows_supported",
                "pages_pending",
                "rows_pending",
                "rows_failed",
                "pcie_replays",
                "spare",
            )
        ),
        ("ecc_corrected", c.c_uint64),
        ("ecc_uncorrected", c.c_uint64),
        ("pages", c.c_uint64 * 2),
        ("rows_corrected", c.c_uint64),
        ("rows_uncorrected", c.c_uint64),
        ("processes", Process * MAX_PROCESSES),
    )


class Event(c.Structure):
    _fields_ = (
        ("type", c.c_uint64),
        ("data", c.c_uint64),
        *((name, c.c_uint32) for name in ("gpu", "gpu_instance", "compute_instance", "spare")),
    )


class Fault(c.Structure):
    _fields_ = (
        ("used", c.c_uint32),
        ("gpu", c.c_int32),
        ("code", c.c_int32),
        ("delay_ms", c.c_uint32),
        ("skip", c.c_uint32),
        ("remaining", c.c_int32),
        ("function", c.c_char * 64),
    )


class State(c.Structure):
    _fields_ = (
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("size", c.c_uint32),
        ("lock", c.c_uint64 * 8),
        *(
            (name, c.c_uint32)
            for name in ("gpu_count", "units", "compute", "serial", "faulty", "wakeups", "cuda_version", "spare")
        ),
        ("driver_version", c.c_char * 80),
        ("clients", c.c_uint32 * MAX_CLIENTS),
        ("ancestors", (c.c_uint32 * MAX_GPUS) * MAX_GPUS),
        ("peers", (c.c_uint32 * MAX_GPUS) * MAX_GPUS),
        ("profiles", Profile * MAX_PROFILES),
        ("faults", Fault * MAX_FAULTS),
        ("events_written", c.c_uint64),
        ("events", Event * MAX_EVENTS),
        ("gpus", Gpu * MAX_GPUS),
    )


def list_offsets() -> tuple[int, ...]:
    """Return the values of `kgweOffset` for 0, 1, 2, …."""
    return (
        State.profiles.offset,
        State.faults.offset,
        State.events.offset,
        State.gpus.offset,
        Gpu.links.offset,
        Gpu.processes.offset,
        c.sizeof(Gpu),
    )

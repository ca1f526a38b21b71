"""All metrics of the exporter: name, type, help text, and the source of the value in a sample.

docs/telemetry.md lists the same metrics; a test compares the two. Units are in the names: percent is 0..100, gbps is
10^9 bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.model.telemetry.sample import GpuSample, InstanceSample

Number = int | float
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str
    text: str

    @property
    def header(self) -> str:
        return f"# HELP {self.name} {self.text}\n# TYPE {self.name} {self.kind}\n"


def make_gauge(name: str, text: str) -> Family:
    return Family(name, "gauge", text)


def make_counter(name: str, text: str) -> Family:
    return Family(name, "counter", text)


# --- one value per card ---------------------------------------------------------------------------------


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _hertz(mhz: int | None) -> int | None:
    return None if mhz is None else mhz * 1_000_000


def _total_mib(card: GpuSample) -> int | None:
    said = card.reading.memory_total_mib
    return said if said is not None else card.device.memory_mib


CARD: Final[tuple[tuple[Family, Callable[[GpuSample], Number | None]], ...]] = (
    (
        make_gauge(
            "kgwe_gpu_utilization_percent", "Share of time in which a kernel ran on the GPU; absent if MIG is enabled."
        ),
        lambda card: _percent(card.util),
    ),
    (
        make_gauge("kgwe_gpu_engine_active_percent", "Share of time in which the compute engine was active, by DCGM."),
        lambda card: _percent(card.activity.engine),
    ),
    (
        make_gauge("kgwe_gpu_sm_active_percent", "Share of cycles in which a multiprocessor was active, by DCGM."),
        lambda card: _percent(card.activity.sm),
    ),
    (
        make_gauge("kgwe_gpu_tensor_active_percent", "Share of cycles in which the tensor cores were active, by DCGM."),
        lambda card: _percent(card.activity.tensor),
    ),
    (
        make_gauge(
            "kgwe_gpu_memory_active_percent", "Share of cycles in which the memory interface was active, by DCGM."
        ),
        lambda card: _percent(card.activity.dram),
    ),
    (
        make_gauge("kgwe_gpu_memory_used_bytes", "GPU memory in use."),
        lambda card: _bytes(card.reading.memory_used_mib),
    ),
    (
        make_gauge("kgwe_gpu_memory_total_bytes", "Total GPU memory."),
        lambda card: _bytes(_total_mib(card)),
    ),
    (make_gauge("kgwe_gpu_temperature_celsius", "Temperature of the GPU."), lambda card: card.reading.gpu_c),
    (
        make_gauge("kgwe_gpu_memory_temperature_celsius", "Temperature of the GPU's memory."),
        lambda card: card.reading.memory_c,
    ),
    (make_gauge("kgwe_gpu_power_watts", "Power draw of the GPU."), lambda card: card.reading.power_w),
    (make_gauge("kgwe_gpu_power_limit_watts", "Power limit of the GPU."), lambda card: card.reading.power_limit_w),
    (
        make_counter("kgwe_gpu_energy_joules_total", "Energy used since the driver was loaded."),
        lambda card: card.reading.energy_j,
    ),
    (make_gauge("kgwe_gpu_sm_clock_hertz", "Clock of the multiprocessors."), lambda card: _hertz(card.reading.sm_mhz)),
    (make_gauge("kgwe_gpu_memory_clock_hertz", "Clock of the memory."), lambda card: _hertz(card.reading.memory_mhz)),
    (
        make_counter("kgwe_pcie_replays_total", "PCIe packets retransmitted since the driver was loaded."),
        lambda card: card.reading.faults.pcie_replays,
    ),
)

# --- one value per MIG instance -------------------------------------------------------------------------

INSTANCE: Final[tuple[tuple[Family, Callable[[InstanceSample], Number | None]], ...]] = (
    (
        make_gauge(
            "kgwe_mig_instance_utilization_percent",
            "Share of time in which the compute engine of the MIG instance was active, by DCGM.",
        ),
        lambda each: _percent(each.util),
    ),
    (
        make_gauge(
            "kgwe_mig_instance_tensor_active_percent",
            "Share of cycles in which the tensor cores of the MIG instance were active, by DCGM.",
        ),
        lambda each: _percent(each.activity.tensor),
    ),
    (
        make_gauge("kgwe_mig_instance_memory_used_bytes", "Memory in use of the MIG instance."),
        lambda each: _bytes(each.memory_used_mib),
    ),
    (
        make_gauge("kgwe_mig_instance_memory_total_bytes", "Total memory of the MIG instance."),
        lambda each: _bytes(each.instance.memory_mib),
    ),
    (
        make_gauge("kgwe_mig_instance_in_use", "1 if a pod holds the MIG instance or a process runs on it, else 0."),
        lambda each: None if each.in_use is None else int(each.in_use),
    ),
)

# --- the others, each with labels of its own ------------------------------------------------------------

GPU_COUNT: Final = make_gauge("kgwe_gpu_count", "GPUs of the node.")
HEALTH: Final = make_gauge("kgwe_gpu_health_status", "1 if the GPU is in service, 0 if not; absent if unknown.")
THROTTLED: Final = make_gauge("kgwe_gpu_throttled", "1 for each active reason for reduced clocks.")
ECC: Final = make_counter("kgwe_gpu_ecc_errors_total", "Memory errors since the driver was loaded.")
MIG_COUNT: Final = make_gauge("kgwe_mig_instance_count", "MIG instances of the GPU, by profile.")
MIG_ALLOCATIONS: Final = make_counter(
    "kgwe_mig_allocations_total", "MIG instances that pods or processes started to use."
)
MIG_RELEASES: Final = make_counter("kgwe_mig_releases_total", "MIG instances that are no longer used, or were deleted.")
POD_SHARE: Final = make_gauge("kgwe_gpu_pod_share_percent", "Share of the GPU's time that a pod's processes used.")
POD_MEMORY: Final = make_gauge("kgwe_gpu_pod_memory_bytes", "GPU memory that a pod's processes hold.")
IDLE: Final = make_gauge("kgwe_gpu_idle_percent", "Share of the GPU's time without a running kernel.")
UNATTRIBUTED: Final = make_gauge(
    "kgwe_gpu_unattributed_percent", "Share of the GPU's time used by processes outside known pods."
)
UNMEASURED: Final = make_gauge("kgwe_gpu_unmeasured_percent", "Share of the GPU's time that was not measured.")
UNATTRIBUTED_MEMORY: Final = make_gauge(
    "kgwe_gpu_unattributed_memory_bytes", "GPU memory in use outside known pods, including the driver's."
)
NVLINK_CAPACITY: Final = make_gauge(
    "kgwe_nvlink_bandwidth_gbps", "NVLink capacity between two GPUs in one direction, in Gbit/s; not traffic."
)
NVLINK_TRAFFIC: Final = make_gauge("kgwe_nvlink_traffic_gbps", "Traffic over all NVLinks of the GPU, in Gbit/s.")
NVLINK_PAIR_TRAFFIC: Final = make_gauge(
    "kgwe_nvlink_pair_traffic_gbps", "Traffic from the first GPU to the second over their direct links, in Gbit/s."
)
NVLINK_BYTES: Final = make_counter("kgwe_nvlink_bytes_total", "Bytes over all NVLinks since the driver was loaded.")
NVLINK_LINKS: Final = make_gauge("kgwe_nvlink_links", "NVLinks of the GPU by state.")
NVLINK_ERRORS: Final = make_counter("kgwe_nvlink_errors_total", "NVLink errors since the driver was loaded.")
PCIE_TRAFFIC: Final = make_gauge("kgwe_pcie_bandwidth_gbps", "Traffic over the GPU's PCIe slot, in Gbit/s.")
SAMPLE_AGE: Final = make_gauge("kgwe_exporter_sample_age_seconds", "Age of the newest sample.")

SPECIAL: Final = (
    *(GPU_COUNT, HEALTH, THROTTLED, ECC, MIG_COUNT, MIG_ALLOCATIONS, MIG_RELEASES, POD_SHARE, POD_MEMORY, IDLE),
    *(UNATTRIBUTED, UNMEASURED, UNATTRIBUTED_MEMORY, NVLINK_CAPACITY, NVLINK_TRAFFIC, NVLINK_PAIR_TRAFFIC),
    *(NVLINK_BYTES, NVLINK_LINKS, NVLINK_ERRORS, PCIE_TRAFFIC, SAMPLE_AGE),
)

ALL: Final = (*(family for family, _ in CARD), *(family for family, _ in INSTANCE), *SPECIAL)

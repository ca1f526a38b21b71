"""Readings of a simulated GPU, derived from its usage.

A rough but consistent picture: power rises with activity from idle to the limit, temperature and clocks
follow power. Figures are within what such GPUs show under load; nothing is tuned to a benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kgwe.model.gpu.catalog import GpuModel
    from kgwe.model.simfleet.usage import Usage

_IDLE_C: Final = 31.0
_FULL_C: Final = 72.0
_HBM_ABOVE_CORE_C: Final = 8.0
_IDLE_CLOCK: Final = 0.17
# A kernel on the SMs draws power even when it stalls on memory; tensor cores and DRAM add theirs.
_POWER_OF_UTIL: Final = 0.45
_POWER_OF_TENSOR: Final = 0.7
_POWER_OF_DRAM: Final = 0.3
# Near the power limit clocks give way a little.
_THROTTLE: Final = 0.08
_PCIE_BYTES_PER_S: Final = 24e9
_NVLINK_SHARE: Final = 0.45


@dataclass(frozen=True, slots=True)
class Sensors:
    power_w: float
    gpu_c: int
    memory_c: int
    sm_mhz: int
    pcie_tx_bytes_per_s: int
    pcie_rx_bytes_per_s: int
    nvlink_bytes_per_s: int


def read_sensors(model: GpuModel, use: Usage, *, links: int) -> Sensors:
    """The instruments of a GPU with `links` NVLinks up."""
    load = min(1.0, _POWER_OF_UTIL * use.util + _POWER_OF_TENSOR * use.tensor + _POWER_OF_DRAM * use.dram)
    power_w = model.idle_w + (model.limit_w - model.idle_w) * load
    gpu_c = _IDLE_C + (_FULL_C - _IDLE_C) * load
    clock = 1.0 - _THROTTLE * load if use.util > 0 else _IDLE_CLOCK
    per_link = model.nvlink_gb_per_s * 1e9 / model.nvlink_links if model.nvlink_links else 0.0
    return Sensors(
        power_w=round(power_w, 3),
        gpu_c=round(gpu_c),
        memory_c=round(gpu_c + _HBM_ABOVE_CORE_C) if model.has_memory_temperature else 0,
        sm_mhz=round(model.sm_mhz * clock / 15) * 15,  # clocks come in steps of 15 MHz
        pcie_tx_bytes_per_s=round(_PCIE_BYTES_PER_S * 0.03 * use.util),
        pcie_rx_bytes_per_s=round(_PCIE_BYTES_PER_S * 0.05 * use.util),
        nvlink_bytes_per_s=round(per_link * links * _NVLINK_SHARE * use.tensor),
    )

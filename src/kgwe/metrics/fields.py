"""The measured fields, the exporter families they come from, and the range of valid values. Pure.

A sample that is NaN, negative or out of range is counted and skipped. DCGM writes very large numbers for values that it
does not have; they are out of range here.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kgwe.model.usage.window import Floats


class Field(enum.IntEnum):
    """A column of raw samples."""

    ENGINE = 0
    """Share of time in which the compute engine was active."""
    UTIL = 1
    """Share of time in which a kernel ran. Meaningless for MIG slices and for GPUs that are cut into them."""
    TENSOR = 2
    DRAM = 3
    USED = 4
    """Memory in MiB, like the next three."""
    FREE = 5
    RESERVED = 6
    TOTAL = 7
    POWER = 8


class Family(NamedTuple):
    """Where the samples of an exporter family go."""

    field: Field
    scale: float = 1.0


_PERCENT: Final = 0.01
_BYTE: Final = 1.0 / (1024 * 1024)

DCGM: Final[Mapping[str, Family]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Family(Field.ENGINE),
    "DCGM_FI_DEV_GPU_UTIL": Family(Field.UTIL, _PERCENT),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Family(Field.TENSOR),
    "DCGM_FI_PROF_DRAM_ACTIVE": Family(Field.DRAM),
    "DCGM_FI_DEV_FB_USED": Family(Field.USED),
    "DCGM_FI_DEV_FB_FREE": Family(Field.FREE),
    "DCGM_FI_DEV_FB_RESERVED": Family(Field.RESERVED),
    "DCGM_FI_DEV_FB_TOTAL": Family(Field.TOTAL),
    "DCGM_FI_DEV_POWER_USAGE": Family(Field.POWER),
}
"""Families of dcgm-exporter."""

AGENT: Final[Mapping[str, Family]] = {
    "kgwe_gpu_engine_active_percent": Family(Field.ENGINE, _PERCENT),
    "kgwe_mig_instance_utilization_percent": Family(Field.ENGINE, _PERCENT),
    "kgwe_gpu_pod_share_percent": Family(Field.ENGINE, _PERCENT),
    "kgwe_gpu_utilization_percent": Family(Field.UTIL, _PERCENT),
    "kgwe_gpu_tensor_active_percent": Family(Field.TENSOR, _PERCENT),
    "kgwe_mig_instance_tensor_active_percent": Family(Field.TENSOR, _PERCENT),
    "kgwe_gpu_memory_active_percent": Family(Field.DRAM, _PERCENT),
    "kgwe_gpu_memory_used_bytes": Family(Field.USED, _BYTE),
    "kgwe_mig_instance_memory_used_bytes": Family(Field.USED, _BYTE),
    "kgwe_gpu_pod_memory_bytes": Family(Field.USED, _BYTE),
    "kgwe_gpu_memory_total_bytes": Family(Field.TOTAL, _BYTE),
    "kgwe_mig_instance_memory_total_bytes": Family(Field.TOTAL, _BYTE),
    "kgwe_gpu_power_watts": Family(Field.POWER),
}
"""Families of KGWE's agent."""

FAMILIES: Final[Mapping[str, Family]] = {**DCGM, **AGENT}

# A counter read between two ticks may exceed its whole by a little.
_SHARE_LIMIT: Final = 1.01
_MEMORY_LIMIT_MIB: Final = 4.0 * 1024 * 1024
_POWER_LIMIT_W: Final = 2000.0
_LIMITS: Final = np.array(
    [_SHARE_LIMIT] * 4 + [_MEMORY_LIMIT_MIB] * 4 + [_POWER_LIMIT_W],
    dtype=np.float32,
)
_SHARES: Final = [Field.ENGINE, Field.UTIL, Field.TENSOR, Field.DRAM]

Rejected = dict[str, int]


def reject_bad_samples(values: Floats, present: NDArray[np.bool_]) -> Rejected:
    """Set bad samples to NaN in place, and shares a little above 1 to 1; return reason -> count.

    Columns are fields. `present` marks the cells that have a sample: an absent cell is NaN and not counted.
    """
    return _reject(values, present, _LIMITS[None, :], _SHARES)


def reject_bad_field(field: Field, values: Floats, present: NDArray[np.bool_]) -> Rejected:
    """Do the same for an array that has samples of one field only."""
    return _reject(values, present, np.asarray(_LIMITS[field]), slice(None) if field in _SHARES else None)


def _reject(values: Floats, present: NDArray[np.bool_], limits: Floats, shares: list[Field] | slice | None) -> Rejected:
    nan = present & np.isnan(values)
    negative = values < 0
    large = values > limits
    values[negative | large] = np.nan
    if shares is not None:
        values[..., shares] = np.minimum(values[..., shares], np.float32(1.0))
    counts = {"nan": int(nan.sum()), "negative": int(negative.sum()), "out_of_range": int(large.sum())}
    return {reason: count for reason, count in counts.items() if count}


def compute_totals(values: Floats) -> Floats:
    """Return total memory per sample: as exported, else used + free + reserved. An absent reserved counts as none."""
    used, free, reserved = values[:, Field.USED], values[:, Field.FREE], values[:, Field.RESERVED]
    derived = used + free + np.where(np.isnan(reserved), np.float32(0), reserved)
    exported = values[:, Field.TOTAL]
    return np.where(np.isnan(exported), derived, exported).astype(np.float32)


def merge_rejected(*counts: Mapping[str, int]) -> Rejected:
    """Return the sums by reason."""
    total: Rejected = {}
    for each in counts:
        for reason, count in each.items():
            total[reason] = total.get(reason, 0) + count
    return total

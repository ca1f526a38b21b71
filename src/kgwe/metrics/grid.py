"""From samples to a window: steps, memory totals, and rows that agree with each other. Pure.

A step ends at its time and begins just after the end of the step before. Shares and power of a step are means, used
memory is the highest value, total memory the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.metrics.fields import Field, Rejected, compute_totals
from kgwe.model.usage.window import UsageWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.usage.window import Device, Floats

_MEANS: Final = (Field.ENGINE, Field.UTIL, Field.TENSOR, Field.DRAM, Field.POWER)
#: What a window is made of; FREE and RESERVED are only needed for TOTAL.
WINDOW_FIELDS: Final = (*_MEANS, Field.USED, Field.TOTAL)
# A capacity is rounded in some exporters.
_USED_LIMIT: Final = np.float32(1.01)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a window."""

    start_s: float
    step_s: float
    count: int

    def find_columns(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the step of each time; a negative number or one >= count is outside."""
        return np.ceil((times_s - self.start_s) / self.step_s).astype(np.int64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Raw samples: row numbers, times, and values with fields as columns."""

    rows: NDArray[np.int64]
    times_s: NDArray[np.float64]
    values: Floats


def plan_steps(end_s: float, length_s: float, step_s: float) -> Steps:
    """Return the steps of a window that ends at `end_s`; its length is rounded to whole steps, at least one."""
    step_s = max(step_s, 1.0)
    count = max(round(length_s / step_s), 1)
    return Steps(end_s - count * step_s, step_s, count)


def aggregate_samples(samples: Samples, steps: Steps, row_count: int) -> dict[Field, Floats]:
    """Return an array of rows and steps for each field of a window. Samples of a row are in order of time."""
    columns = steps.find_columns(samples.times_s)
    inside = (columns >= 0) & (columns < steps.count)
    cells = samples.rows[inside] * steps.count + columns[inside]
    values = samples.values[inside]
    size, shape = row_count * steps.count, (row_count, steps.count)
    found = {field: _mean(cells, values[:, field], size).reshape(shape) for field in _MEANS}
    found[Field.USED] = _highest(cells, values[:, Field.USED], size).reshape(shape)
    found[Field.TOTAL] = _last(cells, compute_totals(values), size).reshape(shape)
    return found


def _mean(cells: NDArray[np.int64], values: Floats, size: int) -> Floats:
    known = ~np.isnan(values)
    counts = np.bincount(cells[known], minlength=size)
    sums = np.bincount(cells[known], weights=values[known], minlength=size)
    out = np.full(size, np.nan, dtype=np.float32)
    some = counts > 0
    out[some] = sums[some] / counts[some]
    return out


def _highest(cells: NDArray[np.int64], values: Floats, size: int) -> Floats:
    out = np.full(size, np.nan, dtype=np.float32)
    np.fmax.at(out, cells, values)
    return out


def _last(cells: NDArray[np.int64], values: Floats, size: int) -> Floats:
    out = np.full(size, np.nan, dtype=np.float32)
    known = ~np.isnan(values)
    out[cells[known]] = values[known]  # of equal cells the last one stays
    return out


def make_usage_window(
    devices: Sequence[Device], fields: Mapping[Field, Floats], steps: Steps, rejected: Rejected
) -> UsageWindow:
    """Return the window of these rows. Rows without a known value are left out."""
    fields = {field: fields[field].copy() for field in WINDOW_FIELDS}
    groups = _group_rows(devices)
    _reject_overfull(fields, rejected)
    cut = {device.key[:2] for device in devices if device.key.instance}
    _choose_activity(devices, fields, cut)
    for rows in groups.values():
        _settle_holders(devices, fields, rows)
    known = _known(fields)
    kept = [row for row in np.flatnonzero(known.any(axis=1)).tolist() if not _claims_cut_gpu(devices[row], cut)]
    sharers = _count_sharers(devices, known, groups)
    rows_kept = np.array(kept, dtype=np.int64)
    return UsageWindow(
        start_s=steps.start_s,
        step_s=steps.step_s,
        devices=tuple(replace(devices[row], sharers=sharers.get(row, 1)) for row in kept),
        activity=fields[Field.ENGINE][rows_kept],
        tensor=fields[Field.TENSOR][rows_kept],
        dram=fields[Field.DRAM][rows_kept],
        memory_used_mib=fields[Field.USED][rows_kept],
        memory_total_mib=fields[Field.TOTAL][rows_kept],
        power_w=fields[Field.POWER][rows_kept],
        rejected=rejected,
    )


_Groups = dict[tuple[str, str, str], list[int]]
_Gpus = set[tuple[str, str]]


def _group_rows(devices: Sequence[Device]) -> _Groups:
    """Return (node, uuid, instance) -> rows."""
    groups: _Groups = {}
    for row, device in enumerate(devices):
        groups.setdefault(device.key[:3], []).append(row)
    return groups


def _known(fields: Mapping[Field, Floats]) -> NDArray[np.bool_]:
    """Return the cells in which anything but utilization is known."""
    measured = [~np.isnan(values) for field, values in fields.items() if field is not Field.UTIL]
    return np.asarray(np.logical_or.reduce(measured), dtype=np.bool_)


def _reject_overfull(fields: Mapping[Field, Floats], rejected: Rejected) -> None:
    """Forget used memory that is larger than the memory."""
    used = fields[Field.USED]
    overfull = used > fields[Field.TOTAL] * _USED_LIMIT
    if count := int(overfull.sum()):
        used[overfull] = np.nan
        rejected["out_of_range"] = rejected.get("out_of_range", 0) + count


def _choose_activity(devices: Sequence[Device], fields: Mapping[Field, Floats], cut: _Gpus) -> None:
    """Take utilization for whole GPUs without engine activity in the whole window; never for MIG."""
    without = np.isnan(fields[Field.ENGINE]).all(axis=1)
    for row in np.flatnonzero(without).tolist():
        key = devices[row].key
        if not key.instance and key[:2] not in cut:
            fields[Field.ENGINE][row] = fields[Field.UTIL][row]


def _settle_holders(devices: Sequence[Device], fields: Mapping[Field, Floats], rows: list[int]) -> None:
    """Give rows of pods what only the device's own row has, and leave that row the steps without pods.

    KGWE's agent measures memory and time per pod, and the rest per GPU.
    """
    own = [row for row in rows if devices[row].key.pod is None]
    held = [row for row in rows if devices[row].key.pod is not None]
    if not own or not held:
        return
    bare = own[0]
    present = [~np.logical_and.reduce([np.isnan(values[row]) for values in fields.values()]) for row in held]
    for values in fields.values():
        for row, here in zip(held, present, strict=True):
            if np.isnan(values[row]).all():
                values[row, here] = values[bare, here]
        values[bare, np.logical_or.reduce(present)] = np.nan


def _claims_cut_gpu(device: Device, cut: _Gpus) -> bool:
    """Whether a row claims that a pod holds a whole GPU that is cut into slices."""
    return not device.key.instance and device.key.pod is not None and device.key[:2] in cut


def _count_sharers(devices: Sequence[Device], known: NDArray[np.bool_], groups: _Groups) -> dict[int, int]:
    """Return row -> pods on its device, for devices that several pods used at the same time.

    A pod that follows another one may have its first step in the other's last one: that is not sharing.
    """
    sharers: dict[int, int] = {}
    for rows in groups.values():
        pods: dict[object, NDArray[np.bool_]] = {}
        for row in rows:
            if (pod := devices[row].key.pod) is not None:
                pods[pod] = pods[pod] | known[row] if pod in pods else known[row]
        if len(pods) > 1:
            for row in rows:
                pod = devices[row].key.pod
                others = [steps for other, steps in pods.items() if other != pod]
                sharers[row] = 1 + sum(_overlaps(known[row], steps) for steps in others) if pod else 1
    return sharers


def _overlaps(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    both = np.flatnonzero(one & other)
    if both.size != 1:
        return both.size > 0
    step = int(both[0])
    follows = one[step + 1 :].any() and not one[:step].any() and other[:step].any() and not other[step + 1 :].any()
    precedes = other[step + 1 :].any() and not other[:step].any() and one[:step].any() and not one[step + 1 :].any()
    return not (follows or precedes)

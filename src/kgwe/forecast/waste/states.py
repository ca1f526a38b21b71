"""The state of every device in a window of usage, computed for all devices at once.

A device is judged only where it was measured well enough: enough steps, a measured last step, and a container that
has run long enough. Otherwise its state is unknown, with the reason. An idle state needs activity at the noise floor
in every measured step. Memory traffic and, on whole GPUs of one pod, power must not contradict it.

Metrics of a GPU that several pods share describe the GPU. If the GPU is idle, so is each pod. If it is active, the
activity of one pod is unknown, unless the caller knows it (`own_activity`).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.waste import gpu_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.forecast.waste.rules import Rules
    from kgwe.model.usage.window import Device, Floats, UsageWindow

    Flags = NDArray[np.bool_]
    Doubles = NDArray[np.float64]


class State(enum.StrEnum):
    """What a device or pod did in the window."""

    IDLE = "idle"
    IDLE_HOLDING = "idle-holding-memory"
    BURSTY = "bursty"
    BUSY = "busy"
    UNKNOWN = "unknown"

    @property
    def is_idle(self) -> bool:
        return self in {State.IDLE, State.IDLE_HOLDING}

    @property
    def is_active(self) -> bool:
        return self in {State.BURSTY, State.BUSY}


class Reason(enum.StrEnum):
    """Why a state is unknown, or that it was measured."""

    MEASURED = "Measured"
    NOT_RUNNING = "NotRunning"
    STARTING = "Starting"
    NO_SAMPLES = "NoSamples"
    STALE = "Stale"
    GAP = "Gap"
    SHARED = "SharedDevice"
    CONTRADICTED = "Contradicted"
    DEVICE_MISSING = "DeviceMissing"
    GANG_UNKNOWN = "GangUnknown"


STATES: Final = tuple(State)
REASONS: Final = tuple(Reason)
_STATE_CODE: Final = {state: code for code, state in enumerate(STATES)}
_REASON_CODE: Final = {reason: code for code, reason in enumerate(REASONS)}
# Exporters round; DCGM itself reports up to 1.0001.
_HIGHEST_SHARE: Final = 1.01
_P95: Final = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStates:
    """Row i of every array is row i of the window. NaN is unknown."""

    state: NDArray[np.int8]
    """Index into STATES."""
    reason: NDArray[np.int8]
    """Index into REASONS."""
    coverage: Doubles
    """Measured steps divided by expected steps."""
    activity: Doubles
    """Mean."""
    p95: Doubles
    peak: Doubles
    low_s: Doubles
    """Time below `underused_below`."""
    tensor: Doubles
    dram: Doubles
    memory_peak_mib: Doubles
    memory_total_mib: Doubles
    power_w: Doubles
    sharers: NDArray[np.int64]
    is_corroborated: Flags
    """Whether power agrees with an idle state."""


def judge_devices(
    window: UsageWindow, started_s: Doubles, rules: Rules, own_activity: Floats | None = None
) -> DeviceStates:
    """Return the state of every row.

    `started_s` is the start of the container of each row in Unix time, NaN if it does not run. `own_activity` is the
    activity of the row's own pod, NaN where it is not known.
    """
    valid = _find_valid_steps(window, started_s, rules)
    shown = _clean(window.activity, valid, _HIGHEST_SHARE)
    own = np.full(valid.shape, np.nan) if own_activity is None else _clean(own_activity, valid, _HIGHEST_SHARE)
    activity = np.minimum(np.where(np.isnan(own), shown, own), 1.0)
    sharers = count_sharers(window.devices, ~np.isnan(shown))
    figures = _measure(window, activity, valid, rules)
    age_s = window.start_s + window.step_s * window.steps - started_s
    reason = _find_reasons(activity, valid, age_s, window.step_s, rules)
    is_measured = reason == _REASON_CODE[Reason.MEASURED]
    is_idle = is_measured & (figures["peak"] <= rules.noise_floor)
    # Without its own activity, a pod on an active shared GPU is unknown.
    is_foreign = (sharers > 1) & (np.isnan(own) & ~np.isnan(shown)).any(axis=1)
    is_mixed = is_measured & ~is_idle & is_foreign
    ceiling = _find_power_ceilings(window.devices, sharers, rules)
    dram_high = (figures["dram"] > rules.dram_floor) & ((sharers == 1) | is_foreign)
    is_contradicted = is_idle & (dram_high | (figures["power_w"] > ceiling))
    reason[is_mixed] = _REASON_CODE[Reason.SHARED]
    reason[is_contradicted] = _REASON_CODE[Reason.CONTRADICTED]
    state = _choose_states(figures, activity, is_idle & ~is_contradicted, is_measured & ~is_mixed, rules)
    state[is_contradicted] = _STATE_CODE[State.UNKNOWN]
    return DeviceStates(
        state=state,
        reason=reason,
        sharers=sharers,
        is_corroborated=is_idle & (figures["power_w"] <= ceiling) & np.isfinite(ceiling),
        **figures,
    )


def _find_valid_steps(window: UsageWindow, started_s: Doubles, rules: Rules) -> Flags:
    """Return which steps of the judged part of the window lie after the start of each row's container.

    A NaN start compares as false: a container that does not run has no valid step.
    """
    steps = min(rules.count_steps(window.step_s), window.steps)
    begins_s = window.ends_s[window.steps - steps :] - window.step_s
    return begins_s[None, :] >= started_s[:, None]


def _clean(values: Floats, valid: Flags, highest: float = np.inf) -> Doubles:
    """Return the last columns with everything unknown that is out of range or not valid."""
    steps = valid.shape[1]
    part = np.asarray(values[:, values.shape[1] - steps :], dtype=np.float64)
    return np.where(valid & (part >= 0.0) & (part <= highest), part, np.nan)


def count_sharers(devices: Sequence[Device], measured: Flags) -> NDArray[np.int64]:
    """Return how many pods use the device of each row at the same time: what the source says, or more if rows show it.

    A device that passes from one pod to the next has two rows, but never two in the same step.
    """
    said = np.array([device.sharers for device in devices], dtype=np.int64)
    units: dict[tuple[str, str, str], int] = {}
    holders: dict[object, int] = {}
    unit = np.empty(len(devices), dtype=np.int64)
    holder = np.empty(len(devices), dtype=np.int64)
    for row, device in enumerate(devices):
        unit[row] = units.setdefault(device.key[:3], len(units))
        holder[row] = holders.setdefault(device.key[:4], len(holders))
    if len(units) == len(devices):
        return said
    steps = measured.shape[1]
    by_holder = np.zeros((len(holders), steps), dtype=np.bool_)
    np.logical_or.at(by_holder, holder, measured)
    unit_of_holder = np.empty(len(holders), dtype=np.int64)
    unit_of_holder[holder] = unit
    by_unit = np.zeros((len(units), steps), dtype=np.int64)
    np.add.at(by_unit, unit_of_holder, by_holder)
    shown: NDArray[np.int64] = (by_unit[unit] * measured).max(axis=1, initial=0)
    return np.maximum(said, shown)


def _measure(window: UsageWindow, activity: Doubles, valid: Flags, rules: Rules) -> dict[str, Doubles]:
    """Return the numbers of every row, by the field names of DeviceStates."""
    known = ~np.isnan(activity)
    count = known.sum(axis=1)
    # NaN sorts last, so the measured values are first and in order.
    ordered = np.sort(activity, axis=1)
    expected = np.minimum(valid.sum(axis=1), rules.count_steps(window.step_s))
    return {
        "coverage": np.divide(count, expected, out=np.zeros(len(count)), where=expected > 0),
        "activity": _mean(activity),
        "p95": _pick(ordered, np.ceil(_P95 * count).astype(np.int64) - 1),
        "peak": _pick(ordered, count - 1),
        "low_s": (activity < rules.underused_below).sum(axis=1) * window.step_s,
        "tensor": _mean(_clean(window.tensor, valid, _HIGHEST_SHARE)),
        "dram": _mean(_clean(window.dram, valid, _HIGHEST_SHARE)),
        "memory_peak_mib": _max(_clean(window.memory_used_mib, valid)),
        "memory_total_mib": _max(_clean(window.memory_total_mib, valid)),
        "power_w": _mean(_clean(window.power_w, valid)),
    }


def _mean(values: Doubles) -> Doubles:
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    mean: Doubles = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def _max(values: Doubles) -> Doubles:
    highest: Doubles = np.fmax.reduce(values, axis=1, initial=np.nan)
    return highest


def _pick(ordered: Doubles, index: NDArray[np.int64]) -> Doubles:
    """Return one value of every sorted row; a row without values is NaN."""
    if ordered.shape[1] == 0:
        return np.full(len(ordered), np.nan)
    picked: Doubles = np.take_along_axis(ordered, np.maximum(index, 0)[:, None], axis=1)[:, 0]
    return picked


def _find_reasons(activity: Doubles, valid: Flags, age_s: Doubles, step_s: float, rules: Rules) -> NDArray[np.int8]:
    """Return why each row cannot be judged. The first reason that applies wins."""
    known = ~np.isnan(activity)
    count, steps = known.sum(axis=1), known.shape[1]
    expected = rules.count_steps(step_s)
    needed = rules.min_coverage * np.clip(valid.sum(axis=1), 1, expected)
    allowed = min(int(rules.max_stale_s // step_s) + 1, steps)
    tests = (
        (np.isnan(age_s), Reason.NOT_RUNNING),
        (age_s < rules.min_age_s, Reason.STARTING),
        (count == 0, Reason.NO_SAMPLES),
        (~known[:, steps - allowed :].any(axis=1), Reason.STALE),
        ((count < needed) | (steps < rules.min_coverage * expected), Reason.GAP),
    )
    codes = [_REASON_CODE[reason] for _, reason in tests]
    chosen = np.select([test for test, _ in tests], codes, default=_REASON_CODE[Reason.MEASURED])
    return chosen.astype(np.int8)


def _find_power_ceilings(devices: Sequence[Device], sharers: NDArray[np.int64], rules: Rules) -> Doubles:
    """Return the power up to which a GPU may be idle; infinite where power says nothing about the row."""
    models: dict[str, float] = {}
    for device in devices:
        if device.model not in models:
            models[device.model] = _power_ceiling(device.model, rules)
    found = np.array([math.inf if device.mig_profile else models[device.model] for device in devices], dtype=np.float64)
    return np.where(sharers > 1, np.inf, found)


def _power_ceiling(name: str, rules: Rules) -> float:
    model = gpu_parts.find_model(name)
    if model is None:
        return math.inf
    return model.idle_w + rules.idle_power_share * (model.limit_w - model.idle_w)


def _choose_states(
    figures: dict[str, Doubles], activity: Doubles, is_idle: Flags, is_measured: Flags, rules: Rules
) -> NDArray[np.int8]:
    peak = figures["peak"]
    held = np.maximum(rules.holding_mib, rules.holding_share * np.nan_to_num(figures["memory_total_mib"]))
    is_holding = figures["memory_peak_mib"] > held
    lowest = np.fmin.reduce(activity, axis=1, initial=np.nan)
    is_wide = (peak - lowest >= rules.bursty_spread) | (lowest <= rules.noise_floor)
    variance = _mean((activity - figures["activity"][:, None]) ** 2)
    is_bursty = is_wide & (np.sqrt(variance) >= rules.bursty_variation * figures["activity"])
    tests = (
        (is_idle & is_holding, State.IDLE_HOLDING),
        (is_idle, State.IDLE),
        (is_measured & is_bursty, State.BURSTY),
        (is_measured, State.BUSY),
    )
    codes = [_STATE_CODE[state] for _, state in tests]
    chosen = np.select([test for test, _ in tests], codes, default=_STATE_CODE[State.UNKNOWN])
    return chosen.astype(np.int8)

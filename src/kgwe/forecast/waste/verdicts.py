"""The state of every pod, from the states of its devices and of its gang.

A pod is idle when all of its devices are. If one device is unknown, so is the pod. A pod or a gang that works on some
devices and not on others is out of balance: a mistake in the workload, not waste. A pod of a gang whose other members
are unknown is unknown too, because it may wait for one of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kgwe.forecast.waste import gpu_parts, states
from kgwe.forecast.waste.states import Reason, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.forecast.waste.rules import Rules
    from kgwe.forecast.waste.states import DeviceStates, Doubles
    from kgwe.model.usage.window import Device, Floats, PodKey, UsageWindow


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the API shows of a GPU pod."""

    key: PodKey
    started_s: float | None
    """Unix time at which its last container started. None: it does not run. Samples before it are of an earlier pod
    with the same name.
    """
    devices: int | None = None
    """Devices it was assigned; None if unknown."""
    gang: str = ""
    """Key of its gang, such as `namespace/name`; empty for a pod alone."""
    fraction: float | None = None
    """Part of a GPU that each of its devices is charged as; None: derived from slice and sharers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pod did with its devices. Numbers are means over devices unless they say otherwise; None is unknown."""

    pod: PodKey
    state: State
    reason: Reason
    gang: str = ""
    devices: int = 0
    idle_devices: tuple[str, ...] = ()
    """UUIDs of idle devices (with `/instance` for a slice), if the others are active."""
    activity: float | None = None
    p95: float | None = None
    """Of the most active device."""
    peak: float | None = None
    low_s: float = 0.0
    """Time with low activity, of the device that had least."""
    dram: float | None = None
    memory_peak_mib: float | None = None
    """Of the device that used most."""
    memory_total_mib: float | None = None
    """Of the smallest device."""
    coverage: float = 0.0
    """Of the device measured least."""
    is_underused: bool = False
    is_unbalanced: bool = False
    """Whether it is idle while other members of its gang work, or some of its own devices are."""
    is_shared: bool = False
    is_corroborated: bool = False
    """Whether power agrees with the idle state, for all devices."""
    model: str = ""
    mig_profile: str = ""
    fraction: float = 1.0
    """Part of a GPU that each device is charged as."""


def judge_pods(
    window: UsageWindow, pods: Iterable[PodFacts], rules: Rules, own_activity: Floats | None = None
) -> list[Verdict]:
    """Return a verdict for each pod, in the order of `pods`. Pods of the window that are not in `pods` are ignored."""
    facts = list(pods)
    started = {each.key: each.started_s for each in facts}
    found = states.judge_devices(window, _list_starts(window, started), rules, own_activity)
    rows: dict[PodKey, list[int]] = defaultdict(list)
    for row, device in enumerate(window.devices):
        if device.key.pod is not None and device.key.pod in started:
            rows[device.key.pod].append(row)
    table = _Table(window.devices, found, rules)
    return list(_judge_gangs([table.judge_pod(each, rows.get(each.key, [])) for each in facts]))


def _list_starts(window: UsageWindow, started: Mapping[PodKey, float | None]) -> Doubles:
    starts = (started.get(device.key.pod) if device.key.pod else None for device in window.devices)
    return np.array([math.nan if start is None else start for start in starts], dtype=np.float64)


class _Table:
    """Device states as Python values: a pod has few rows, and single reads from arrays are slow."""

    def __init__(self, devices: Sequence[Device], found: DeviceStates, rules: Rules) -> None:
        self._devices = devices
        self._rules = rules
        self._states = [states.STATES[code] for code in found.state.tolist()]
        self._reasons = [states.REASONS[code] for code in found.reason.tolist()]
        self._sharers = found.sharers.tolist()
        self._is_corroborated = found.is_corroborated.tolist()
        names = ("coverage", "activity", "p95", "peak", "low_s", "dram", "memory_peak_mib", "memory_total_mib")
        self._figures: dict[str, list[float]] = {name: getattr(found, name).tolist() for name in names}

    def judge_pod(self, pod: PodFacts, rows: list[int]) -> Verdict:
        """Return the verdict of a pod with these rows, without regard to its gang."""
        if pod.started_s is None:
            return Verdict(pod.key, State.UNKNOWN, Reason.NOT_RUNNING, pod.gang)
        rows = self._drop_repeated(rows)
        if not rows:
            return Verdict(pod.key, State.UNKNOWN, Reason.NO_SAMPLES, pod.gang)
        numbers = self._sum_up(pod, rows)
        if pod.devices is not None and len(rows) < pod.devices:
            return Verdict(pod.key, State.UNKNOWN, Reason.DEVICE_MISSING, **numbers)
        for row in rows:
            if self._states[row] is State.UNKNOWN:
                return Verdict(pod.key, State.UNKNOWN, self._reasons[row], **numbers)
        return self._judge_measured(pod, rows, numbers)

    def _judge_measured(self, pod: PodFacts, rows: list[int], numbers: dict[str, Any]) -> Verdict:
        found = [self._states[row] for row in rows]
        idle = [row for row in rows if self._states[row].is_idle]
        if len(idle) == len(rows):
            state = State.IDLE_HOLDING if State.IDLE_HOLDING in found else State.IDLE
            corroborated = all(self._is_corroborated[row] for row in rows)
            return Verdict(pod.key, state, Reason.MEASURED, is_corroborated=corroborated, **numbers)
        state = State.BURSTY if State.BURSTY in found else State.BUSY
        is_low = numbers["activity"] < self._rules.underused_below and numbers["low_s"] > self._rules.underused_for_s
        return Verdict(
            pod.key,
            state,
            Reason.MEASURED,
            idle_devices=tuple(_name(self._devices[row]) for row in idle),
            is_underused=is_low and not idle,
            is_unbalanced=bool(idle),
            **numbers,
        )

    def _drop_repeated(self, rows: list[int]) -> list[int]:
        """Return one row per device: containers of a pod that use the same device show the same values."""
        best: dict[tuple[str, str, str], int] = {}
        for row in rows:
            unit = self._devices[row].key[:3]
            if unit not in best or self._figures["coverage"][row] > self._figures["coverage"][best[unit]]:
                best[unit] = row
        return list(best.values())

    def _sum_up(self, pod: PodFacts, rows: list[int]) -> dict[str, Any]:
        figures = {name: [values[row] for row in rows] for name, values in self._figures.items()}
        first = self._devices[rows[0]]
        sharers = max(self._sharers[row] for row in rows)
        return {
            "gang": pod.gang,
            "devices": len(rows),
            "activity": _known(math.fsum(figures["activity"]) / len(rows)),
            "p95": _known(_highest(figures["p95"])),
            "peak": _known(_highest(figures["peak"])),
            "low_s": min(figures["low_s"]),
            "dram": _known(math.fsum(figures["dram"]) / len(rows)),
            "memory_peak_mib": _known(_highest(figures["memory_peak_mib"])),
            "memory_total_mib": _known(-_highest([-each for each in figures["memory_total_mib"]])),
            "coverage": min(figures["coverage"]),
            "is_shared": sharers > 1,
            "model": first.model,
            "mig_profile": first.mig_profile,
            "fraction": pod.fraction if pod.fraction is not None else gpu_parts.charge_fraction(first, sharers),
        }


def _name(device: Device) -> str:
    return f"{device.key.uuid}/{device.key.instance}" if device.key.instance else device.key.uuid


def _highest(values: list[float]) -> float:
    """Return the largest value; unknown if one is unknown."""
    return math.nan if any(math.isnan(each) for each in values) else max(values)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _judge_gangs(verdicts: list[Verdict]) -> Iterator[Verdict]:
    """Return the verdicts with idle members of active or unknown gangs changed."""
    members: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.gang:
            members[verdict.gang].append(verdict)
    unknown = {gang for gang, each in members.items() if any(one.state is State.UNKNOWN for one in each)}
    active = {gang for gang, each in members.items() if any(one.state.is_active for one in each)}
    for verdict in verdicts:
        if not verdict.state.is_idle:
            yield verdict
        elif verdict.gang in unknown:
            yield replace(verdict, state=State.UNKNOWN, reason=Reason.GANG_UNKNOWN)
        elif verdict.gang in active:
            yield replace(verdict, is_unbalanced=True)
        else:
            yield verdict

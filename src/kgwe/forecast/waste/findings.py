"""What the waste detector reports: idle pods, underused pods, and pods or gangs out of balance."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.forecast.waste.score import Formula, score_verdict
from kgwe.forecast.waste.states import State
from kgwe.forecast.waste.verdicts import judge_pods
from kgwe.model.units import phrasing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kgwe.forecast.waste.rules import Rules
    from kgwe.forecast.waste.verdicts import PodFacts, Verdict
    from kgwe.model.usage.window import Floats, PodKey, UsageWindow


class Kind(enum.StrEnum):
    """Reasons of Events and labels of metrics."""

    IDLE = "Idle"
    IDLE_HOLDING = "IdleHoldingMemory"
    UNDERUSED = "Underused"
    IMBALANCE = "Imbalance"

    @property
    def is_waste(self) -> bool:
        return self is not Kind.IMBALANCE


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to report about a pod, or about a gang."""

    kind: Kind
    pods: tuple[PodKey, ...]
    """The pod; for an imbalance of a gang its idle members."""
    message: str
    state: State
    score: float | None = None
    """None for an imbalance."""
    gang: str = ""
    devices: tuple[str, ...] = ()
    """Idle devices of an imbalance inside one pod."""
    verdict: Verdict | None = None
    """Of the pod; None for an imbalance of a gang."""


def judge_window(
    window: UsageWindow,
    pods: Iterable[PodFacts],
    rules: Rules,
    own_activity: Floats | None = None,
    formula: Formula = Formula.UNUSED,
) -> list[Finding]:
    """Return the findings of a window. `own_activity` is explained in `states`."""
    return find_waste(judge_pods(window, pods, rules, own_activity), rules, formula)


def find_waste(verdicts: Sequence[Verdict], rules: Rules, formula: Formula = Formula.UNUSED) -> list[Finding]:
    """Return the findings about judged pods: waste per pod, imbalance per pod or gang."""
    members: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.gang:
            members[verdict.gang].append(verdict)
    uneven = {each.gang for each in verdicts if each.state.is_idle and each.is_unbalanced}
    found = [_find_gang_imbalance(gang, members[gang], rules) for gang in sorted(uneven)]
    for verdict in verdicts:
        found += _find_in_pod(verdict, rules, formula)
    return found


def _find_gang_imbalance(gang: str, members: Sequence[Verdict], rules: Rules) -> Finding:
    idle = [each for each in members if each.state.is_idle]
    names = phrasing.list_names([each.pod.name for each in idle])
    return Finding(
        Kind.IMBALANCE,
        tuple(each.pod for each in idle),
        f"{len(idle)} of {len(members)} pods of the gang did nothing for {_format_window(rules)}: {names};"
        " look for a stuck rank",
        State.IDLE,
        gang=gang,
    )


def _find_in_pod(verdict: Verdict, rules: Rules, formula: Formula) -> Iterator[Finding]:
    if verdict.idle_devices:
        yield Finding(
            Kind.IMBALANCE,
            (verdict.pod,),
            f"{len(verdict.idle_devices)} of {phrasing.format_count(verdict.devices, 'device')} did nothing for"
            f" {_format_window(rules)} while the others worked; look for a stuck rank or a wrong device count",
            verdict.state,
            gang=verdict.gang,
            devices=verdict.idle_devices,
            verdict=verdict,
        )
    elif kind := _choose_kind(verdict):
        score = score_verdict(verdict, formula)
        message = _describe(verdict, kind, rules)
        yield Finding(kind, (verdict.pod,), message, verdict.state, score, verdict.gang, verdict=verdict)


def _choose_kind(verdict: Verdict) -> Kind | None:
    if verdict.is_unbalanced:
        return None
    if verdict.state.is_idle:
        return Kind.IDLE_HOLDING if verdict.state is State.IDLE_HOLDING else Kind.IDLE
    # A pod that shares its GPU already leaves the rest to others.
    return Kind.UNDERUSED if verdict.is_underused and not verdict.is_shared else None


def _describe(verdict: Verdict, kind: Kind, rules: Rules) -> str:
    devices = phrasing.format_count(verdict.devices, "device")
    if kind is Kind.UNDERUSED:
        mean, peak = 100 * (verdict.activity or 0.0), 100 * (verdict.peak or 0.0)
        return f"{devices} active {mean:.0f} % of {_format_window(rules)}, at most {peak:.0f} %"
    held = ""
    if kind is Kind.IDLE_HOLDING:
        held = f" but held {phrasing.format_mib(round(verdict.memory_peak_mib or 0))} of memory"
    shared = "; it shares the GPU, and no pod used it" if verdict.is_shared else ""
    return f"{devices} did nothing for {_format_window(rules)}{held}{shared}"


def _format_window(rules: Rules) -> str:
    return phrasing.format_duration(rules.window_s)

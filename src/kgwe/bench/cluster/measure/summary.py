"""Combines the phases of all rounds into the metrics of one report.

With several rounds each number is the median, and a ratio is the median of the ratios per round. Numbers that must be
zero are summed, so an error in any round shows.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.bench.cluster import scheduler
from kgwe.bench.cluster.scenarios import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.bench.cluster.phase import PhaseResult

_PREFIX: Final = {
    Phase.NULL: "null_",
    Phase.KUBE_SCHEDULER: "kube_scheduler_",
    Phase.GATE: "gate_",
    Phase.KGWE: "",
}
# Fields of a phase, and their names in the report.
_NUMBERS: Final = {
    "per_s": "pods_per_s",
    "bind_p50_s": "bind_p50_s",
    "bind_p99_s": "bind_p99_s",
    "gang_p50_s": "gang_p50_s",
    "gang_p99_s": "gang_p99_s",
    "api_writes_per_pod": "api_writes_per_pod",
    "cpu_ms_per_pod": "cpu_ms_per_pod",
    "verdict_s": "verdict_s",
    "first_decision_s": "first_decision_s",
    "first_bind_s": "first_bind_s",
}
_NEARNESS: Final = ("one_leaf_share", "mean_leaves", "max_leaves", "ideal_leaves", "whole_gangs", "partial_gangs")
_ERRORS: Final = ("unbound", "doubled", "oversubscribed")


def build_metrics(rounds: Sequence[Mapping[Phase, PhaseResult]], *, wall_s: float) -> dict[str, Any]:
    """Return the metrics of a report. KGWE's numbers have plain names, the baselines' a prefix."""
    medians = {phase: _find_median([each[phase] for each in rounds]) for phase in rounds[0]}
    metrics: dict[str, Any] = {}
    for phase in (Phase.KGWE, Phase.KUBE_SCHEDULER, Phase.GATE, Phase.NULL):
        if phase in medians:
            metrics |= {f"{_PREFIX[phase]}{name}": value for name, value in _select_numbers(medians[phase])}
    if mine := medians.get(Phase.KGWE):
        metrics["rss_mb"] = mine["rss_mb"].get(scheduler.NAME)
        metrics["rss_peak_mb"] = mine.get("rss_peak_mb")
        metrics["cpu_s"] = mine["cpu_s"].get(scheduler.NAME)
        metrics["verdict"] = rounds[-1][Phase.KGWE].verdict or None
        metrics |= _partial_gangs(rounds)
    metrics |= _compare_rounds(rounds)
    metrics |= _relative_to_null(rounds)
    metrics |= {key: sum(getattr(result, key) for result in _select_all(rounds)) for key in _ERRORS}
    metrics["wall_s"] = round(wall_s, 1)
    metrics["phases"] = {str(phase): numbers for phase, numbers in medians.items()}
    if len(rounds) > 1:
        metrics["rounds"] = {str(phase): [_pick_headline(each[phase]) for each in rounds] for phase in rounds[0]}
    return {name: value for name, value in metrics.items() if value is not None}


def is_correct(metrics: Mapping[str, Any], *, fits_all: bool) -> bool:
    """Return whether each pod was bound exactly once, no node is oversubscribed, and KGWE bound no gang partially."""
    wrong = [metrics["doubled"], metrics["oversubscribed"], metrics.get("partial_gangs", 0)]
    return not any([*wrong, metrics["unbound"] if fits_all else 0])


def _select_numbers(median: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, name in _NUMBERS.items():
        if key in median:
            yield name, median[key]
    for key in _NEARNESS:
        if key in median.get("nearness", {}):
            yield key, median["nearness"][key]


def _partial_gangs(rounds: Sequence[Mapping[Phase, PhaseResult]]) -> dict[str, int]:
    found = [near.partial_gangs for each in rounds if (near := each[Phase.KGWE].nearness)]
    return {"partial_gangs": sum(found)} if found else {}


def _compare_rounds(rounds: Sequence[Mapping[Phase, PhaseResult]]) -> dict[str, float]:
    """Return the speed of KGWE relative to each baseline, and the CPU saved compared with kube-scheduler alone."""
    found = {}
    for name, baseline, key in (
        ("ratio", Phase.KUBE_SCHEDULER, "per_s"),
        ("gate_ratio", Phase.GATE, "per_s"),
        ("cpu_ratio", Phase.KUBE_SCHEDULER, "cpu_ms_per_pod"),
    ):
        pairs = [
            (getattr(each[Phase.KGWE], key), getattr(each[baseline], key))
            for each in rounds
            if {Phase.KGWE, baseline} <= each.keys()
        ]
        ratios = [other / mine if key == "cpu_ms_per_pod" else mine / other for mine, other in pairs if mine and other]
        if ratios:
            found[name] = round(statistics.median(ratios), 3)
    return found


def _relative_to_null(rounds: Sequence[Mapping[Phase, PhaseResult]]) -> dict[str, float]:
    """Return the speed of each phase divided by that of the null phase of the same round.

    Runs on a machine of varying speed can be compared by it.
    """
    found = {}
    for phase in rounds[0]:
        pairs = [(each[phase].per_s, each[Phase.NULL].per_s) for each in rounds if Phase.NULL in each]
        ratios = [mine / null for mine, null in pairs if mine and null]
        if ratios and phase is not Phase.NULL:
            found[f"{_PREFIX[phase]}relative_to_null"] = round(statistics.median(ratios), 3)
    return found


def _pick_headline(result: PhaseResult) -> float | None:
    """Return the number that measures the speed of a phase."""
    return next((each for each in (result.first_decision_s, result.verdict_s, result.per_s) if each is not None), None)


def _select_all(rounds: Sequence[Mapping[Phase, PhaseResult]]) -> Iterator[PhaseResult]:
    for each in rounds:
        yield from each.values()


def _find_median(results: Sequence[PhaseResult]) -> dict[str, Any]:
    return _merge([msgspec.to_builtins(result) for result in results])


def _merge(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of each number. A key that is missing in some rounds uses the other rounds."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in several for key in each):
        values = [each[key] for each in several if each.get(key) is not None]
        if not values:
            continue
        if isinstance(values[0], dict):
            merged[key] = _merge(values)
        elif isinstance(values[0], bool):
            merged[key] = all(values)
        elif isinstance(values[0], (str, list)):
            merged[key] = values[-1]
        else:
            merged[key] = round(statistics.median(values), 3) if len(values) > 1 else values[0]
    return merged

"""Counts right and wrong judgements, beside a simple rule on the same samples.

The simple rule is that of the GPU Autoscaler: mean GPU_UTIL below 50 %, and missing samples count as zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe.forecast.waste import findings, verdicts
from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.bench.waste.fleet import SimulatedExporters, Timeline
    from kgwe.bench.waste.scenes import Expectation
    from kgwe.forecast.waste.rules import Rules
    from kgwe.model.usage.window import PodKey, UsageWindow

_SHOWN_MISTAKES: Final = 10
_LOW: Final = 0.5


@dataclass(slots=True)
class Tally:
    """Judges windows and compares with what is right."""

    exporters: SimulatedExporters
    timeline: Timeline
    rules: Rules
    judged: int = 0
    wrong: int = 0
    gap_judged: int = 0
    """Judgements of pods in a gap."""
    gap_findings: int = 0
    beside_gaps: int = 0
    """Judgements after a gap that was short enough."""
    baseline_wrong: int = 0
    baseline_gap_findings: int = 0
    mistakes: list[str] = field(default_factory=list)
    states: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def judge(self, end_s: float, window: UsageWindow) -> None:
        """Judge one window. The first one has no gaps: every pod must have its state and its finding."""
        is_clean = end_s == self.timeline.clean_end_s
        expected = self.exporters.expectations
        judged = verdicts.judge_pods(window, [each.facts for each in expected], self.rules)
        kinds = _group_kinds(findings.find_waste(judged, self.rules))
        missing = {node: self.exporters.count_missing(node, end_s, self.timeline) for node in self.exporters.meters}
        for each, verdict in zip(expected, judged, strict=True):
            found = kinds.get(each.pod, [])
            if is_clean:
                self._count_clean(each, verdict, found, end_s)
            elif self._is_in_gap(*missing[each.node]):
                self.gap_judged += 1
                self.gap_findings += bool(found)
                self.baseline_gap_findings += self._accuses(each, end_s)
            else:
                self.beside_gaps += 1
                self._check(each, verdict, found, [each.state, State.UNKNOWN])

    def _count_clean(self, each: Expectation, verdict: verdicts.Verdict, found: list[Kind], end_s: float) -> None:
        self.judged += 1
        self.states[each.kind][str(verdict.state)] += 1
        self._check(each, verdict, found, [each.state])
        is_waste = any(kind is not None and kind.is_waste for kind in each.findings)
        may_be_quiet = None in each.findings or Kind.IMBALANCE in each.findings
        accused = self._accuses(each, end_s)
        self.baseline_wrong += (accused and not is_waste) or (not accused and not may_be_quiet)

    def _check(self, each: Expectation, verdict: verdicts.Verdict, found: list[Kind], right: list[State]) -> None:
        is_right = verdict.state in right and len(found) <= 1
        if verdict.state is State.UNKNOWN:
            is_right = is_right and not found
        else:
            is_right = is_right and (found[0] if found else None) in each.findings
        if not is_right:
            self.wrong += 1
            if len(self.mistakes) < _SHOWN_MISTAKES:
                said = ", ".join(found) or "no finding"
                self.mistakes.append(f"{each.kind} {each.pod.name}: {verdict.state} ({verdict.reason}), {said}")

    def _is_in_gap(self, missing: int, is_last_missing: bool) -> bool:  # noqa: FBT001 -- a fact about a window
        steps = round(self.timeline.window_s / self.timeline.step_s)
        return is_last_missing or steps - missing < self.rules.min_coverage * steps

    def _accuses(self, each: Expectation, end_s: float) -> bool:
        """Whether the simple rule calls a pod wasteful."""
        known = self.exporters.utilization.get(each.pod.name, {})
        start_s = end_s - self.timeline.window_s
        total = sum(known.get(at_s, 0.0) for at_s in self.timeline.scrapes if start_s < at_s < end_s)
        return total / (self.timeline.window_s / self.timeline.scrape_s) < _LOW

    def to_metrics(self) -> dict[str, Any]:
        """Return the numbers of the report."""
        return {
            "judged": self.judged,
            "wrong": self.wrong,
            "gap_findings": self.gap_findings,
            "gap_judged": self.gap_judged,
            "beside_gaps_judged": self.beside_gaps,
            "baseline_wrong": self.baseline_wrong,
            "baseline_gap_findings": self.baseline_gap_findings,
            "states": {kind: dict(counts) for kind, counts in self.states.items()},
        }


def _group_kinds(found: list[findings.Finding]) -> Mapping[PodKey, list[Kind]]:
    kinds: dict[PodKey, list[Kind]] = defaultdict(list)
    for each in found:
        for pod in each.pods:
            kinds[pod].append(each.kind)
    return kinds

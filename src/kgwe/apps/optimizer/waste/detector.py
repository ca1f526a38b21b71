"""Judges the GPU use of all pods, and recommends what to do about waste.

A round reads one window of usage for the whole cluster. An error with one pod concerns that pod alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from kgwe.forecast.waste import recommend as advice
from kgwe.forecast.waste.findings import find_waste
from kgwe.forecast.waste.verdicts import PodFacts as JudgedPod
from kgwe.forecast.waste.verdicts import judge_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.forecast.waste.alternatives import Alternative, Needs
    from kgwe.forecast.waste.findings import Finding
    from kgwe.forecast.waste.recommend import Prices, Recommendation
    from kgwe.forecast.waste.rules import Rules
    from kgwe.forecast.waste.score import Formula
    from kgwe.forecast.waste.verdicts import Verdict
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import PodKey, UsageWindow

log = structlog.get_logger(__name__)

_MILLI = 1000


class NeedsSource(Protocol):
    """What is known of a pod beyond the window: its history and its declarations."""

    def find_needs(self, facts: PodFacts) -> Needs: ...


@dataclass(frozen=True, slots=True)
class Assessed:
    """A finding with the pod it is about and the advice for it."""

    facts: PodFacts
    finding: Finding
    recommendation: Recommendation | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of one round."""

    at_s: float = 0.0
    findings: tuple[Assessed, ...] = ()
    verdicts: Mapping[PodKey, Verdict] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)
    """State -> pods."""
    problem: str = ""
    """Why usage data is missing or stale."""


class WasteDetector:
    """Judges and recommends. Writes nothing."""

    def __init__(
        self,
        source: MetricSource,
        rules: Rules,
        *,
        list_pods: Callable[[], Mapping[PodKey, PodFacts]],
        needs: NeedsSource,
        prices: Prices,
        check: Callable[[str, Alternative], bool | None],
        formula: Formula,
        step_s: float,
        start_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`check`: whether the cluster has room for an alternative of the pod with this UID; None is unknown.

        `start_round`: called before the first check of each round.
        """
        self._source = source
        self._rules = rules
        self._list_pods = list_pods
        self._needs = needs
        self._prices = prices
        self._check = check
        self._start_round = start_round
        self._formula = formula
        self._step_s = step_s
        self.failures = 0

    async def assess(self, now_s: float) -> Assessment:
        """Judge all pods on the window that ends now."""
        end_s = now_s // self._step_s * self._step_s
        window = await self._source.read_window(end_s, self._rules.window_s, self._step_s)
        return self.judge(window, now_s)

    def judge(self, window: UsageWindow, now_s: float) -> Assessment:
        """Judge all pods on a window."""
        pods, judged = self._describe_pods()
        return self._conclude(pods, self._find(window, judged), now_s)

    async def judge_apart(self, window: UsageWindow, now_s: float) -> Assessment:
        """Do the same, and judge a large window in a thread. Advice needs the live cluster, so it is not made there."""
        pods, judged = self._describe_pods()
        return self._conclude(pods, await asyncio.to_thread(self._find, window, judged), now_s)

    def _describe_pods(self) -> tuple[dict[PodKey, PodFacts], list[JudgedPod]]:
        known = self._list_pods()
        # A pod that has ended holds no GPUs; as a member of a gang it would make the others unknown.
        pods = {key: facts for key, facts in known.items() if not facts.is_ended}
        return pods, describe_pods(pods.values(), known.values())

    def _find(self, window: UsageWindow, judged: list[JudgedPod]) -> tuple[list[Verdict], list[Finding]]:
        verdicts = judge_pods(window, judged, self._rules)
        return verdicts, list(find_waste(verdicts, self._rules, self._formula))

    def _conclude(
        self, pods: Mapping[PodKey, PodFacts], found: tuple[list[Verdict], list[Finding]], now_s: float
    ) -> Assessment:
        verdicts, wasteful = found
        self._start_round()
        findings = [
            Assessed(pods[key], finding, self._recommend(pods[key], finding))
            for finding in wasteful
            for key in finding.pods
            if key in pods
        ]
        return Assessment(
            at_s=now_s,
            findings=tuple(findings),
            verdicts={verdict.pod: verdict for verdict in verdicts},
            states=Counter(str(verdict.state) for verdict in verdicts),
            problem=self._source.problem() or "",
        )

    def _recommend(self, facts: PodFacts, finding: Finding) -> Recommendation | None:
        if finding.verdict is None or not finding.kind.is_waste:
            return None
        try:
            return advice.recommend(
                finding.verdict,
                self._needs.find_needs(facts),
                self._prices,
                self._rules,
                lambda alternative: self._check(facts.uid, alternative),
            )
        except Exception:  # one pod must not hide the findings of others
            self.failures += 1
            log.exception("recommendation_failed", pod=facts.key)
            return None


def describe_pod(facts: PodFacts) -> JudgedPod:
    """Return the pod as the detector judges it."""
    shape = facts.fingerprint.shape
    whole = shape.milli_gpus // _MILLI if shape.milli_gpus >= _MILLI else None
    started_s = facts.started_s if facts.phase == "Running" else None
    # Whole GPUs and shares are charged as what was asked for: another pod in the window may have had the GPU before.
    asked = min(shape.milli_gpus / _MILLI, 1.0) if shape.milli_gpus and not shape.mig_profile else None
    return JudgedPod(key=facts.key, started_s=started_s, devices=whole, gang=_name_gang(facts), fraction=asked)


def describe_pods(pods: Iterable[PodFacts], known: Iterable[PodFacts]) -> list[JudgedPod]:
    """Return the pods as the detector judges them. The only known pod of its owner is no gang."""
    members = Counter(_name_gang(facts) for facts in known)
    found = ((describe_pod(facts), members[_name_gang(facts)]) for facts in pods)
    return [each if count > 1 else replace(each, gang="") for each, count in found]


def _name_gang(facts: PodFacts) -> str:
    return f"{facts.key.namespace}/{facts.owner_kind}/{facts.owner_name}" if facts.owner_kind in _GANGS else ""


# Owners whose pods work together: one idle pod beside busy ones is an imbalance, not waste.
_GANGS = frozenset({"GPUWorkload", "Job", "JobSet", "PyTorchJob", "MPIJob", "LeaderWorkerSet"})


def sum_savings(assessment: Assessment) -> dict[str, float]:
    """Return namespace -> dollars per hour that the recommendations would save. Advice without money is left out."""
    total: dict[str, float] = {}
    for each in assessment.findings:
        advised = each.recommendation
        if advised is not None and advised.hourly_saving and not advised.is_advice_only:
            namespace = each.facts.key.namespace
            total[namespace] = total.get(namespace, 0.0) + advised.hourly_saving
    return total


def select_findings(findings: Sequence[Assessed], namespace: str, min_score: float) -> list[Assessed]:
    """Return the findings of a namespace (empty: all) with at least this score, worst first.

    Imbalances have no score and always count.
    """
    chosen = [
        each
        for each in findings
        if namespace in {"", each.facts.key.namespace}
        and (each.finding.score is None or each.finding.score >= min_score)
    ]
    return sorted(chosen, key=lambda each: (-(each.finding.score or 0.0), each.facts.key))

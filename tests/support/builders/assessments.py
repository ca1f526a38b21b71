"""Judgements of pods for tests of what the optimizer makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.builders import optimizer_pods

from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.forecast.waste.findings import Finding, Kind
from kgwe.forecast.waste.recommend import Recommendation
from kgwe.forecast.waste.states import Reason, State
from kgwe.forecast.waste.verdicts import Verdict

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.gpu_pods import PodFacts

#: Before the windows of `usage_windows`.
LONG_AGO = "2023-11-01T00:00:00Z"
_KINDS = {State.IDLE: Kind.IDLE, State.IDLE_HOLDING: Kind.IDLE_HOLDING}


def facts(name: str = "train-0", **changes: Any) -> PodFacts:
    """Return a pod of namespace `team` that has run for a long time."""
    return optimizer_pods.read(name, **{"namespace": "team", "started": LONG_AGO, **changes})


def verdict(pod: PodFacts, state: State) -> Verdict:
    return Verdict(pod.key, state, Reason.NO_SAMPLES if state is State.UNKNOWN else Reason.MEASURED)


def recommendation(pod: PodFacts, cost: float | None = 3.0, **changes: Any) -> Recommendation:
    suspend = Alternative(Action.SUSPEND, 1, "H100-SXM5-80GB")
    made = {"alternative": suspend, "hourly_cost": cost, "hourly_saving": cost, "is_feasible": True, "confidence": 0.6}
    return Recommendation(pod.key, Action.SUSPEND, **(made | changes))


def found(pod: PodFacts, kind: Kind = Kind.IDLE, score: float | None = 100.0, **changes: Any) -> Assessed:
    state = State.IDLE_HOLDING if kind is Kind.IDLE_HOLDING else State.IDLE
    finding = Finding(kind, (pod.key,), f"{pod.key.name} did nothing", state, score, verdict=verdict(pod, state))
    advised = changes.pop("recommendation", recommendation(pod))
    return Assessed(pod, finding, advised)


def assessment(states: dict[PodFacts, State] | list[tuple[PodFacts, State]], at_s: float, **changes: Any) -> Assessment:
    """Return a judgement with these states, and the findings that follow from them."""
    pairs = list(states.items()) if isinstance(states, dict) else states
    return Assessment(
        at_s=at_s,
        findings=tuple(found(pod, _KINDS[state]) for pod, state in pairs if state in _KINDS),
        verdicts={pod.key: verdict(pod, state) for pod, state in pairs},
        **changes,
    )

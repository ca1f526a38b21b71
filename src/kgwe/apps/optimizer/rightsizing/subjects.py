"""What is known of each key of a namespace: its pods, their history, and how pods with smaller requests fare."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from kgwe.apps.optimizer.rightsizing.keys import PodRole, find_role, is_managed
from kgwe.forecast.memory import predict_memory
from kgwe.forecast.rightsizing import faults
from kgwe.forecast.rightsizing.decide import Subject
from kgwe.model.devices import preferences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.needs import UsageHistory
    from kgwe.model.usage.history import OutOfMemory, UsagePeak


@dataclass
class KeyPods:
    """Pods of one key."""

    whole: list[PodFacts] = field(default_factory=list)
    smaller: list[PodFacts] = field(default_factory=list)
    gpus: int = 1

    @property
    def all(self) -> list[PodFacts]:
        return [*self.whole, *self.smaller]


@dataclass(frozen=True, slots=True)
class Found:
    """One key with its pods."""

    subject: Subject
    #: a pod with a whole GPU, to ask the engine about; empty: there is none
    uid: str
    outcomes: tuple[faults.Outcome, ...]


def group_by_namespace(pods: Iterable[PodFacts]) -> dict[str, dict[str, KeyPods]]:
    """Return namespace -> key -> pods."""
    found: dict[str, dict[str, KeyPods]] = defaultdict(lambda: defaultdict(KeyPods))
    for facts in pods:
        role = find_role(facts)
        if role is not None:
            _add(found[facts.key.namespace][role.key], facts, role)
    return {namespace: dict(keys) for namespace, keys in found.items()}


def _add(group: KeyPods, facts: PodFacts, role: PodRole) -> None:
    (group.smaller if role.is_smaller else group.whole).append(facts)
    group.gpus = role.gpus


def describe_key(
    key: str,
    pods: KeyPods,
    *,
    history_of: Callable[[str], UsageHistory],
    run_p95_of: Callable[[str], float | None],
    is_preallocator: Callable[[PodFacts], bool],
    kept_fingerprint: str,
    now_s: float,
) -> Found:
    """Return what is known of a key. `kept_fingerprint`: of its present decision, if its whole pods are gone."""
    whole = list(dict.fromkeys(each.fingerprint.key for each in pods.whole)) or [kept_fingerprint]
    peaks, facts = _read_history([*whole, *(each.fingerprint.key for each in pods.smaller)], history_of)
    whole_peaks, _ = _read_history(whole, history_of)
    rates = [rate for each in pods.whole if (rate := faults.read_rate(each.annotations.get(faults.RATE))) is not None]
    is_taking_all = any(map(is_preallocator, pods.all))
    subject = Subject(
        key=key,
        gpus=pods.gpus,
        memory=predict_memory(peaks, facts, is_preallocator=is_taking_all),
        activity_p95=max((peak.activity_p95 for peak in whole_peaks if peak.activity_p95 is not None), default=None),
        hours=sum(peak.memory_peak_mib is not None for peak in whole_peaks),
        gpu_memory_mib=max((peak.memory_total_mib or 0.0 for peak in whole_peaks), default=0.0) or None,
        pods=len([each for each in pods.all if not each.is_ended]),
        allowed=_read_preferences(pods.all),
        is_managed=any(map(is_managed, pods.all)),
        is_preallocator=is_taking_all,
        is_ambiguous=len({(each.fingerprint.command, each.fingerprint.owner) for each in pods.all}) > 1,
        fingerprint=whole[0],
        run_p95_s=run_p95_of(whole[0]) if whole[0] else None,
        rate=median(rates) if rates else None,
    )
    live = next((each for each in pods.whole if not each.is_ended and each.node), None)
    outcomes = tuple(describe_outcome(each, now_s) for each in pods.smaller)
    return Found(subject, live.uid if live else "", outcomes)


def _read_history(
    keys: Sequence[str], history_of: Callable[[str], UsageHistory]
) -> tuple[list[UsagePeak], list[OutOfMemory]]:
    peaks: list[UsagePeak] = []
    facts: list[OutOfMemory] = []
    for key in dict.fromkeys(key for key in keys if key):
        known = history_of(key)
        peaks += known.peaks
        facts += known.out_of_memory
    return peaks, facts


def _read_preferences(pods: Sequence[PodFacts]) -> preferences.Preferences:
    """Return what all pods of a key allow: the strictest of them."""
    found = preferences.ANYTHING
    for each in pods:
        said = preferences.read_preferences(each.annotations)
        found = replace(
            found,
            slices=found.slices and said.slices,
            shares=found.shares and said.shares,
            profile=found.profile or said.profile,
            why=found.why or said.why,
        )
    return found


def describe_outcome(facts: PodFacts, now_s: float) -> faults.Outcome:
    """Return how a pod with a smaller request fares."""
    end = facts.ended_s if facts.ended_s is not None else now_s
    is_finite = facts.owner_kind in ("Job", "GPUWorkload", "Pod")
    return faults.Outcome(
        facts.key.name,
        ran_out_of_memory=bool(facts.out_of_memory),
        restarts=facts.restarts,
        lasted_s=max(end - facts.started_s, 0.0) if facts.started_s is not None and is_finite else 0.0,
        rate=faults.read_rate(facts.annotations.get(faults.RATE)),
    )


def list_fingerprints(groups: Mapping[str, Mapping[str, KeyPods]], kept: Iterable[str]) -> set[str]:
    """Return all fingerprints whose history is needed."""
    live = {each.fingerprint.key for keys in groups.values() for pods in keys.values() for each in pods.all}
    return live | {each for each in kept if each}

"""Runs of workloads, put together from their pods.

A run is what one controller (a Job, a ReplicaSet) or one bare pod runs. It ends when all its pods have ended. A run
whose pods disappear before they end is never written as ended: it lasted at least until it was last seen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.model.usage.history import OutOfMemory, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.window import PodKey

_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Batch:
    """What the store does not have yet."""

    fingerprints: tuple[Fingerprint, ...] = ()
    runs: tuple[Run, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fingerprints or self.runs or self.out_of_memory)


@dataclass(slots=True)
class _Group:
    """The pods of one run. Pods that are gone but had ended still count."""

    pods: dict[str, PodFacts] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    is_changed: bool = True


def _ignore_start(_: Run) -> float | None:
    return None


class RunTracker:
    """Follows pods and says which runs, facts and fingerprints to store."""

    def __init__(
        self, *, domain_of: Callable[[str], str] = lambda _: "", predict: Callable[[Run], float | None] = _ignore_start
    ) -> None:
        """`domain_of`: node -> network domain. `predict`: the median predicted for a run that has just started."""
        self._domain_of = domain_of
        self._predict = predict
        self._groups: dict[str, _Group] = {}
        self._run_of: dict[str, str] = {}
        self._by_key: dict[PodKey, PodFacts] = {}
        self._predicted: dict[str, float | None] = {}

    @property
    def pods(self) -> dict[PodKey, PodFacts]:
        """The pods with GPUs that exist, by key."""
        return self._by_key

    def set_pod(self, facts: PodFacts) -> None:
        """Take in a pod that was created or has changed."""
        if (before := self._run_of.get(facts.uid)) not in {None, facts.run_uid}:
            # A controller released the pod: it is a run of its own now.
            self._groups[str(before)].pods.pop(facts.uid, None)
        group = self._groups.setdefault(facts.run_uid, _Group())
        if group.pods.get(facts.uid) != facts:
            group.is_changed = True
        group.pods[facts.uid] = facts
        self._run_of[facts.uid] = facts.run_uid
        self._by_key[facts.key] = facts

    def drop_pod(self, uid: str) -> None:
        """Take in that a pod no longer exists."""
        run = self._run_of.pop(uid, None)
        if run is None:
            return
        group = self._groups[run]
        facts = group.pods[uid]
        if self._by_key.get(facts.key) is facts:
            del self._by_key[facts.key]
        group.gone.add(uid)
        group.is_changed = True
        if not facts.is_ended:
            del group.pods[uid]

    def collect(self, now_s: float) -> Batch:
        """Return what changed since the last call, and forget runs whose pods are all gone.

        Runs that still run are always part of it: each observation of them lengthens what is known.
        """
        batch = self._read_changes(now_s)
        for uid in [uid for uid, group in self._groups.items() if group.pods.keys() <= group.gone]:
            del self._groups[uid]
            self._predicted.pop(uid, None)
        return batch

    def _read_changes(self, now_s: float) -> Batch:
        fingerprints: dict[str, Fingerprint] = {}
        runs: list[Run] = []
        facts: list[OutOfMemory] = []
        for uid, group in self._groups.items():
            run = self._build_run(uid, group, now_s)
            if run is None or not (group.is_changed or run.is_censored):
                continue
            group.is_changed = False
            fingerprint = next(iter(group.pods.values())).fingerprint
            fingerprints[fingerprint.key] = fingerprint
            runs.append(run)
            facts += _list_out_of_memory(group.pods.values(), run)
        return Batch(tuple(fingerprints.values()), tuple(runs), tuple(facts))

    def _build_run(self, uid: str, group: _Group, now_s: float) -> Run | None:
        """Return the run; None before one of its pods has started."""
        pods = list(group.pods.values())
        starts = [each.started_s for each in pods if each.started_s is not None]
        if not starts:
            return None
        ends = [each.ended_s for each in pods]
        is_ended = all(each.is_ended for each in pods) and None not in ends
        first = pods[0]
        domains = [domain for each in pods if (domain := self._domain_of(each.node))]
        run = Run(
            uid=uid,
            fingerprint=first.fingerprint.key,
            submitted_s=min(each.submitted_s for each in pods),
            started_s=min(starts),
            ended_s=max(each for each in ends if each is not None) if is_ended else None,
            seen_s=now_s,
            succeeded=all(each.phase == "Succeeded" for each in pods) if is_ended else None,
            user=first.user,
            version=first.fingerprint.version,
            gpus=sum(each.fingerprint.shape.milli_gpus for each in pods) / _MILLI,
            pods=len(pods),
            gpu_model=first.fingerprint.shape.gpu_model,
            domain=max(sorted(set(domains)), key=domains.count) if domains else "",
            oom_kills=sum(len(each.out_of_memory) for each in pods),
            restarts=sum(each.restarts for each in pods),
        )
        return dataclasses.replace(run, predicted_s=self._find_prediction(run))

    def _find_prediction(self, run: Run) -> float | None:
        if run.uid not in self._predicted:
            self._predicted[run.uid] = self._predict(run)
        return self._predicted[run.uid]


def _list_out_of_memory(pods: Iterable[PodFacts], run: Run) -> list[OutOfMemory]:
    return [
        OutOfMemory(run.fingerprint, end.at_s, pod.uid, version=run.version)
        for pod in pods
        for end in pod.out_of_memory
    ]

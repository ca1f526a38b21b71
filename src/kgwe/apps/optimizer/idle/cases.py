"""One workload with idle GPUs in one round: what is seen of it, and what is remembered afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from kgwe.cluster.suspension import marks
from kgwe.cluster.suspension.suspender import is_suspended
from kgwe.forecast.waste import idle_annotations, idle_policy
from kgwe.forecast.waste.idle_policy import Phase, Sighting
from kgwe.forecast.waste.states import State

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.idle.ledger import Entry
    from kgwe.apps.optimizer.waste.detector import Assessment
    from kgwe.cluster.suspension.owner_search import Owner
    from kgwe.cluster.suspension.suspender import Outcome
    from kgwe.forecast.waste.idle_policy import IdlePolicy, Transition


@dataclass(slots=True)
class Case:
    """One workload in one round."""

    entry: Entry
    pods: list[PodFacts]
    policy: IdlePolicy
    assessment: Assessment
    now_s: float
    elapsed_s: float
    owner: Owner | None = None
    siblings: list[PodFacts] = field(default_factory=list)
    """Pods of the same owner in other groups: what a pod says about its owner is a claim."""

    def advance(self) -> Transition:
        """Return what follows from what is seen of the workload."""
        pods = [*self.pods, *self.siblings]
        verdicts = [self.assessment.verdicts.get(facts.key) for facts in pods]
        notes = [facts.annotations for facts in pods]
        if self.owner is not None:
            notes.append(self.owner.meta.annotations)
        keep_until_s, _ = idle_annotations.read_keep_until(*notes)
        sighting = Sighting(
            state=idle_policy.combine_states(State.UNKNOWN if each is None else each.state for each in verdicts),
            now_s=self.now_s,
            elapsed_s=self.elapsed_s,
            keep_until_s=keep_until_s,
            is_opted_out=idle_annotations.is_opted_out(*notes),
            is_suspended=self.is_suspended_by_us(),
        )
        return idle_policy.advance(self.entry.record, sighting, self.policy)

    def is_suspended_by_us(self) -> bool:
        """Whether the object is suspended, as the ledger or its annotations say by KGWE."""
        owner, entry = self.owner, self.entry
        if owner is None or owner.meta.uid != entry.owner_uid or not is_suspended(owner):
            return False
        return entry.suspended_s is not None or marks.read_record(owner.meta.annotations) is not None

    def is_worth_keeping(self) -> bool:
        """Whether a workload without pods is remembered: it is, or was, suspended, and its owner still exists."""
        return self.owner is not None and (self.entry.suspensions > 0 or self.is_suspended_by_us())

    def sum_saving(self) -> float | None:
        """Return what the pods cost per hour; None if the price of one is unknown."""
        mine = {facts.key for facts in self.pods}
        costs = [
            each.recommendation.hourly_cost
            for each in self.assessment.findings
            if each.facts.key in mine and each.recommendation is not None
        ]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def note_suspension(self, outcome: Outcome) -> Entry:
        """Return the entry of a workload that was suspended now."""
        entry = self.entry.with_owner(self.owner) if self.owner is not None else self.entry
        return msgspec.structs.replace(
            entry,
            owner_kind=outcome.kind,
            owner_name=outcome.name,
            owner_uid=outcome.uid,
            replicas=outcome.replicas,
            suspended_s=self.now_s,
            suspensions=entry.suspensions + 1,
            # Not only with the next sighting: the owner may have restored it by then.
            record=replace(entry.record, phase=Phase.SUSPENDED),
        )

    def adopt_suspension(self) -> Entry:
        """Return the entry of a suspension that only the annotations of the object tell of."""
        record = marks.read_record(self.owner.meta.annotations) if self.owner is not None else None
        since_s = marks.parse_time(record.at) if record is not None else None
        return msgspec.structs.replace(
            self.entry,
            replicas=record.replicas if record is not None else None,
            # What annotations say is a claim: no saving before the process itself has seen it, if it lies ahead.
            suspended_s=self.now_s if since_s is None else min(since_s, self.now_s),
            suspensions=self.entry.suspensions + 1,
        )

"""The devices and the cost of each owner of GPU pods in one round."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from kgwe.apps.optimizer.waste.savings import name_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.allocations import Allocation
    from kgwe.apps.optimizer.waste.savings import Form, Key
    from kgwe.forecast.waste.recommend import Prices
    from kgwe.forecast.waste.verdicts import Verdict
    from kgwe.model.usage.window import PodKey


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """An owner in one round."""

    pods: Sequence[PodFacts]
    form: Form | None
    """None: its pods do not run, or differ."""
    per_hour: float | None
    """What its pods cost. None: unknown."""
    p95: float | None
    oom_kills: int
    since_s: float = math.inf
    """Time at which the last of its pods started. Infinite: one has not."""


@dataclass(frozen=True, slots=True)
class UseReader:
    """Reads what owners hold and cost. Only how busy their devices are comes from metrics."""

    prices: Prices
    find_allocation: Callable[[str], Allocation | None]

    def read(self, pods: Iterable[PodFacts], verdicts: Mapping[PodKey, Verdict]) -> dict[Key, OwnerUse]:
        """Return the owners with pods that have not ended."""
        members: dict[Key, list[PodFacts]] = defaultdict(list)
        for facts in pods:
            if not facts.is_ended:
                members[facts.key.namespace, facts.owner_kind, facts.owner_name].append(facts)
        return {key: self._read_owner(mine, verdicts) for key, mine in members.items()}

    def _read_owner(self, pods: list[PodFacts], verdicts: Mapping[PodKey, Verdict]) -> OwnerUse:
        seen = [(facts, verdicts.get(facts.key)) for facts in pods]
        held = [self._find_held(facts, verdict) for facts, verdict in seen]
        known = [each for each in held if each is not None]
        forms = {each.form for each in known}
        is_complete = len(known) == len(held)
        costs = [self._find_cost(each) for each in known]
        priced = [cost for cost in costs if cost is not None]
        # Metrics of a shared GPU are of all its pods.
        peaks = [each.p95 for _, each in seen if each is not None and each.p95 is not None and not each.is_shared]
        return OwnerUse(
            pods,
            form=next(iter(forms)) if is_complete and len(forms) == 1 else None,
            per_hour=math.fsum(priced) if len(priced) == len(held) else None,
            p95=max(peaks, default=None),
            oom_kills=sum(len(each.out_of_memory) for each in pods),
            since_s=max((each.started_s or math.inf for each in pods), default=math.inf),
        )

    def _find_held(self, facts: PodFacts, verdict: Verdict | None) -> Allocation | None:
        """Return what a running pod holds. Where nodes have no label of their GPUs, metrics name the model."""
        found = self.find_allocation(facts.uid) if facts.phase == "Running" else None
        if found is None or found.form.model or verdict is None:
            return found
        return replace(found, form=msgspec.structs.replace(found.form, model=name_model(verdict.model)))

    def _find_cost(self, held: Allocation) -> float | None:
        price = self.prices.find(held.form.model, is_spot=held.form.is_spot)
        return None if price is None else held.gpus * price

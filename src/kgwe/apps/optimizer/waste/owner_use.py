"""The devices and the cost of each owner of GPU pods in one round."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.apps.optimizer.waste.savings import Form
from kgwe.forecast.waste import gpu_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.savings import Key
    from kgwe.forecast.waste.recommend import Prices
    from kgwe.forecast.waste.verdicts import Verdict
    from kgwe.model.usage.window import PodKey

_MILLI: Final = 1000


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


@dataclass(frozen=True, slots=True)
class UseReader:
    """Reads what owners use."""

    prices: Prices
    is_spot: Callable[[str], bool]

    def read(self, pods: Iterable[PodFacts], verdicts: Mapping[PodKey, Verdict]) -> dict[Key, OwnerUse]:
        """Return the owners with pods that have not ended."""
        members: dict[Key, list[PodFacts]] = defaultdict(list)
        for facts in pods:
            if not facts.is_ended:
                members[facts.key.namespace, facts.owner_kind, facts.owner_name].append(facts)
        return {key: self._read_owner(mine, verdicts) for key, mine in members.items()}

    def _read_owner(self, pods: list[PodFacts], verdicts: Mapping[PodKey, Verdict]) -> OwnerUse:
        pairs = [(facts, verdicts.get(facts.key)) for facts in pods]
        forms = {self._read_form(facts, verdict) for facts, verdict in pairs}
        form = next(iter(forms)) if len(forms) == 1 else None
        costs = [self._find_cost(facts, verdict) for facts, verdict in pairs]
        known = [cost for cost in costs if cost is not None]
        # Metrics of a shared GPU are of all its pods.
        peaks = [each.p95 for _, each in pairs if each is not None and each.p95 is not None and not each.is_shared]
        per_hour = sum(known) if len(known) == len(costs) else None
        return OwnerUse(pods, form, per_hour, max(peaks, default=None), sum(len(each.out_of_memory) for each in pods))

    def _read_form(self, facts: PodFacts, verdict: Verdict | None) -> Form | None:
        """Return the devices of a pod; None if it does not run, or its devices are not seen."""
        if facts.phase != "Running" or verdict is None or not verdict.devices:
            return None
        shape = facts.fingerprint.shape
        return Form(shape.milli_gpus, shape.mig_profile, name_model(verdict.model), self.is_spot(facts.node))

    def _find_cost(self, facts: PodFacts, verdict: Verdict | None) -> float | None:
        if verdict is None or not verdict.devices:
            return None
        shape = facts.fingerprint.shape
        if shape.milli_gpus >= _MILLI and verdict.devices != shape.milli_gpus // _MILLI:
            # Devices of an earlier pod with the same name are still in the window.
            return None
        price = self.prices.find(verdict.model, is_spot=self.is_spot(facts.node))
        # A slice has one holder at a time; an earlier one may still be in the window.
        is_slice = bool(shape.mig_profile)
        part = gpu_parts.slice_fraction(verdict.model, shape.mig_profile) if is_slice else verdict.fraction
        return None if price is None else verdict.devices * part * price


def name_model(name: str) -> str:
    """Return the short name of a GPU model, or the name itself if the catalog does not have it."""
    model = gpu_parts.find_model(name)
    return name if model is None else model.name

"""Compares each placement with the one KGWE would choose, and sums up the differences."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.advisor.units import Partial, Unit, list_units
from kgwe.cluster.offline import is_gpu_pod
from kgwe.kube.translate import podrequest
from kgwe.placement.analysis.regret import Hindsight, Regret
from kgwe.placement.fleet.node import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.placement.analysis.regret import Measure
    from kgwe.placement.fleet.node import Gpus
    from kgwe.placement.refusal import Refusal

# Number of pod kinds that represent the requests of the cluster.
_KINDS: Final = 8
_MILLI: Final = 1000


@dataclass(frozen=True)
class Judged:
    """One placement with its regret."""

    unit: Unit
    #: a Refusal if KGWE would not have placed it with the rest of the cluster unchanged
    found: Regret | Refusal

    @property
    def regret(self) -> Regret | None:
        return self.found if isinstance(self.found, Regret) else None

    @property
    def weight(self) -> tuple[float, float, int, float]:
        """Return the sort key of the regret: bandwidth lost over all GPUs, then leaves, islands and fragmentation."""
        found = self.regret
        if found is None:
            return (0.0, 0.0, 0, 0.0)
        return (found.gb_per_s * self.unit.gpus, found.leaves, found.islands, found.fragmented)


class Judge:
    """Compares placements on the current state of one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._generation = -1
        self._hindsight: Hindsight | None = None
        self._gpus: dict[str, Gpus] = {}

    def judge(self, unit: Unit, mix: collections.Counter[Request]) -> Judged | None:
        """Return the comparison; None if the data is inconsistent: a node has fewer GPUs than its pods hold."""
        fleet = self._view.fleet
        if self._hindsight is None or self._generation != fleet.generation:
            self._hindsight, self._generation = Hindsight(fleet), fleet.generation
        try:
            return Judged(unit, self._hindsight.measure_regret(unit.ask, unit.grants, mix))
        except errors.InvariantBroken:
            return None

    def mix(self) -> collections.Counter[Request]:
        """Return the most frequent kinds of GPU pods, waiting or not."""
        counts: collections.Counter[Request] = collections.Counter()
        live = self._view.state.pods
        for uid in self._gpus.keys() - live.keys():
            del self._gpus[uid]
        for uid, pod in live.items():
            gpus = self._gpus_of(uid, pod)
            if gpus is not None:
                counts[Request(gpus)] += 1
        return collections.Counter(dict(counts.most_common(_KINDS)))

    def _gpus_of(self, uid: str, pod: core.Pod) -> Gpus | None:
        if uid not in self._gpus and is_gpu_pod(pod):
            try:
                pieces = self._view.fleet.shares_per_gpu(pod.spec.nodeName)
                self._gpus[uid] = podrequest.read_request(pod, pieces=pieces).request.gpus
            except errors.Permanent:
                return None
        return self._gpus.get(uid)


# --- a report --------------------------------------------------------------------------------------------


class Side(msgspec.Struct, frozen=True, rename="camel"):
    """One of the two placements."""

    gb_per_s: float | None
    nodes: int
    leaves: int
    islands_broken: int


class Offender(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A placement with a better alternative."""

    name: str
    scheduler: str
    gpus: float
    lost_gb_per_s: float
    extra_leaves: int
    islands_broken: int
    fragmented_gpus: float
    actual: Side
    best: Side
    would_go: tuple[str, ...] = ()


class Totals(msgspec.Struct, frozen=True, rename="camel"):
    placements: int = 0
    gangs: int = 0
    better_possible: int = 0
    not_by_kgwe: int = 0
    """Placements that KGWE would refuse: the node does not meet a requirement."""
    partial_gangs: int = 0
    lost_gb_per_s: float = 0.0
    possible_gb_per_s: float = 0.0
    leaves: int = 0
    fewest_leaves: int = 0
    islands_broken: int = 0
    fragmented_gpus: float = 0.0


class Report(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    totals: Totals
    by_scheduler: dict[str, Totals]
    worst: tuple[Offender, ...]
    partial: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge_all(view: View, namespace: str = "", top: int = 10) -> Report:
    """Compare all current placements, each with the rest of the cluster unchanged."""
    judge = Judge(view)
    mix = judge.mix()
    judged: list[Judged] = []
    partial: list[Partial] = []
    for each in list_units(view):
        if isinstance(each, Partial):
            partial.append(each)
        elif not namespace or each.namespace == namespace:
            found = judge.judge(each, mix)
            if found is not None:
                judged.append(found)
    return report(judged, partial, top, view.warnings)


def report(
    judged: Iterable[Judged], partial: Iterable[Partial] = (), top: int = 10, warnings: tuple[str, ...] = ()
) -> Report:
    listed, halves = list(judged), list(partial)
    by_scheduler = collections.defaultdict(list)
    for each in listed:
        by_scheduler[each.unit.scheduler].append(each)
    worst = sorted((each for each in listed if any(each.weight)), key=lambda each: each.weight, reverse=True)
    return Report(
        sum_up(listed, len(halves)),
        {name: sum_up(mine, 0) for name, mine in sorted(by_scheduler.items())},
        tuple(describe_offender(each) for each in worst[:top]),
        tuple(f"{each.name}: {each.placed} of {each.pods} pods placed" for each in halves),
        warnings,
    )


def sum_up(judged: Iterable[Judged], partial: int) -> Totals:
    listed = list(judged)
    regrets = [(each, each.regret) for each in listed]
    known = [found for _, found in regrets if found is not None]
    gangs = [found for each, found in regrets if found is not None and each.unit.is_gang]
    wide = [found for found in gangs if found.actual.leaves and found.best.leaves]
    rings = [found for found in known if found.actual.gb_per_s and found.best.gb_per_s]
    return Totals(
        placements=len(listed),
        gangs=len(gangs),
        better_possible=sum(not found.is_none for found in known),
        not_by_kgwe=len(listed) - len(known),
        partial_gangs=partial,
        lost_gb_per_s=round(sum(found.gb_per_s for found in rings), 1),
        possible_gb_per_s=round(sum(found.best.gb_per_s or 0.0 for found in rings), 1),
        leaves=sum(found.actual.leaves for found in wide),
        fewest_leaves=sum(min(found.best.leaves, found.actual.leaves) for found in wide),
        islands_broken=sum(found.islands for found in known),
        fragmented_gpus=round(sum(found.fragmented for found in known) / _MILLI, 2),
    )


def describe_offender(judged: Judged) -> Offender:
    found = judged.regret
    if found is None:
        raise errors.InvariantBroken("a placement without regret has no offender")
    return Offender(
        judged.unit.name,
        judged.unit.scheduler,
        judged.unit.gpus,
        round(found.gb_per_s, 1),
        found.leaves,
        found.islands,
        round(found.fragmented / _MILLI, 2),
        _side(found.actual),
        _side(found.best),
        found.plan.nodes,
    )


def _side(measure: Measure) -> Side:
    rate = None if measure.gb_per_s is None else round(measure.gb_per_s, 1)
    return Side(rate, measure.nodes, measure.leaves, measure.islands)

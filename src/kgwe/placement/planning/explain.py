"""Why work has no place now, as far as it can be told: what binds, how near it comes, and what would start it.

Every suggestion is one change, planned again on the current snapshot: `kgwe.placement.planning.diagnosis` has those of
gangs, and two more are tried here for whole GPUs in one pod: fewer of them, and the same number divided among several
pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.planning import planner
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.placement.disruption.preemption import Evictable
    from kgwe.placement.disruption.running import Victim
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.plan import LevelReport
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import FleetView
    from kgwe.placement.pod.fit import Fitter

#: nodes named for each status
EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes that say the same."""

    verdict: FitStatus
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """Where the work comes nearest to having room."""

    level: str
    domain: str
    #: pods (or, on a node, GPUs or slices) that there is room for, and that are needed
    room: int
    needed: int

    @property
    def short(self) -> int:
        return max(self.needed - self.room, 0)


@dataclass(frozen=True, slots=True)
class Change:
    """One change that starts it now."""

    kind: str
    text: str
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """None of it has a place now."""

    refusal: Refusal
    #: the constraint that binds, in words
    binding: str
    best: Best | None
    looks: tuple[LevelReport, ...]
    #: by role; one that has no name when there is only one
    nodes: dict[str, tuple[Nodes, ...]]
    changes: tuple[Change, ...]


class _NoChance:
    """For work that asks for a place at random: any is as good."""

    def randrange(self, _: int, /) -> int:
        return 0


NO_CHANCE: Final = _NoChance()


def explain(fleet: FleetView, ask: Ask, *, evictable: Evictable | None = None) -> Plan | Why:
    """Where all of it would go now, or why it goes nowhere. `evictable`: what could be stopped for it."""
    found = planner.make_plan(fleet, ask, rng=NO_CHANCE, evictable=evictable)
    if isinstance(found, Plan):
        return found
    whole = planner.divide_ask(fleet.fitter, ask)
    if isinstance(found.detail, Diagnosis):
        proof = found.detail
        best = Best(proof.level, proof.domain, proof.room, proof.needed)
        changes = tuple(_changes(proof))
        return Why(found, proof.binding_constraint, best, proof.level_reports, _nodes(fleet.fitter, whole), changes)
    if not isinstance(found.detail, Shortage):
        return Why(found, found.message, None, (), {}, ())
    return Why(
        found,
        _binding(found, len(fleet.snapshot)),
        _nearest(whole, found.detail),
        (),
        _nodes(fleet.fitter, whole),
        (*_alone(fleet, whole, evictable), *_fewer(fleet, whole), *_divided(fleet, ask)),
    )


def saying(fitter: Fitter, request: Request, examples: int = EXAMPLES) -> tuple[Nodes, ...]:
    """What the nodes say to a pod, the most frequent first."""
    codes = fitter.check_nodes(request)
    names = fitter.snapshot.nodes
    found = []
    for code in np.unique(codes).tolist():
        numbers = np.flatnonzero(codes == code).tolist()
        found.append(Nodes(FitStatus(code), len(numbers), tuple(names[n].name for n in numbers[:examples])))
    return tuple(sorted(found, key=lambda each: -each.count))


def _nodes(fitter: Fitter, ask: Ask) -> dict[str, tuple[Nodes, ...]]:
    if ask.gang is None or len(ask.gang.roles) == 1:
        request = ask.request if ask.gang is None else ask.gang.roles[0].request
        return {"": saying(fitter, request)}
    return {role.name: saying(fitter, role.request) for role in ask.gang.roles}


def _changes(proof: Diagnosis) -> Iterator[Change]:
    for change in proof.changes:
        yield Change(str(change.kind), change.text, _stopped(change.evicts))


def _stopped(victims: Sequence[Victim]) -> tuple[str, ...]:
    return tuple(victim.workload for victim in victims)


# --- one pod ---------------------------------------------------------------------------------------------


def _binding(found: Refusal, nodes: int) -> str:
    if not found.possible:
        return "no node could hold it, even with nothing running"
    reason, count = next(iter(found.counts.items()))
    return f"{count} of {nodes} nodes say {reason}, and none of the others fits either"


def _nearest(ask: Ask, near: Shortage) -> Best:
    gpus = ask.request.gpus
    needed = gpus.slices or gpus.count
    return Best("node", near.name, max(needed - (near.slices or near.gpus), 0), needed)


def _alone(fleet: FleetView, ask: Ask, evictable: Evictable | None) -> Iterator[Change]:
    """What is tried for gangs, for a gang of one."""
    try:
        found = fleet.gangs.plan(planner.gang_request(ask), evictable=evictable)
    except errors.Permanent:
        return
    if isinstance(found, Refusal) and isinstance(found.detail, Diagnosis):
        yield from _changes(found.detail)


def _fewer(fleet: FleetView, ask: Ask) -> Iterator[Change]:
    gpus = ask.request.gpus
    for count in range(gpus.count - 1, 0, -1):
        fewer = replace(ask, request=replace(ask.request, gpus=replace(gpus, count=count)), divisible=False)
        plan = planner.make_plan(fleet, fewer, rng=NO_CHANCE, explain=False)
        if isinstance(plan, Plan):
            yield Change("FewerGPUs", f"ask for {count} of the {gpus.count} GPUs ({plan.nodes[0]} has them)")
            return


def _divided(fleet: FleetView, ask: Ask) -> Iterator[Change]:
    """GPUs that one node does not have free, several may."""
    count = ask.request.gpus.count
    if not ask.divisible:
        return
    for pods in (each for each in range(2, count + 1) if count % each == 0 and ask.ranks % each == 0):
        request = replace(ask.request, gpus=replace(ask.request.gpus, count=count // pods))
        parts = replace(ask, request=request, pods=pods, divisible=False)
        plan = planner.make_plan(fleet, parts, rng=NO_CHANCE, explain=False)
        if isinstance(plan, Plan):
            where = plan.level if plan.domain in ("", plan.level) else f"{plan.level} {plan.domain}"
            rate = f", ring {plan.gb_per_s:.1f} GB/s" if plan.gb_per_s else ""
            yield Change("MorePods", f"set gpusPerPod: {count // pods}, which makes {pods} pods ({where}{rate})")
            return

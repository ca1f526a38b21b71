"""Why a workload has no place now: the problem, the nearest place, and single changes that would start it.

Every suggestion is one change, planned again on the current snapshot: `kgwe.placement.planning.diagnosis` has those of
gangs, and two more are tried here for whole GPUs in one pod: fewer of them, and the same number divided among several
pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.units.phrasing import format_bytes, format_cores, format_count, format_number, join_words
from kgwe.placement.gang.request import NODE, NVLINK
from kgwe.placement.planning import planner
from kgwe.placement.planning.changes import describe_domain
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.exclusions import list_causes
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.unmet import find_unmet
from kgwe.placement.pod import wording
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.model.network.domains import Tree
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
    """Nodes that refuse a pod for the same reason."""

    verdict: FitStatus
    text: str
    """The cause, in the words of the condition: `cordoned`, `with fewer than 16 whole GPUs`."""
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The place that comes nearest to holding the workload."""

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
    """Why it has no place now."""

    refusal: Refusal
    #: the problem, as a sentence without its full stop
    binding: str
    best: Best | None
    looks: tuple[LevelReport, ...]
    #: by role; one that has no name when there is only one
    nodes: dict[str, tuple[Nodes, ...]]
    changes: tuple[Change, ...]
    #: what to change where waiting cannot help
    fix: str = ""
    #: nodes of the nearest place
    nearest: tuple[str, ...] = ()


class _NoChance:
    """For the strategy `random`: any choice is as good."""

    def randrange(self, _: int, /) -> int:
        return 0


NO_CHANCE: Final = _NoChance()


def explain(fleet: FleetView, ask: Ask, *, evictable: Evictable | None = None) -> Plan | Why:
    """Where all of it would go now, or why it fits nowhere. `evictable`: running workloads that may be evicted."""
    found = planner.make_plan(fleet, ask, rng=NO_CHANCE, evictable=evictable)
    if isinstance(found, Plan):
        return found
    whole = planner.divide_ask(fleet.fitter, ask)
    if isinstance(found.detail, Diagnosis):
        proof = found.detail
        best = Best(proof.level, proof.domain, proof.room, proof.needed)
        changes = tuple(_changes(proof))
        return Why(
            found,
            proof.binding_constraint,
            best,
            proof.level_reports if any(report.most for report in proof.level_reports) else (),
            _nodes(fleet.fitter, whole),
            changes,
            proof.fix,
            () if proof.unmet else _list_domain(fleet.tree, proof.level, proof.domain),
        )
    if not isinstance(found.detail, Shortage):
        return Why(found, found.message.rstrip("."), None, (), {}, ())
    unmet = find_unmet(fleet.fitter, whole.request, whole.fields)
    return Why(
        found,
        unmet.problem if unmet else _describe_shortage(fleet.fitter, whole.request, found.detail),
        _describe_nearest(whole, found.detail),
        (),
        _nodes(fleet.fitter, whole),
        (
            *_try_gang_changes(fleet, whole, evictable),
            *_try_less_cpu(fleet, whole, found.detail),
            *_try_fewer_gpus(fleet, whole),
            *_try_division(fleet, ask),
        ),
        unmet.fix if unmet else "",
        () if unmet else (found.detail.name,),
    )


def _list_domain(tree: Tree, level: str, domain: str) -> tuple[str, ...]:
    """Nodes of a domain; all nodes for a level that the network does not have."""
    if level == NODE:
        return (domain,)
    for each in tree.levels:
        if each.name == level and domain in each.names:
            return tree.nodes[each.nodes(each.names.index(domain))]
    if level == NVLINK and domain in tree.nvlink_names:
        number = tree.nvlink_names.index(domain)
        return tuple(name for name, at in zip(tree.nodes, tree.nvlink_of.tolist(), strict=True) if at == number)
    return tree.nodes


def count_nodes(fitter: Fitter, request: Request, examples: int = EXAMPLES) -> tuple[Nodes, ...]:
    """Nodes by the cause that keeps a pod off them, the most frequent first."""
    codes = fitter.check_nodes(request)
    names = fitter.snapshot.nodes
    found = []
    for status in map(FitStatus, np.unique(codes).tolist()):
        for cause in list_causes(fitter.snapshot, request, status, np.flatnonzero(codes == status).tolist()):
            listed = tuple(names[number].name for number in cause.nodes[:examples])
            found.append(Nodes(status, cause.text, len(cause.nodes), listed))
    return tuple(sorted(found, key=lambda each: -each.count))


def _nodes(fitter: Fitter, ask: Ask) -> dict[str, tuple[Nodes, ...]]:
    if ask.gang is None or len(ask.gang.roles) == 1:
        request = ask.request if ask.gang is None else ask.gang.roles[0].request
        return {"": count_nodes(fitter, request)}
    return {role.name: count_nodes(fitter, role.request) for role in ask.gang.roles}


def _changes(proof: Diagnosis) -> Iterator[Change]:
    for change in proof.changes:
        yield Change(str(change.kind), change.text, _name_victims(change.evicts))


def _name_victims(victims: Sequence[Victim]) -> tuple[str, ...]:
    return tuple(victim.workload for victim in victims)


# --- one pod ---------------------------------------------------------------------------------------------


def _describe_shortage(fitter: Fitter, request: Request, near: Shortage) -> str:
    """`No node has 8 free GPUs`, `The only node that could run it, n1, has 2 of 8 GPUs free`."""
    could = np.flatnonzero(fitter.check_empty_nodes(request) == FitStatus.FITS)
    best = wording.describe_nearest(request, near)
    if len(could) == 1:
        return f"The only node that could run it is full: {best}"
    wanted = wording.describe_gpus(request.gpus)
    free = {FitStatus.SHARE_TAKEN: f"a free share of {wanted}", FitStatus.NO_SLICE: f"{wanted} free"}
    if near.verdict in (FitStatus.CPU, FitStatus.MEMORY, FitStatus.PODS):
        lacks = {FitStatus.CPU: "CPU", FitStatus.MEMORY: "memory"}.get(near.verdict, "pod slots")
        return f"Enough GPUs are free, but not enough {lacks}. Nearest: {best}"
    if near.verdict is FitStatus.WIRING:
        return f"Enough GPUs are free on {near.name}, but they are not connected as required"
    return f"None of the {len(could)} nodes that could run it has {free.get(near.verdict, f'{wanted} free')} now"


def _describe_nearest(ask: Ask, near: Shortage) -> Best:
    gpus = ask.request.gpus
    needed = gpus.slices or gpus.count
    return Best("node", near.name, max(needed - (near.slices or near.gpus), 0), needed)


def _try_gang_changes(fleet: FleetView, ask: Ask, evictable: Evictable | None) -> Iterator[Change]:
    """The changes that are tried for gangs, for a gang of one pod."""
    try:
        found = fleet.gangs.plan(planner.gang_request(ask), evictable=evictable, fields=ask.fields)
    except errors.Permanent:
        return
    if isinstance(found, Refusal) and isinstance(found.detail, Diagnosis):
        yield from _changes(found.detail)


def _try_less_cpu(fleet: FleetView, ask: Ask, near: Shortage) -> Iterator[Change]:
    """As much CPU and memory as the nearest node has free."""
    request = ask.request
    cpu_milli, memory_bytes = request.cpu_milli - near.cpu_milli, request.memory_bytes - near.memory_bytes
    if not (near.cpu_milli or near.memory_bytes) or min(cpu_milli, memory_bytes) < 0:
        return
    less = replace(ask, request=replace(request, cpu_milli=cpu_milli, memory_bytes=memory_bytes), divisible=False)
    plan = planner.make_plan(fleet, less, rng=NO_CHANCE, explain=False)
    if isinstance(plan, Plan):
        amounts = [format_cores(cpu_milli)] if near.cpu_milli else []
        amounts += [f"{format_bytes(memory_bytes)} of memory"] if near.memory_bytes else []
        yield Change("LessCPUOrMemory", f"request {join_words(amounts)} or less ({plan.nodes[0]} has that free)")


def _try_fewer_gpus(fleet: FleetView, ask: Ask) -> Iterator[Change]:
    gpus = ask.request.gpus
    for count in range(gpus.count - 1, 0, -1):
        fewer = replace(ask, request=replace(ask.request, gpus=replace(gpus, count=count)), divisible=False)
        plan = planner.make_plan(fleet, fewer, rng=NO_CHANCE, explain=False)
        if isinstance(plan, Plan):
            text = f"ask for {format_count(count, 'GPU')} instead of {gpus.count} ({_describe_free(fleet, plan)})"
            yield Change("FewerGPUs", text)
            return


def _describe_free(fleet: FleetView, plan: Plan) -> str:
    """The node of the plan, and why it takes no more GPUs."""
    name, request = plan.nodes[0], plan.ask.request
    count = request.gpus.count
    free = int(fleet.snapshot.free[fleet.snapshot.index[name]]).bit_count()
    if free > count and request.connection_fields:
        return f"{name}; no {count + 1} of its {free} free GPUs are connected as required"
    return f"{name} has {count} free" if free == count else name


def _try_division(fleet: FleetView, ask: Ask) -> Iterator[Change]:
    """Several nodes may have the GPUs that one node does not have free. GPUs that must be connected stay together."""
    count = ask.request.gpus.count
    if not ask.divisible:
        return
    most = count // 2 if ask.request.connection_fields else count
    for pods in (each for each in range(2, most + 1) if count % each == 0 and ask.ranks % each == 0):
        request = replace(ask.request, gpus=replace(ask.request.gpus, count=count // pods))
        parts = replace(ask, request=request, pods=pods, divisible=False)
        plan = planner.make_plan(fleet, parts, rng=NO_CHANCE, explain=False)
        if isinstance(plan, Plan):
            where = describe_domain(plan.level, plan.domain)
            rate = f", {format_number(round(plan.gb_per_s, 1))} GB/s between nodes" if plan.gb_per_s else ""
            yield Change("MorePods", f"set gpusPerPod to {count // pods}: {pods} pods ({where}{rate})")
            return

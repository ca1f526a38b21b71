"""A gang that cannot start: the constraint that binds, how short the best domain is, and what would start it now.

Every suggestion is one change, made on the same snapshot and planned anew before it is offered: it carries the plan
it leads to. Nothing is guessed, so "no change found" is an answer too.

    LowerLevel        the required level, one step at a time           RelaxWiring     links between a pod's own GPUs
    FewerReplicas     as many as fit                                   RelaxNetwork    GB/s between nodes
    OtherModel        any GPU model and architecture                   RelaxSegment    groups that must stay together
    MixModels         several models, or CPU arch                       RelaxSpread     limits per leaf and per node
    TolerateSpot      the taints of spot nodes                         AllowOnDemand   nodes that are not spot
    Evict             work of lower priority: what `kgwe.placement.disruption.preemption` would stop

The reason names what binds: the first of network, segments, limits, wiring, model, taints and level whose change alone
starts the gang; otherwise there is too little room, and the statuses of the nodes say of what.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import counted
from kgwe.placement.disruption import preemption
from kgwe.placement.disruption.preemption import Evictable
from kgwe.placement.disruption.running import Cost
from kgwe.placement.fleet.node import Preference, SpotPolicy
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import CLUSTER, Hardware
from kgwe.placement.pod.fit import SHORT_OF_GPUS, FitStatus
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.placement.disruption.running import Victim
    from kgwe.placement.gang.plan import LevelReport, Shortfall
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.gang.search import GangSearch

__all__ = ["Change", "ChangeKind", "Diagnosis", "Evictable", "GangReason", "diagnose", "refuse_gang"]


class GangReason(enum.StrEnum):
    """What binds."""

    TOO_LITTLE_ROOM = "TooLittleRoom"
    """Too little is free and fit, and no other single thing is to blame."""
    NO_DOMAIN_LARGE_ENOUGH = "NoDomainLargeEnough"
    """The cluster has room, but no single domain of the required level."""
    SEGMENTS_DO_NOT_FIT = "SegmentsDoNotFit"
    NETWORK_TOO_SLOW = "NetworkTooSlow"
    """Or its speed is not known."""
    TOO_MANY_PER_DOMAIN = "TooManyPerDomain"
    """The gang's own limits of nodes or GPUs per leaf, or of pods per node."""
    WIRING_NOT_MET = "WiringNotMet"
    WRONG_GPU_MODEL = "WrongGPUModel"
    MODELS_DIFFER = "ModelsDiffer"
    """There is room, but not on GPUs of one model, which the gang demands."""
    NODES_TAINTED = "NodesTainted"
    NOT_ON_SPOT = "NotOnSpot"
    """There is room, but not on spot nodes, which the gang requires."""
    ROLES_DO_NOT_FIT_TOGETHER = "RolesDoNotFitTogether"
    """Each role would fit alone; no way was found to place them together, which is not a proof that there is none."""


class ChangeKind(enum.StrEnum):
    """A single thing to change."""

    RELAX_NETWORK = "RelaxNetwork"
    RELAX_SEGMENT = "RelaxSegment"
    RELAX_SPREAD = "RelaxSpread"
    RELAX_WIRING = "RelaxWiring"
    OTHER_MODEL = "OtherModel"
    MIX_MODELS = "MixModels"
    TOLERATE_SPOT = "TolerateSpot"
    ALLOW_ON_DEMAND = "AllowOnDemand"
    LOWER_LEVEL = "LowerLevel"
    FEWER_REPLICAS = "FewerReplicas"
    EVICT = "Evict"


@dataclass(frozen=True)
class Change:
    """One change that starts the gang now; planned, not supposed."""

    kind: ChangeKind
    text: str
    gang: GangRequest
    """The gang as changed."""
    plan: GangPlan
    evicts: tuple[Victim, ...] = ()
    """Work that has to go first."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a gang cannot start now, and what would start it: the detail of a gang's refusal."""

    gang: GangRequest
    reason: GangReason
    role: str
    needed: int
    room: int
    level: str
    domain: str
    statuses: Mapping[FitStatus, int]
    """Status of a pod of the role -> nodes of the whole fleet with it."""
    level_reports: tuple[LevelReport, ...]
    changes: tuple[Change, ...]
    most_when_empty: int | None
    """Pods of the role that one domain could take if nothing ran there; None: not known."""
    proven: bool
    """Whether nothing of it could be otherwise; False only for roles that compete for the same nodes."""

    @property
    def short(self) -> int:
        """Pods that the best domain is short of."""
        return max(0, self.needed - self.room)

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting cannot help: not even with nothing running would it start as it is asked for."""
        return self.most_when_empty is not None and self.most_when_empty < self.needed

    @property
    def binding_constraint(self) -> str:
        """The constraint that binds, for people."""
        return _REASONS[self.reason]

    def summary(self) -> str:
        """The diagnosis in one sentence."""
        nodes = ", ".join(f"{counted(count, 'node')} {status.reason}" for status, count in self.statuses.items())
        never = "; waiting does not help" if self.is_hopeless else ""
        helps = f"; would start now: {self.changes[0].text}" if self.changes else ""
        where = _name(self.level, self.domain)
        return f"{_REASONS[self.reason]}; {where} has room for {self.room} of {self.needed} ({nodes}){never}{helps}"

    def describe(self) -> str:
        """The diagnosis in lines, for people."""
        where = _name(self.level, self.domain)
        name = f"gang {self.gang.name} " if self.gang.name else "the gang "
        lines = [
            f"{name}cannot start: {_REASONS[self.reason]}.",
            f"Best is {where}: room for {self.room} of {self.needed} pods ({self.role}), {self.short} short.",
            f"Nodes: {', '.join(f'{count} {status.reason}' for status, count in self.statuses.items())}.",
        ]
        lines += [f"Level {report.describe()}." for report in self.level_reports if not report.holding]
        if self.is_hopeless:
            lines.append(
                f"Waiting does not help: with nothing running, {_one(self.gang.required or CLUSTER)} "
                f"takes {self.most_when_empty} of {self.needed}."
            )
        if self.changes:
            lines.append("Any one of these starts it now:")
            lines += [f"  - {change.text}" for change in self.changes]
        else:
            lines.append("No single change that was tried starts it now.")
        return "\n".join(lines)


def _name(level: str, domain: str) -> str:
    return level if domain in {"", level} else f"{level} {domain}"


def _one(level: str) -> str:
    return "the cluster" if level == CLUSTER else f"one {level}"


_REASONS: Final[Mapping[GangReason, str]] = {
    GangReason.TOO_LITTLE_ROOM: "too little room",
    GangReason.NO_DOMAIN_LARGE_ENOUGH: "the cluster has room, but no domain of the required level has it all",
    GangReason.SEGMENTS_DO_NOT_FIT: "there is room for the pods, but not for whole segments of them",
    GangReason.NETWORK_TOO_SLOW: "the network where there is room is too slow, or its speed is not known",
    GangReason.TOO_MANY_PER_DOMAIN: "its own limits per leaf or per node leave too little room",
    GangReason.WIRING_NOT_MET: "GPUs are free, but not wired as its pods require",
    GangReason.WRONG_GPU_MODEL: "there is room on other GPU models only",
    GangReason.MODELS_DIFFER: "there is room, but not on nodes of one GPU model and CPU architecture",
    GangReason.NOT_ON_SPOT: "there is room, but not on spot nodes",
    GangReason.NODES_TAINTED: "there is room on spot nodes only, whose taints it does not tolerate",
    GangReason.ROLES_DO_NOT_FIT_TOGETHER: "each role would fit alone, but no way was found to place them together",
}

_BINDING: Final[Mapping[ChangeKind, GangReason]] = {
    ChangeKind.RELAX_NETWORK: GangReason.NETWORK_TOO_SLOW,
    ChangeKind.RELAX_SEGMENT: GangReason.SEGMENTS_DO_NOT_FIT,
    ChangeKind.RELAX_SPREAD: GangReason.TOO_MANY_PER_DOMAIN,
    ChangeKind.RELAX_WIRING: GangReason.WIRING_NOT_MET,
    ChangeKind.OTHER_MODEL: GangReason.WRONG_GPU_MODEL,
    ChangeKind.MIX_MODELS: GangReason.MODELS_DIFFER,
    ChangeKind.TOLERATE_SPOT: GangReason.NODES_TAINTED,
    ChangeKind.ALLOW_ON_DEMAND: GangReason.NOT_ON_SPOT,
    ChangeKind.LOWER_LEVEL: GangReason.NO_DOMAIN_LARGE_ENOUGH,
}


def diagnose(
    search: GangSearch, gang: GangRequest, shortfall: Shortfall, evictable: Evictable | None = None
) -> Diagnosis:
    """Find out why a gang has no place; tries every change on the snapshot and leaves it as it was."""
    changes = list(_changes(search, gang, shortfall, evictable))
    request = next(role.request for role in gang.roles if role.name == shortfall.role)
    counts = Counter(search.fitter.check_nodes(request).tolist())
    reason = next((_BINDING[change.kind] for change in changes if change.kind in _BINDING), None)
    if reason is None:
        alone = shortfall.room >= shortfall.needed
        reason = GangReason.ROLES_DO_NOT_FIT_TOGETHER if alone else GangReason.TOO_LITTLE_ROOM
    return Diagnosis(
        gang=gang,
        reason=reason,
        role=shortfall.role,
        needed=shortfall.needed,
        room=shortfall.room,
        level=shortfall.level,
        domain=shortfall.domain,
        statuses={status: counts[status] for status in FitStatus if counts[status]},
        level_reports=shortfall.level_reports,
        changes=tuple(changes),
        most_when_empty=shortfall.most_when_empty,
        proven=shortfall.proven,
    )


def refuse_gang(found: Diagnosis) -> Refusal:
    """The refusal of a gang, with its diagnosis."""
    if found.is_hopeless:
        code = Reason.TOO_LARGE
    elif found.reason is GangReason.TOO_LITTLE_ROOM:
        code = Reason.INSUFFICIENT_GPU if SHORT_OF_GPUS & set(found.statuses) else Reason.INSUFFICIENT_RESOURCES
    else:
        code = Reason.TOPOLOGY_NOT_MET
    counts = {status.reason: count for status, count in found.statuses.items()}
    return Refusal(code, found.summary(), counts, not found.is_hopeless, found)


def _changes(
    search: GangSearch, gang: GangRequest, shortfall: Shortfall, evictable: Evictable | None
) -> Iterator[Change]:
    tried = [
        *_relaxed(gang),
        *_models(search, gang),
        *_spot(search, gang),
        *_levels(search, gang),
        *_fewer(gang, shortfall),
    ]
    done: set[ChangeKind] = set()
    for kind, text, asked in tried:
        # Of several steps of one kind the first that works is the smallest.
        if kind in done:
            continue
        plan = search.find(asked)
        if isinstance(plan, GangPlan):
            done.add(kind)
            changed = _exactly(asked, plan) if kind is ChangeKind.FEWER_REPLICAS else asked
            yield Change(kind, text.format(**_numbers(search, plan, shortfall)), changed, plan)
    if evictable is not None:
        yield from _evictions(search, gang, evictable)


def _evictions(search: GangSearch, gang: GangRequest, evictable: Evictable) -> Iterator[Change]:
    pool = evictable.pool_below(gang.priority, search.fitter.snapshot)
    cleared = preemption.find_gang_victims(search, pool, gang) if pool.items else None
    if cleared is not None:
        victims = pool.list_victims(cleared.picked)
        cost = sum((victim.cost for victim in victims), Cost())
        named = ", ".join(
            victim.workload if victim.whole else f"{counted(len(victim.members), 'pod')} of {victim.workload}"
            for victim in victims
        )
        text = f"evict {named} (lower priority, costs {cost.gpu_hours:.2f} GPU-hours)"
        yield Change(ChangeKind.EVICT, text, gang, cleared.plan, victims)


def _numbers(search: GangSearch, plan: GangPlan, shortfall: Shortfall) -> dict[str, object]:
    """What the texts speak of, from the plan that was really made."""
    index, nodes = search.fitter.snapshot.index, search.fitter.snapshot.nodes
    models = sorted({nodes[index[name]].shape.model for name in plan.nodes})
    return {
        "replicas": plan.replicas[shortfall.role],
        "models": ", ".join(models),
        "rate": f"{plan.ring.gb_per_s:.1f}",
        "where": _name(plan.level, plan.domain),
    }


_Tried = tuple[ChangeKind, str, "GangRequest"]


def _relaxed(gang: GangRequest) -> Iterator[_Tried]:
    if gang.min_network_gb_per_s:
        text = f"ask for less than {gang.min_network_gb_per_s:g} GB/s between nodes (it would run at {{rate}})"
        yield ChangeKind.RELAX_NETWORK, text, dataclasses.replace(gang, min_network_gb_per_s=0.0)
    if any(role.segments for role in gang.roles):
        roles = tuple(dataclasses.replace(role, segments=()) for role in gang.roles)
        text = "let groups of ranks be split (ring {rate} GB/s)"
        yield ChangeKind.RELAX_SEGMENT, text, dataclasses.replace(gang, roles=roles)
    limits = {
        "nodes per leaf": gang.max_nodes_per_leaf,
        "GPUs per leaf": gang.max_gpus_per_leaf,
        "pods per node": gang.max_pods_per_node,
    }
    if any(limits.values()):
        text = f"lift its limit of {' and '.join(name for name, most in limits.items() if most)}"
        lifted = dataclasses.replace(gang, max_nodes_per_leaf=0, max_gpus_per_leaf=0, max_pods_per_node=0)
        yield ChangeKind.RELAX_SPREAD, text, lifted
    wired = {Preference.NVLINK_REQUIRED, Preference.SAME_NUMA, Preference.SAME_PCIE_SWITCH}
    if any(role.request.preference in wired or role.request.min_bandwidth_gbps for role in gang.roles):
        text = "accept GPUs that are not wired as required (ring {rate} GB/s)"
        changed = gang.with_requests(preference=Preference.NONE, min_bandwidth_gbps=0.0)
        yield ChangeKind.RELAX_WIRING, text, changed


def _models(search: GangSearch, gang: GangRequest) -> Iterator[_Tried]:
    if any(role.request.model or role.request.architecture for role in gang.roles):
        yield ChangeKind.OTHER_MODEL, "accept {models}", gang.with_requests(model="", architecture="")
    if gang.hardware is Hardware.SAME:
        changed = dataclasses.replace(gang, hardware=Hardware.PREFER_SAME)
        yield ChangeKind.MIX_MODELS, "mix {models} (the slowest GPU sets the pace)", changed
    if gang.hardware is not Hardware.ANY and len(search.fitter.snapshot.kinds.archs) > 1:
        changed = dataclasses.replace(gang, hardware=Hardware.ANY)
        yield ChangeKind.MIX_MODELS, "mix CPU architectures ({models})", changed


def _spot(search: GangSearch, gang: GangRequest) -> Iterator[_Tried]:
    if any(role.request.spot is SpotPolicy.REQUIRE for role in gang.roles):
        text = "use nodes that are not spot too (spotPolicy Allow)"
        yield ChangeKind.ALLOW_ON_DEMAND, text, gang.with_requests(spot=SpotPolicy.ALLOW)
    taints = {taint for node in search.fitter.snapshot.nodes if node.spot for taint in node.taints}
    extra = tuple(Toleration(t.key, "Equal", t.value, t.effect) for t in sorted(taints, key=repr))
    if not extra:
        return
    roles = []
    for role in gang.roles:
        bound = role.request.constraints
        tolerant = dataclasses.replace(bound, tolerations=(*bound.tolerations, *extra))
        request = dataclasses.replace(role.request, constraints=tolerant)
        roles.append(dataclasses.replace(role, request=request))
    names = ", ".join(sorted({taint.key for taint in taints}))
    yield ChangeKind.TOLERATE_SPOT, f"tolerate spot nodes ({names})", dataclasses.replace(gang, roles=tuple(roles))


def _levels(search: GangSearch, gang: GangRequest) -> Iterator[_Tried]:
    """One level up after the other."""
    table = search.level_tables.for_levels(gang.named_levels)
    if not gang.required or gang.required == CLUSTER:
        return
    for level in table.levels[table.find_level(gang.required) + 1 :]:
        text = f"require {level.name} instead of {gang.required} (it would go to {{where}}, ring {{rate}} GB/s)"
        yield ChangeKind.LOWER_LEVEL, text, dataclasses.replace(gang, required=level.name)


def _fewer(gang: GangRequest, shortfall: Shortfall) -> Iterator[_Tried]:
    short = next(role for role in gang.roles if role.name == shortfall.role)
    if short.required_replicas > short.replica_step:
        fewer = dataclasses.replace(
            short, replicas=short.required_replicas - short.replica_step, min_replicas=short.replica_step
        )
        roles = tuple(fewer if role is short else role for role in gang.roles)
        text = f"run {{replicas}} instead of {shortfall.needed} {shortfall.role} pods"
        yield ChangeKind.FEWER_REPLICAS, text, dataclasses.replace(gang, roles=roles)


def _exactly(gang: GangRequest, plan: GangPlan) -> GangRequest:
    """The gang with the replicas that the plan has."""
    roles = (dataclasses.replace(role, replicas=plan.replicas[role.name], min_replicas=0) for role in gang.roles)
    return dataclasses.replace(gang, roles=tuple(roles))

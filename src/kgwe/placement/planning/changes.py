"""Single changes that would start a gang.

Every suggestion is one change, planned on the same snapshot before it is offered: it carries the plan it leads to.
Nothing is guessed, so there may be no suggestion.

    LowerLevel        the required level, one step at a time           RelaxWiring     links between a pod's own GPUs
    FewerReplicas     as many as fit                                   RelaxNetwork    GB/s between nodes
    OtherModel        any GPU model and architecture                   RelaxSegment    groups that must stay together
    MixModels         several models, or CPU arch                      RelaxSpread     limits per leaf and per node
    TolerateSpot      the taints of spot nodes                         AllowOnDemand   nodes that are not spot
    Evict             workloads of lower priority that `kgwe.placement.disruption.preemption` would stop
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import format_count, format_number, join_words, list_names
from kgwe.placement.disruption import preemption
from kgwe.placement.disruption.running import Cost
from kgwe.placement.fleet.node import SOFTER, Preference, SpotPolicy
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import CLUSTER, Hardware
from kgwe.placement.planning.fields import WORKLOAD_FIELDS, Fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.placement.disruption.preemption import Evictable
    from kgwe.placement.disruption.running import Victim
    from kgwe.placement.gang.plan import Shortfall
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.gang.search import GangSearch

# Workloads to evict that a change names.
_VICTIMS: Final = 3


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
    """Workloads to evict first."""


def describe_domain(level: str, domain: str) -> str:
    """`leaf l3`; only the level where the domain has no name of its own."""
    return level if domain in {"", level} else f"{level} {domain}"


def find_changes(
    search: GangSearch,
    gang: GangRequest,
    shortfall: Shortfall,
    evictable: Evictable | None,
    fields: Fields = WORKLOAD_FIELDS,
) -> Iterator[Change]:
    """All single changes that start the gang; the snapshot is left as it was. `fields`: names of what to change."""
    tried = [
        *_relax_constraints(gang, fields),
        *_models(search, gang, fields),
        *_spot(search, gang, fields),
        *_levels(search, gang),
        *_reduce_replicas(gang, shortfall, fields),
    ]
    done: set[ChangeKind] = set()
    for kind, text, asked in tried:
        # Of several steps of one kind the first that works is the smallest.
        if kind in done:
            continue
        plan = search.find(asked)
        if isinstance(plan, GangPlan):
            done.add(kind)
            changed = _with_planned_replicas(asked, plan) if kind is ChangeKind.FEWER_REPLICAS else asked
            yield Change(kind, text.format(**_numbers(search, plan, shortfall)), changed, plan)
    if evictable is not None:
        yield from _evictions(search, gang, evictable)


def _evictions(search: GangSearch, gang: GangRequest, evictable: Evictable) -> Iterator[Change]:
    pool = evictable.pool_below(gang.priority, search.fitter.snapshot)
    cleared = preemption.find_gang_victims(search, pool, gang) if pool.items else None
    if cleared is not None:
        victims = pool.list_victims(cleared.picked)
        named = [
            victim.workload if victim.whole else f"{format_count(len(victim.members), 'pod')} of {victim.workload}"
            for victim in victims
        ]
        cost = sum((victim.cost for victim in victims), Cost())
        text = f"evict {list_names(named, _VICTIMS)} (lower priority; costs {cost.gpu_hours:.2f} GPU-hours)"
        yield Change(ChangeKind.EVICT, text, gang, cleared.plan, victims)


def _numbers(search: GangSearch, plan: GangPlan, shortfall: Shortfall) -> dict[str, object]:
    """The values in the texts of changes, from the plan that was made."""
    index, nodes = search.fitter.snapshot.index, search.fitter.snapshot.nodes
    models = sorted({nodes[index[name]].shape.model for name in plan.nodes})
    return {
        "replicas": plan.replicas[shortfall.role],
        "pods": "pod" if plan.replicas[shortfall.role] == 1 else "pods",
        "gpus": sum(seat.grant.gpus.bit_count() for seat in plan.seats),
        "models": join_words(models),
        "rate": _rate(plan),
        "where": describe_domain(plan.level, plan.domain),
    }


def _rate(plan: GangPlan) -> str:
    rate = plan.ring.gb_per_s
    return f"{format_number(round(rate, 1))} GB/s between nodes" if 0 < rate < float("inf") else "bandwidth unknown"


_Tried = tuple[ChangeKind, str, "GangRequest"]


def _relax_constraints(gang: GangRequest, fields: Fields) -> Iterator[_Tried]:
    if gang.min_network_gb_per_s:
        text = f"require less than {gang.min_network_gb_per_s:g} GB/s between nodes (it would get: {{rate}})"
        yield ChangeKind.RELAX_NETWORK, text, dataclasses.replace(gang, min_network_gb_per_s=0.0)
    if any(role.segments for role in gang.roles):
        roles = tuple(dataclasses.replace(role, segments=()) for role in gang.roles)
        text = "allow segments to be split ({rate})"
        yield ChangeKind.RELAX_SEGMENT, text, dataclasses.replace(gang, roles=roles)
    limits = {
        "nodes per leaf": gang.max_nodes_per_leaf,
        "GPUs per leaf": gang.max_gpus_per_leaf,
        "pods per node": gang.max_pods_per_node,
    }
    if any(limits.values()):
        text = f"raise the limit of {join_words([name for name, most in limits.items() if most])}"
        lifted = dataclasses.replace(gang, max_nodes_per_leaf=0, max_gpus_per_leaf=0, max_pods_per_node=0)
        yield ChangeKind.RELAX_SPREAD, text, lifted
    preferences = {role.request.preference for role in gang.roles}
    for each in SOFTER.get(next(iter(preferences)), ()) if len(preferences) == 1 else ():
        yield ChangeKind.RELAX_WIRING, f"set {fields.preference} to {each}", gang.with_requests(preference=each)
    if used := sorted({field for role in gang.roles for field in role.request.connection_fields}, reverse=True):
        text = f"accept GPUs that are not connected as required ({', '.join(fields.name_connections(tuple(used)))})"
        changed = gang.with_requests(preference=Preference.NONE, min_bandwidth_gbps=0.0)
        yield ChangeKind.RELAX_WIRING, text, changed


def _models(search: GangSearch, gang: GangRequest, fields: Fields) -> Iterator[_Tried]:
    if any(role.request.model or role.request.architecture for role in gang.roles):
        text = f"accept GPU model {{models}} ({fields.model})"
        yield ChangeKind.OTHER_MODEL, text, gang.with_requests(model="", architecture="")
    if gang.hardware is Hardware.SAME:
        changed = dataclasses.replace(gang, hardware=Hardware.PREFER_SAME)
        yield (
            ChangeKind.MIX_MODELS,
            f"mix GPU models {{models}} ({fields.hardware}: PreferSame; the slowest GPU sets the pace)",
            changed,
        )
    if gang.hardware is not Hardware.ANY and len(search.fitter.snapshot.kinds.archs) > 1:
        changed = dataclasses.replace(gang, hardware=Hardware.ANY)
        yield ChangeKind.MIX_MODELS, f"mix CPU architectures ({fields.hardware}: Any; uses {{models}})", changed


def _spot(search: GangSearch, gang: GangRequest, fields: Fields) -> Iterator[_Tried]:
    if any(role.request.spot is SpotPolicy.REQUIRE for role in gang.roles):
        text = f"allow nodes that are not spot ({fields.spot_policy}: Allow)"
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
    names = ", ".join(sorted({f"{each.key}={each.value}:{each.effect}" if each.value else each.key for each in taints}))
    yield (
        ChangeKind.TOLERATE_SPOT,
        f"tolerate the {'taint' if len(taints) == 1 else 'taints'} {names} of spot nodes",
        dataclasses.replace(gang, roles=tuple(roles)),
    )


def _levels(search: GangSearch, gang: GangRequest) -> Iterator[_Tried]:
    """Each higher level, the nearest first."""
    table = search.level_tables.for_levels(gang.named_levels)
    if not gang.required or gang.required == CLUSTER:
        return
    for level in table.levels[table.find_level(gang.required) + 1 :]:
        change = f"require {level.name} instead of {gang.required}"
        text = f"drop the required level {gang.required}" if level.name == CLUSTER else change
        text += " ({rate})" if level.name == CLUSTER else " ({where}, {rate})"
        yield ChangeKind.LOWER_LEVEL, text, dataclasses.replace(gang, required=level.name)


def _reduce_replicas(gang: GangRequest, shortfall: Shortfall, fields: Fields) -> Iterator[_Tried]:
    short = next(role for role in gang.roles if role.name == shortfall.role)
    if short.required_replicas > short.replica_step:
        fewer = dataclasses.replace(
            short, replicas=short.required_replicas - short.replica_step, min_replicas=short.replica_step
        )
        roles = tuple(fewer if role is short else role for role in gang.roles)
        role = f" {shortfall.role}" if len(gang.roles) > 1 else ""
        is_counted = short.request.gpus.count and len(gang.roles) == 1 and not fields.is_pod
        count = " (count: {gpus})" if is_counted else ""
        text = f"run {{replicas}}{role} {{pods}} instead of {shortfall.needed}{count}"
        yield ChangeKind.FEWER_REPLICAS, text, dataclasses.replace(gang, roles=roles)


def _with_planned_replicas(gang: GangRequest, plan: GangPlan) -> GangRequest:
    """The gang with the replicas that the plan has."""
    roles = (dataclasses.replace(role, replicas=plan.replicas[role.name], min_replicas=0) for role in gang.roles)
    return dataclasses.replace(gang, roles=tuple(roles))

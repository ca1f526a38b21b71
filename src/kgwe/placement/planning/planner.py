"""The planner: where all pods of an ask go now, or why none of them does.

A plan seats every pod; a refusal says what binds. A single pod is placed by the engine under the strategy it names,
several by the gang planner.

    answer = make_plan(fleet, ask)

Where the ask allows it, more GPUs than the largest node of its GPU model has are divided into the fewest equal pods. An
ask is never divided because of its topology or another requirement: it then waits whole, with the reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.units import amounts as resources
from kgwe.placement.disruption.partial_gang import complete_gang
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.gang import reliability
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.request import Strategy as GangStrategy
from kgwe.placement.planning.custom_strategies import Candidate, Choosers
from kgwe.placement.planning.plan import Plan, Seat
from kgwe.placement.planning.reasons import refuse_pod, refuse_strategy
from kgwe.placement.pod.engine import Decision
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import ALIASES, Strategy
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.disruption.partial_gang import PartialGang
    from kgwe.placement.disruption.preemption import Evictable
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Rng
    from kgwe.placement.planning.plan import FleetView
    from kgwe.placement.pod.fit import Fitter
    from kgwe.placement.pod.score import Floats

_PAIR: Final = 2


def make_plan(
    fleet: FleetView,
    ask: Ask,
    *,
    choosers: Choosers | None = None,
    rng: Rng | None = None,
    evictable: Evictable | None = None,
    explain: bool = True,
) -> Plan | Refusal:
    """All of the ask, or why not. `explain`: whether the refusal of a gang has a diagnosis, which takes longer."""
    if not len(fleet.snapshot):
        return Refusal(
            Reason.NO_GPU_NODES,
            "No node offers GPUs. Add GPU nodes, or check that the device plugin runs.",
            possible=False,
        )
    try:
        if ask.partial is not None:
            return _complete_gang(fleet, ask, ask.partial)
        ask = divide_ask(fleet.fitter, ask)
        if ask.pods == 1 and ask.gang is None:
            return _plan_pod(fleet, ask, choosers or {}, rng)
        if ask.gang is None and ask.strategy not in GANG_STRATEGIES:
            return refuse_strategy(ask, GANG_STRATEGIES, choosers or {})
        return _plan_gang(fleet, ask, evictable, explain=explain)
    except errors.UnknownTopologyLevel as exc:
        return Refusal(Reason.UNKNOWN_LEVEL, f"{exc} {_advise_on_level(ask, str(exc))}", possible=False)
    except errors.Permanent as exc:
        return Refusal(Reason.INVALID, str(exc), possible=False)


def _advise_on_level(ask: Ask, problem: str) -> str:
    """What to change when a level that the ask names does not exist."""
    if ask.gang is None:
        for field, level in (("requiredLevel", ask.nearness.required), ("preferredLevel", ask.nearness.preferred)):
            if level and repr(level) in problem:
                return f"Set topology.{field} to one of these."
    return "Change the level to one of these."


def divide_ask(fitter: Fitter, ask: Ask) -> Ask:
    """The ask with its GPUs divided among the fewest equal pods; undivided if a node of its model has that many GPUs.

    A node that lacks something other than GPUs counts too: a smaller pod must not evade the requirement. For the same
    reason GPUs that must be connected are divided only if no node of any model has that many, and not into pods of one.
    """
    count = ask.request.gpus.count
    if not ask.divisible or not count:
        return ask
    connected = bool(ask.request.connection_fields)
    most = fitter.most_gpus if connected else fitter.most_gpus_of(ask.request)
    if count <= most:
        return replace(ask, divisible=False)
    for per_pod in range(most, _PAIR - 1 if connected else 0, -1):
        pods = count // per_pod
        if count % per_pod or not _divides_evenly(ask, pods):
            continue
        request = replace(ask.request, gpus=replace(ask.request.gpus, count=per_pod))
        codes = fitter.check_empty_nodes(request)
        if ((codes == FitStatus.FITS) | (codes > FitStatus.TOO_FEW_GPUS)).any():
            wanted = {**ask.amounts, resources.GPU: per_pod}
            strategy = "distributed" if ask.serves and ask.strategy in _BY_THE_POD else ask.strategy
            return replace(ask, request=request, pods=pods, amounts=wanted, divisible=False, strategy=strategy)
    return replace(ask, divisible=False)


def _divides_evenly(ask: Ask, pods: int) -> bool:
    """Whether so many pods can have equal parts of its ranks, and make whole segments."""
    if ask.ranks % pods:
        return False
    return all(pods % segment.size == 0 for segment in ask.nearness.segments)


# --- one pod ---------------------------------------------------------------------------------------------


def _plan_pod(fleet: FleetView, ask: Ask, choosers: Choosers, rng: Rng | None) -> Plan | Refusal:
    name = ask.strategy or fleet.engine.strategy
    if name in choosers:
        return _plan_with_custom_strategy(fleet, ask, name, choosers, rng)
    if name not in GANG_STRATEGIES:
        return refuse_strategy(ask, GANG_STRATEGIES, choosers)
    strategy = ALIASES.get(name) or Strategy(name)
    generator = np.random.default_rng(rng.randrange(2**32)) if strategy is Strategy.RANDOM and rng else None
    hint = _read_hint(fleet, ask.hint) if ask.hint else None
    best = fleet.engine.decide(ask.request, strategy=strategy, rng=generator, hint=hint)
    found, note = reliability.prefer_reliable_node(fleet.engine, ask.request, strategy, best, expected_s=ask.expected_s)
    if not isinstance(found, Decision):
        return refuse_pod(fleet.fitter, ask, found)
    return _build_pod_plan(ask, found, note + _note_spot_node(fleet, ask, found))


def _read_hint(fleet: FleetView, hint: Mapping[str, float]) -> Floats:
    """Node -> points; 0 for nodes of which nothing is forecast. Nodes that are gone are left out."""
    points = np.zeros(len(fleet.snapshot))
    index = fleet.snapshot.index
    for name, value in hint.items():
        if (number := index.get(name)) is not None:
            points[number] = value
    return points


def _note_spot_node(fleet: FleetView, ask: Ask, found: Decision) -> str:
    avoided = ask.request.spot is SpotPolicy.AVOID and fleet.snapshot.spot[found.node]
    return "; a spot node, because no other node fits" if avoided else ""


def _describe_choice(fitting: int) -> str:
    return "the only node that fits" if fitting == 1 else f"best of {fitting} nodes that fit"


def _build_pod_plan(ask: Ask, found: Decision, note: str = "") -> Plan:
    score = found.score
    return Plan(
        ask=ask,
        seats=(Seat.from_grant(found.name, found.grant),),
        grants=(found.grant,),
        amounts=ask.amounts,
        score=score.total,
        parts={"topology": score.topology, "resource": score.resource, "balance": score.balance},
        gb_per_s=found.gb_per_s,
        level="node",
        domain=found.name,
        message=f"{found.name}, {_describe_choice(found.fitting)}{note}",
    )


def _plan_with_custom_strategy(
    fleet: FleetView, ask: Ask, name: str, choosers: Choosers, rng: Rng | None
) -> Plan | Refusal:
    """Custom strategies are foreign code: a failure refuses only the workload that named the strategy."""
    everywhere = fleet.engine.decide(ask.request)
    if not isinstance(everywhere, Decision):
        return refuse_pod(fleet.fitter, ask, everywhere)
    snapshot = fleet.snapshot
    fitting = np.flatnonzero(fleet.engine.check_nodes(ask.request) == FitStatus.FITS)
    avoided = fleet.fitter.mask_avoided(ask.request, fitting)
    fitting = fitting if avoided.all() else fitting[~avoided]
    candidates = [
        Candidate(node.name, int(snapshot.free[number]).bit_count(), node.shape.gpu_count, node.labels)
        for number in fitting.tolist()
        for node in (snapshot.nodes[number],)
    ]
    try:
        choice = choosers[name].choose(candidates, ask, rng)
        number = snapshot.index[choice.name]
    except Exception as exc:  # noqa: BLE001 - see above
        return Refusal(Reason.STRATEGY_FAILED, f"Strategy {name!r} failed: {exc!r}.")
    found = fleet.engine.decide(ask.request, candidates=np.array([number], np.intp))
    if not isinstance(found, Decision):
        return Refusal(
            Reason.STRATEGY_FAILED, f"Strategy {name!r} chose node {choice.name}, where the pod does not fit."
        )
    return _build_pod_plan(ask, replace(found, counts=everywhere.counts), _note_spot_node(fleet, ask, found))


# --- gangs -----------------------------------------------------------------------------------------------

#: every name a workload may give, and what it means for a gang
GANG_STRATEGIES: Mapping[str, GangStrategy] = {
    "consolidated": GangStrategy.CONSOLIDATED,
    "balanced": GangStrategy.BALANCED,
    "distributed": GangStrategy.DISTRIBUTED,
    "pack": GangStrategy.PACK,
    Strategy.SPREAD: GangStrategy.DISTRIBUTED,
    Strategy.LEAST_LOADED: GangStrategy.CONSOLIDATED,
    Strategy.RANDOM: GangStrategy.CONSOLIDATED,
    Strategy.COST_OPTIMIZED: GangStrategy.CONSOLIDATED,
    Strategy.SCORE: GangStrategy.CONSOLIDATED,
    Strategy.MIXFIT: GangStrategy.CONSOLIDATED,
    "": GangStrategy.CONSOLIDATED,
}


# Strategies that say nothing about how several pods are placed relative to each other.
_BY_THE_POD: Final = ("", Strategy.SCORE, Strategy.MIXFIT)


def gang_request(ask: Ask) -> GangRequest:
    """The ask as the gang planner takes it."""
    near = ask.nearness
    gang = ask.gang or GangRequest.uniform(
        ask.request,
        ask.pods,
        segments=near.segments,
        required=near.required,
        preferred=near.preferred,
        strategy=GANG_STRATEGIES.get(ask.strategy, GangStrategy.CONSOLIDATED),
        hardware=near.hardware,
        min_network_gb_per_s=near.min_network_gb_per_s,
        max_nodes_per_leaf=near.max_nodes_per_leaf,
        max_gpus_per_leaf=near.max_gpus_per_leaf,
        max_pods_per_node=near.max_pods_per_node,
        priority=ask.priority,
        name=ask.name,
    )
    return reliability.mark_exposed(gang, ask.expected_s)


def _plan_gang(fleet: FleetView, ask: Ask, evictable: Evictable | None, *, explain: bool) -> Plan | Refusal:
    first = ask.first and reliability.mark_exposed(ask.first, ask.expected_s)
    if first is not None and isinstance(found := fleet.gangs.try_plan(first, ask.following), GangPlan):
        return build_gang_plan(ask, found)
    gang = gang_request(ask)
    if explain:
        found = fleet.gangs.plan(gang, evictable=evictable, following=ask.following, fields=ask.fields)
    else:
        found = fleet.gangs.try_plan(gang, ask.following)
    if isinstance(found, GangPlan):
        return build_gang_plan(ask, found)
    return found


def build_gang_plan(ask: Ask, found: GangPlan) -> Plan:
    score = found.score
    return Plan(
        ask=ask,
        seats=tuple(Seat.from_grant(seat.node, seat.grant) for seat in found.seats),
        grants=found.grants,
        amounts=ask.amounts,
        score=score.total,
        parts={
            "availability": score.availability,
            "alignment": score.alignment,
            "utilisation": score.utilisation,
            "history": score.history,
        },
        gb_per_s=found.ring.gb_per_s,
        level=found.level,
        domain=found.domain,
        preferred_met=found.preferred_met,
        message=found.describe(),
        gang=found,
        by_seat=_list_amounts(ask, found),
    )


def _list_amounts(ask: Ask, found: GangPlan) -> tuple[Mapping[str, int], ...]:
    if ask.gang is None:
        return ()
    by_role = {role.name: pod_amounts(role.request) for role in ask.gang.roles}
    return tuple(by_role[seat.role] for seat in found.seats)


def pod_amounts(request: Request) -> dict[str, int]:
    """What a pod of this request takes of its node."""
    gpus = request.gpus
    found = {resources.CPU: request.cpu_milli, resources.MEMORY: request.memory_bytes, resources.PODS: 1}
    if gpus.count:
        found[resources.GPU] = gpus.count
    if gpus.milli:
        found[resources.SHARED] = 1
    if gpus.slices:
        found[f"{resources.MIG_PREFIX}{gpus.profile}"] = gpus.slices
    return {name: amount for name, amount in found.items() if amount}


def _complete_gang(fleet: FleetView, ask: Ask, partial: PartialGang) -> Plan | Refusal:
    """Place the pods of a gang that have no place, near those that have one."""
    found = complete_gang(fleet.fitter, fleet.tree, partial)
    if not found:
        placed = len(partial.members) - partial.missing
        message = (
            f"No room for {partial.missing} of {len(partial.members)} gang members near the {placed} already placed."
        )
        return Refusal(Reason.INSUFFICIENT_GPU, message)
    requests = {member.pod: member.request for member in partial.members}
    return Plan(
        ask=ask,
        seats=tuple(Seat.from_grant(move.node, move.grant) for move in found.values()),
        grants=tuple(move.grant for move in found.values()),
        amounts=ask.amounts,
        score=0.0,
        parts={},
        gb_per_s=None,
        message="; ".join(f"{move.node}, in the same {move.level} as others of its gang" for move in found.values()),
        by_seat=tuple(pod_amounts(requests[pod]) for pod in found),
        pods=tuple(found),
    )

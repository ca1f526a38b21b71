"""One question for every kind of work: where does all of it go now, or why does none of it?

An Ask is a whole: one pod or many, of one template or of several roles. A Plan seats every pod of it; a Refusal says
what binds, in a word that conditions and alerts match on and in words for people. One pod alone is placed by the
engine under the strategy it names, several by the gang planner.

    answer = plan(fleet, ask, choosers={}, rng)     Fleet or Shadow: with snapshot, fitter, engine, gangs

Whole cards that no single node has may be divided among pods where the ask allows it: into the fewest equal pods that
some node could hold if nothing ran there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe import errors
from kgwe.model.units import amounts as resources
from kgwe.model.units.limits import MOST_CARDS
from kgwe.placement.disruption.partial_gang import refill
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.gang import reliability
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import NONE_FOLLOW, Following, GangRequest, Hardware, Segment
from kgwe.placement.gang.request import Strategy as GangStrategy
from kgwe.placement.planning.custom_strategies import Candidate, Choosers
from kgwe.placement.planning.reasons import Reason, Refusal, gang_refused, needs, refused, unknown_strategy
from kgwe.placement.pod.engine import Decision
from kgwe.placement.pod.fit import Verdict
from kgwe.placement.pod.ranking import ALIASES, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.partial_gang import Partial
    from kgwe.placement.disruption.preemption import Evictable
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.planning.custom_strategies import Rng
    from kgwe.placement.planning.gang_planner import GangPlanner
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.pod.fit import Fitter


__all__ = ["Ask", "Nearness", "Place", "Plan", "Reason", "Refusal", "Seat", "divided", "gang_request", "plan"]


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near to each other the pods must be; see `kgwe.placement.gang.request`."""

    required: str = ""
    preferred: str = ""
    segments: tuple[Segment, ...] = ()
    hardware: Hardware = Hardware.PREFER_SAME
    min_network_gb_per_s: float = 0.0
    max_nodes_per_leaf: int = 0
    max_gpus_per_leaf: int = 0
    max_pods_per_node: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Work looking for a place; `amounts` is what each of its pods takes of a node."""

    owner: str
    request: Request
    amounts: Mapping[str, int] = field(default_factory=dict)
    pods: int = 1
    #: whether `pods` (then 1) may become more where no node has that many cards
    divisible: bool = False
    #: ranks that are shared out equally over the pods; 0: no such thing
    ranks: int = 0
    nearness: Nearness = Nearness()
    strategy: str = ""
    priority: int = 0
    preemptible: bool = False
    #: creation time as the API writes it: sorts as text
    since: str = ""
    namespace: str = ""
    name: str = ""
    #: seconds it is thought to run
    expected_s: float | None = None
    #: it had a place and lost it: before all others of its priority
    first_claim: bool = False
    #: its pods are replicas of a service: where they are several, one failure should take away least
    serves: bool = False
    #: roles of unequal pods; None: `pods` equal ones
    gang: GangRequest | None = None
    #: the same gang where it would rather be: tried first
    first: GangRequest | None = None
    #: the gang it is a part of, where others of it have their places
    partial: Partial | None = None
    #: gangs whose turn comes later: no part of what is asked for
    following: Following = field(default=NONE_FOLLOW, compare=False)

    def rank(self) -> tuple[int, str, str]:
        """Who goes first: higher priority, then older, then by identity so that the order is total."""
        return (-self.priority, self.since, self.owner)

    def shape(self) -> Ask:
        """Two asks of one shape fit the same places: when one finds no room, neither does the other."""
        gang = None if self.gang is None else replace(self.gang, name="", priority=0)
        first = None if self.first is None else replace(self.first, name="", priority=0)
        return replace(
            self, owner="", since="", namespace="", name="", priority=0, preemptible=False, expected_s=None,
            first_claim=False, amounts={}, gang=gang, first=first, following=NONE_FOLLOW,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.owner, self.request, self.pods, self.nearness, self.strategy))


@dataclass(frozen=True, slots=True)
class Seat:
    node: str
    #: mask of whole cards, or of the one it has a share of
    cards: int = 0
    #: (card, start) of MIG slices
    slices: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, node: str, grant: Grant) -> Seat:
        return cls(node, grant.whole_or_shared, tuple((card, placed.start) for card, placed in grant.slices))


@dataclass(frozen=True)
class Plan:
    """Every pod has a seat, by rank; nothing is booked."""

    ask: Ask
    seats: tuple[Seat, ...]
    grants: tuple[Grant, ...]
    #: what each pod takes of its node, after dividing
    amounts: Mapping[str, int]
    score: float
    parts: Mapping[str, float]
    #: predicted ring through its cards; None when there is nothing to join, 0 when not known
    gb_per_s: float | None
    level: str = ""
    domain: str = ""
    prefers: bool = True
    words: str = ""
    gang: GangPlan | None = None
    #: number of its first seat; more than 0 when it fills up a gang that has some already
    start: int = 0
    #: where pods differ: seat by seat what each takes; empty: `amounts`
    by_seat: tuple[Mapping[str, int], ...] = ()
    #: whose the seats are, where only some pods of a gang get one
    pods: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def wanted(self) -> list[Mapping[str, int]]:
        """Seat by seat what the pod takes of its node."""
        return [*self.by_seat] if self.by_seat else [self.amounts] * len(self.seats)

    @property
    def gpus_per_pod(self) -> int:
        return self.amounts.get(resources.GPU, 0)


class Place(Protocol):
    """What can be planned on: `kgwe.placement.live.fleet.Fleet`, or its Shadow."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def fitter(self) -> Fitter: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def gangs(self) -> GangPlanner: ...
    @property
    def tree(self) -> Tree: ...


def plan(
    place: Place,
    ask: Ask,
    *,
    choosers: Choosers | None = None,
    rng: Rng | None = None,
    evictable: Evictable | None = None,
    explain: bool = True,
) -> Plan | Refusal:
    """All of the ask, or why not. `explain`: whether a gang's no carries its certificate, which takes longer."""
    if not len(place.snapshot):
        return Refusal(ask, Reason.NO_GPU_NODES, "no node offers GPUs", possible=False)
    try:
        if ask.partial is not None:
            return _refilled(place, ask, ask.partial)
        ask = divided(place.fitter, ask)
        if ask.pods == 1 and ask.gang is None:
            return _one(place, ask, choosers or {}, rng)
        if ask.gang is None and ask.strategy not in GANG_STRATEGIES:
            return unknown_strategy(ask, GANG_STRATEGIES, choosers or {})
        return _gang(place, ask, evictable, explain=explain)
    except errors.Permanent as exc:
        reason = Reason.UNKNOWN_LEVEL if "level" in str(exc) else Reason.INVALID
        return Refusal(ask, reason, str(exc), possible=False)


def divided(fitter: Fitter, ask: Ask) -> Ask:
    """The ask with its cards divided among the fewest pods that nodes could hold; as it is when one can."""
    count = ask.request.gpus.count
    if not ask.divisible or not count:
        return ask
    for per_pod in range(min(count, MOST_CARDS), 0, -1):
        pods = count // per_pod
        if count % per_pod or not _divides(ask, pods):
            continue
        request = replace(ask.request, gpus=replace(ask.request.gpus, count=per_pod))
        if (fitter.when_empty(request) == Verdict.FITS).any():
            if pods == 1:
                break
            wanted = {**ask.amounts, resources.GPU: per_pod}
            strategy = "distributed" if ask.serves and ask.strategy in _BY_THE_POD else ask.strategy
            return replace(ask, request=request, pods=pods, amounts=wanted, divisible=False, strategy=strategy)
    return replace(ask, divisible=False)


def _divides(ask: Ask, pods: int) -> bool:
    """Whether so many pods can have equal parts of its ranks, and make whole segments."""
    if ask.ranks % pods:
        return False
    return pods == 1 or all(pods % segment.size == 0 for segment in ask.nearness.segments)


# --- one pod ---------------------------------------------------------------------------------------------


def _one(place: Place, ask: Ask, choosers: Choosers, rng: Rng | None) -> Plan | Refusal:
    name = ask.strategy or place.engine.strategy
    if name in choosers:
        return _chosen(place, ask, name, choosers, rng)
    if name not in GANG_STRATEGIES:
        return unknown_strategy(ask, GANG_STRATEGIES, choosers)
    strategy = ALIASES.get(name) or Strategy(name)
    generator = np.random.default_rng(rng.randrange(2**32)) if strategy is Strategy.RANDOM and rng else None
    best = place.engine.decide(ask.request, strategy=strategy, rng=generator)
    found, words = reliability.prefer_reliable_node(
        place.engine, ask.request, strategy, best, expected_s=ask.expected_s
    )
    if not isinstance(found, Decision):
        return refused(place.fitter, ask, found)
    return _seated(ask, found, words + _spot_words(place, ask, found))


def _spot_words(place: Place, ask: Ask, found: Decision) -> str:
    avoided = ask.request.spot is SpotPolicy.AVOID and place.snapshot.spot[found.node]
    return "; a spot node: no other node fits" if avoided else ""


def _seated(ask: Ask, found: Decision, words: str = "") -> Plan:
    score = found.score
    return Plan(
        ask=ask,
        seats=(Seat.of(found.name, found.grant),),
        grants=(found.grant,),
        amounts=ask.amounts,
        score=score.total,
        parts={"topology": score.topology, "resource": score.resource, "balance": score.balance},
        gb_per_s=found.gb_per_s,
        level="node",
        domain=found.name,
        words=f"{found.name}, best of {found.fitting} nodes that fit{words}",
    )


def _chosen(place: Place, ask: Ask, name: str, choosers: Choosers, rng: Rng | None) -> Plan | Refusal:
    """Strategies may be anybody's code: one that fails holds the work that named it and nothing else."""
    everywhere = place.engine.decide(ask.request)
    if not isinstance(everywhere, Decision):
        return refused(place.fitter, ask, everywhere)
    snapshot = place.snapshot
    fitting = np.flatnonzero(place.engine.verdicts(ask.request) == Verdict.FITS)
    avoided = place.fitter.avoided(ask.request, fitting)
    fitting = fitting if avoided.all() else fitting[~avoided]
    candidates = [
        Candidate(node.name, int(snapshot.free[number]).bit_count(), node.shape.cards, node.labels)
        for number in fitting.tolist()
        for node in (snapshot.nodes[number],)
    ]
    try:
        choice = choosers[name].choose(candidates, ask, rng)
        number = snapshot.index[choice.name]
    except Exception as exc:  # noqa: BLE001 - see above
        return Refusal(ask, Reason.STRATEGY_FAILED, f"strategy {name!r} failed: {exc!r}")
    found = place.engine.decide(ask.request, among=np.array([number], np.intp))
    if not isinstance(found, Decision):
        return Refusal(ask, Reason.STRATEGY_FAILED, f"strategy {name!r} chose {choice.name}, where it does not fit")
    return _seated(ask, replace(found, counts=everywhere.counts), _spot_words(place, ask, found))


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
    Strategy.MIXFIT: GangStrategy.CONSOLIDATED,
    Strategy.SCORE: GangStrategy.CONSOLIDATED,
    "": GangStrategy.CONSOLIDATED,
}


# Strategies that say nothing of how several pods stand to each other.
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


def _gang(place: Place, ask: Ask, evictable: Evictable | None, *, explain: bool) -> Plan | Refusal:
    first = ask.first and reliability.mark_exposed(ask.first, ask.expected_s)
    if first is not None and isinstance(liked := place.gangs.try_plan(first, ask.following), GangPlan):
        return seated_gang(ask, liked)
    gang = gang_request(ask)
    if not explain:
        quick = place.gangs.try_plan(gang, ask.following)
        if not isinstance(quick, GangPlan):
            possible = quick.most_when_empty is None or quick.most_when_empty >= quick.needed
            message = f"needs {needs(ask)}: {quick.level} {quick.domain} has room for {quick.room} of {quick.needed}"
            return Refusal(ask, Reason.INSUFFICIENT_GPU if possible else Reason.TOO_LARGE, message, possible)
        return seated_gang(ask, quick)
    found = place.gangs.plan(gang, evictable=evictable, following=ask.following)
    return seated_gang(ask, found) if isinstance(found, GangPlan) else gang_refused(ask, found)


def seated_gang(ask: Ask, found: GangPlan) -> Plan:
    score = found.score
    return Plan(
        ask=ask,
        seats=tuple(Seat.of(seat.node, seat.grant) for seat in found.seats),
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
        prefers=found.preferred_met,
        words=found.describe(),
        gang=found,
        by_seat=_by_seat(ask, found),
    )


def _by_seat(ask: Ask, found: GangPlan) -> tuple[Mapping[str, int], ...]:
    if ask.gang is None:
        return ()
    by_role = {role.name: amounts_of(role.request) for role in ask.gang.roles}
    return tuple(by_role[seat.role] for seat in found.seats)


def amounts_of(request: Request) -> dict[str, int]:
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


def _refilled(place: Place, ask: Ask, partial: Partial) -> Plan | Refusal:
    """Those of a gang that have no place, beside those that have one."""
    found = refill(place.fitter, place.tree, partial)
    if not found:
        pods = f"{partial.missing} of {len(partial.members)} pods"
        message = f"{pods} find no room beside those of their gang that have their places"
        return Refusal(ask, Reason.INSUFFICIENT_GPU, message)
    requests = {member.pod: member.request for member in partial.members}
    return Plan(
        ask=ask,
        seats=tuple(Seat.of(move.node, move.grant) for move in found.values()),
        grants=tuple(move.grant for move in found.values()),
        amounts=ask.amounts,
        score=0.0,
        parts={},
        gb_per_s=None,
        words="; ".join(f"{move.node}, in the same {move.level} as others of its gang" for move in found.values()),
        by_seat=tuple(amounts_of(requests[pod]) for pod in found),
        pods=tuple(found),
    )

"""Which running workloads to move so that a waiting workload can start, if that is worth the cost.

    waiting workload ──► fewest pods to stop ──► a place for it and for each of them ──► gain above cost? ──► plan

Every pod that moves has a new place in the same plan, which keeps the constraints of its gang. A plan is executed as a
whole or not at all, so it is tried as a whole on the snapshot first.

- Gain: the GPUs of the waiting workload, for the time by which it starts sooner, at their price.
- Cost: the computation since the last checkpoint, which is repeated, and the restart, at the same price. A gang stops
  as a whole if it cannot run without a member; all of it counts, though only the necessary members move.
- Limits, given by the caller: disruption budgets, a minimum run time, a quiet window of the day, a maximum number of
  pods to stop. Workloads that are not preemptible are never moved.

Fewest pods first, then least cost. Small fleets are searched exhaustively, with chains (one pod moves so that another
can move). In large fleets only sets on one node or in one domain are considered; `proven` tells the difference.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.disruption import gang_constraints, node_victims, victims
from kgwe.placement.disruption.gang_constraints import GangConstraints
from kgwe.placement.disruption.gang_victims import GangVictims
from kgwe.placement.disruption.node_victims import NodeVictims
from kgwe.placement.disruption.rearrange import MovingMembers, Rearrangement
from kgwe.placement.disruption.running import MILLI_S_PER_GPU_HOUR, Cost, grant_milli
from kgwe.placement.disruption.victims import Found, VictimPool
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest, Role
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.rearrange import Seats
    from kgwe.placement.disruption.running import Running
    from kgwe.placement.disruption.victims import Picked
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.pod.fit import Fitter

_DAY_S: Final = 86_400
# Searched to the end when there are no more items than this.
_EXACT_ITEMS: Final = 12
_EXACT_STEPS: Final = 4096
# Seats tried for one set: all ways to seat a few pods on a few nodes, or a few retries among hundreds.
_SEATS: Final = 2000
_RETRIES: Final = 64
# Seats tried for all sets together: about two seconds.
_ALL_SEATS: Final = 20_000
# A gang of up to so many pods is also tried in places that the gang search would not choose.
_FEW_PODS: Final = 16
# The weight of a pod: larger than any cost.
_POD: Final = 1 << 80


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload that could start if other pods moved."""

    name: str
    wanted: Request | GangRequest
    sooner_s: float
    """How much sooner it would start: its expected wait without moves, up to the caller's horizon."""


@dataclass(frozen=True)
class Rules:
    """The limits of moves, and the price of a GPU."""

    price_micro_per_gpu_hour: int
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Disruption budget -> pods that may still be stopped; one that is not listed allows none."""
    min_runtime_s: float = 0.0
    """Workloads that have run for less are not moved."""
    quiet_s: tuple[int, int] | None = None
    """Seconds of the day (UTC) between which moves are allowed, past midnight if the first is larger; None: always."""
    max_evictions: int | None = None

    def is_quiet(self, now_s: float) -> bool:
        if self.quiet_s is None:
            return True
        start, end = self.quiet_s
        second = now_s % _DAY_S
        return start <= second < end if start <= end else second >= start or second < end


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that is stopped and started again; in the same place if only its gang restarts."""

    workload: str
    member: str
    source: str
    node: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """Moves that let a waiting workload start; execute all of them or none."""

    waiting: str
    placement: tuple[Grant, ...]
    moves: tuple[Move, ...]
    cost: Cost
    benefit_micro: int
    cost_micro: int
    proven: bool
    """Whether no plan stops fewer pods."""

    @property
    def evictions(self) -> int:
        return len(self.moves)

    @property
    def net_micro(self) -> int:
        return self.benefit_micro - self.cost_micro

    @property
    def reasons(self) -> tuple[str, ...]:
        return (
            *(
                f"{move.member} {move.source} -> {move.node}" if move.source != move.node else f"{move.member} restarts"
                for move in self.moves
            ),
            f"{self.waiting} starts: brings {_format_usd(self.benefit_micro)}, costs {_format_usd(self.cost_micro)}",
        )


def plan_defrag(
    fitter: Fitter,
    tree: Tree | None,
    waiting: Sequence[Waiting],
    running: Iterable[Running],
    *,
    rules: Rules,
    now_s: float,
) -> DefragPlan | Refusal | None:
    """The most valuable plan for one of the waiting workloads; else the refusal of the first of them."""
    movable = [
        each
        for each in running
        if each.preemptible and each.placed_members and now_s - each.started_at_s >= rules.min_runtime_s
    ]
    search = GangSearch(fitter, tree or gang_constraints.build_flat_tree(fitter.snapshot))
    pool = VictimPool(fitter.snapshot, movable, now_s, rules.budgets, weigh=_weigh_by_pods)
    answers = [_Defrag(search, pool, each, rules).answer(now_s) for each in waiting]
    plans = [answer for answer in answers if isinstance(answer, DefragPlan)]
    return max(plans, key=lambda plan: plan.net_micro) if plans else next(iter(answers), None)


def _weigh_by_pods(cost: Cost, pods: int) -> int:
    return pods * _POD + cost.lost + cost.restart


class _Defrag:
    """The search for one waiting workload."""

    def __init__(self, search: GangSearch, pool: VictimPool, waiting: Waiting, rules: Rules) -> None:
        self._search = search
        self._fitter = search.fitter
        self._pool = pool
        self._waiting = waiting
        self._rules = rules
        self._seats_left = _ALL_SEATS

    def answer(self, now_s: float) -> DefragPlan | Refusal:
        if self._starts_now():
            return self._refuse(Reason.STARTS_ANYWAY)
        if not self._rules.is_quiet(now_s):
            return self._refuse(Reason.NOT_NOW)
        if not self._pool.items:
            return self._refuse(Reason.NOTHING_MOVABLE)
        if int(self._fitter.snapshot.milli.sum()) < self._min_milli():
            # Moves join free capacity and do not add any.
            return self._refuse(Reason.NO_ARRANGEMENT)
        found, node = self._find_fewest_pods()
        if found.picked is None:
            return self._refuse(Reason.NO_ARRANGEMENT)
        return self._price_plan(found, node)

    def _refuse(self, code: Reason, evictions: int = 0, benefit_micro: int = 0, cost_micro: int = 0) -> Refusal:
        """A refusal with the figures that are known."""
        figures = f": {evictions} evictions, brings {_format_usd(benefit_micro)}, costs {_format_usd(cost_micro)}"
        counts = {"evictions": evictions, "benefit_micro": benefit_micro, "cost_micro": cost_micro}
        return Refusal(code, self._waiting.name + figures * bool(evictions), counts if evictions else {})

    def _starts_now(self) -> bool:
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            return isinstance(self._search.find(wanted), GangPlan)
        return bool((self._fitter.check_nodes(wanted) == FitStatus.FITS).any())

    # --- which set --------------------------------------------------------------------------------------

    def _find_fewest_pods(self) -> tuple[Found, int | None]:
        """The lightest set of pods to move so that all find a place, and the node of a single wanted pod."""
        found, node = self._propose_set()
        if len(self._pool.items) > _EXACT_ITEMS:
            # A set of one pod is minimal.
            is_one = found.picked is not None and len(self._pool.grants(found.picked)) == 1
            return Found(found.picked, proven=is_one), node
        below = None if found.picked is None else self._pool.weight(found.picked)
        everything = range(len(self._pool.items))
        exact = victims.find_lightest(self._pool, everything, _Exact(self, self._pool), steps=_EXACT_STEPS, below=below)
        is_proven = exact.proven and self._seats_left > 0
        if exact.picked is not None:
            return Found(exact.picked, is_proven), None
        return Found(found.picked, is_proven), node

    def _propose_set(self) -> tuple[Found, int | None]:
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            also = functools.partial(self.find_seats, steps=_RETRIES)
            return GangVictims(
                self._search, self._pool, wanted, lambda picked: also(picked) is not None
            ).find_lightest(), None
        possible = self._fitter.check_empty_nodes(wanted) == FitStatus.FITS
        nodes = [node for node in sorted(self._pool.items_on) if possible[node]]
        return node_victims.find_best_node(
            self._pool, (NodeVictims(self._fitter, self._pool, wanted, node, self._has_seats) for node in nodes)
        )

    def _has_seats(self, node: int, picked: Picked) -> bool:
        return self.find_seats(picked, node, steps=_RETRIES) is not None

    # --- new seats --------------------------------------------------------------------------------------

    def find_seats(self, picked: Picked, node: int | None = None, *, steps: int = _SEATS) -> Seats | None:
        """Seats for the waiting workload (number 0) and the moved pods; the snapshot is already without them."""
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            found = self._seat_around_gang(wanted, picked, steps)
            if found is not None or self._count_pods() > _FEW_PODS:
                return found
        crowded = frozenset() if node is None else frozenset({node})
        return self._rearrange([self._waiting_members(node), *self._list_moving(picked)], steps, crowded)

    def _seat_around_gang(self, gang: GangRequest, picked: Picked, steps: int) -> Seats | None:
        """Seats with the gang where the gang search places it, and the moved pods around it."""
        plan = self._search.find(gang)
        if not isinstance(plan, GangPlan):
            return None
        with self._fitter.snapshot.trial() as trial:
            trial.commit_all(plan.grants)
            placed = dataclasses.replace(self._waiting_members(None), members=())
            crowded = frozenset(grant.node for grant in plan.grants)
            found = self._rearrange([placed, *self._list_moving(picked)], steps, crowded)
        return None if found is None else {**found, **{(0, seat.rank): seat.grant for seat in plan.seats}}

    def _rearrange(self, moving: Sequence[MovingMembers], steps: int, crowded: frozenset[int]) -> Seats | None:
        most = min(steps + sum(len(each.members) for each in moving), self._seats_left)
        arrangement = Rearrangement(self._fitter, moving, most, crowded)
        found = arrangement.find_seats()
        self._seats_left -= most - arrangement.steps_left
        return found

    def _count_pods(self) -> int:
        wanted = self._waiting.wanted
        return sum(role.required_replicas for role in wanted.roles) if isinstance(wanted, GangRequest) else 1

    def _waiting_members(self, node: int | None) -> MovingMembers:
        wanted = self._waiting.wanted
        gang = wanted if isinstance(wanted, GangRequest) else None
        roles = wanted.roles if isinstance(wanted, GangRequest) else [Role("", wanted, 1)]
        requests = [role.request for role in roles for _ in range(role.required_replicas)]
        only = None
        if node is not None:
            only = np.zeros(len(self._fitter.snapshot), np.bool_)
            only[node] = True
        bound = GangConstraints(self._search.level_tables, gang, len(requests))
        return MovingMembers(bound, requests, range(len(requests)), allowed=only)

    def _list_moving(self, picked: Picked) -> list[MovingMembers]:
        moving = []
        for number, members in sorted(self._members_by_workload(picked).items()):
            workload = self._pool.workloads[number]
            held = {i: grant.node for i in workload.placed_members if (grant := workload.members[i].grant) is not None}
            moving.append(
                MovingMembers(
                    GangConstraints(self._search.level_tables, workload.gang, len(workload.members)),
                    [member.request for member in workload.members],
                    members,
                    homes={i: held[i] for i in members},
                    placed={i: at for i, at in held.items() if i not in members},
                )
            )
        return moving

    def _members_by_workload(self, picked: Picked) -> dict[int, list[int]]:
        """Workload -> its members that stop."""
        stopped: dict[int, list[int]] = {}
        for number in self._pool.with_gang_mates(picked):
            item = self._pool.items[number]
            stopped.setdefault(item.workload, []).extend(item.members)
        return stopped

    # --- gain and cost ----------------------------------------------------------------------------------

    def _price_plan(self, found: Found, node: int | None) -> DefragPlan | Refusal:
        picked = found.picked or ()
        with self._pool.without_items(picked):
            seats = self.find_seats(picked, node)
        if seats is None:
            return self._refuse(Reason.NO_ARRANGEMENT)
        placement = tuple(grant for (each, _), grant in sorted(seats.items(), key=_seat_order) if each == 0)
        moves = self._list_moves(picked, seats)
        cost = sum((victim.cost for victim in self._pool.list_victims(picked)), Cost())
        cost_micro = self._price_micro(cost.lost + cost.restart)
        started = sum(grant_milli(grant, self._fitter.snapshot) for grant in placement)
        benefit_micro = self._price_micro(round(started * self._waiting.sooner_s))
        if self._rules.max_evictions is not None and len(moves) > self._rules.max_evictions:
            return self._refuse(Reason.TOO_MANY, len(moves), benefit_micro, cost_micro)
        if benefit_micro <= cost_micro:
            return self._refuse(Reason.NOT_WORTH_IT, len(moves), benefit_micro, cost_micro)
        return DefragPlan(self._waiting.name, placement, moves, cost, benefit_micro, cost_micro, found.proven)

    def _list_moves(self, picked: Picked, seats: Seats) -> tuple[Move, ...]:
        nodes = self._fitter.snapshot.nodes
        moves = []
        for index, (number, members) in enumerate(sorted(self._members_by_workload(picked).items()), 1):
            workload = self._pool.workloads[number]
            for i in sorted(members):
                member, grant = workload.members[i], seats[index, i]
                source = nodes[member.grant.node].name if member.grant is not None else ""
                moves.append(Move(workload.name, member.name, source, nodes[grant.node].name, grant))
        return tuple(moves)

    def _price_micro(self, milli_s: int) -> int:
        return milli_s * self._rules.price_micro_per_gpu_hour // MILLI_S_PER_GPU_HOUR

    def _min_milli(self) -> int:
        """Milli-GPUs that the waiting workload needs at least; slices do not count, they are on partitioned GPUs."""
        wanted = self._waiting.wanted
        pods = (
            [(role.request, role.required_replicas) for role in wanted.roles]
            if isinstance(wanted, GangRequest)
            else [(wanted, 1)]
        )
        return sum((request.gpus.count * GPU_MILLI + request.gpus.milli) * count for request, count in pods)


class _Exact(victims.Problem):
    """Sets after whose removal all pods find seats."""

    def __init__(self, search: _Defrag, pool: VictimPool) -> None:
        self._search = search
        self._pool = pool

    def is_sufficient(self, picked: Picked) -> bool:
        with self._pool.without_items(picked):
            return self._search.find_seats(picked) is not None


def _seat_order(pair: tuple[tuple[int, int], Grant]) -> tuple[int, int]:
    return pair[0]


def _format_usd(micro: int) -> str:
    return f"${micro / 1_000_000:.2f}"

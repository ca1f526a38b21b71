"""Which running work to move so that waiting work can start, when that pays for itself.

    waiting work ──► fewest pods to stop ──► a place for it and for each of them ──► worth more than it costs? ──► plan

Nobody is put out: everyone who makes way has a new place in the same plan, inside what his own gang requires. A plan
is carried out as a whole or not at all, so it is tried as a whole on the snapshot first.

- Benefit: the GPUs of the waiting work, for as long as it starts sooner, at their price.
- Cost: what was computed since the last saved state and is computed again, and the restart, at the same price. A
  gang stops as a whole when it cannot spare a member, and all of it counts, though only those move who must.
- Limits, given by the caller: disruption budgets, a least time to have run, a quiet window of the day, a most number of
  pods to stop. Work that may not be preempted is never moved.

Fewest pods first, then least cost. Small fleets are searched to the end, chains included (one moves so that
another can move); for large ones sets on one node or one domain are considered, and `proven` tells the difference.
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
# Seats tried for one set: all ways of a few pods on a few nodes, or a few second thoughts among hundreds.
_SEATS: Final = 2000
_SECOND_THOUGHTS: Final = 64
# Seats tried for all sets together: about two seconds.
_ALL_SEATS: Final = 20_000
# A gang of so many is also tried in places where it would not go by itself.
_FEW_PODS: Final = 16
# Pods count before cost; no cost is as large.
_POD: Final = 1 << 80


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work that could start if others moved."""

    name: str
    wanted: Request | GangRequest
    sooner_s: float
    """How much sooner it would start: how long it is expected to wait otherwise, as far ahead as one wants to count."""


@dataclass(frozen=True)
class Rules:
    """What moves are allowed, and what a GPU is worth."""

    price_micro_per_gpu_hour: int
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Disruption budget -> pods that may still be stopped; one that is not listed allows none."""
    min_runtime_s: float = 0.0
    """Work that has not run for so long is left alone."""
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
    """A pod that is stopped and started again; in the same place when only its gang has to."""

    workload: str
    member: str
    source: str
    node: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """Carry out all of it or nothing."""

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
            f"{self.waiting} starts: brings {_usd(self.benefit_micro)}, costs {_usd(self.cost_micro)}",
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
    """The plan that brings most, for one of those who wait; else why the first of them cannot be helped."""
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
    """The question for one piece of waiting work."""

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
        if int(self._fitter.snapshot.milli.sum()) < self._milli():
            # Moves bring together what is free and free nothing themselves.
            return self._refuse(Reason.NO_ARRANGEMENT)
        found, node = self._fewest()
        if found.picked is None:
            return self._refuse(Reason.NO_ARRANGEMENT)
        return self._priced(found, node)

    def _refuse(self, code: Reason, evictions: int = 0, benefit_micro: int = 0, cost_micro: int = 0) -> Refusal:
        """Nothing is to be moved; with the figures as far as they are known."""
        figures = f": {evictions} evictions, brings {_usd(benefit_micro)}, costs {_usd(cost_micro)}"
        counts = {"evictions": evictions, "benefit_micro": benefit_micro, "cost_micro": cost_micro}
        return Refusal(code, self._waiting.name + figures * bool(evictions), counts if evictions else {})

    def _starts_now(self) -> bool:
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            return isinstance(self._search.find(wanted), GangPlan)
        return bool((self._fitter.check_nodes(wanted) == FitStatus.FITS).any())

    # --- which set --------------------------------------------------------------------------------------

    def _fewest(self) -> tuple[Found, int | None]:
        """The lightest set after which all have a place, and the node of a wanted pod when that was settled."""
        found, node = self._proposed()
        if len(self._pool.items) > _EXACT_ITEMS:
            # Whoever stops one pod cannot stop fewer.
            is_one = found.picked is not None and len(self._pool.grants(found.picked)) == 1
            return Found(found.picked, proven=is_one), node
        below = None if found.picked is None else self._pool.weight(found.picked)
        everything = range(len(self._pool.items))
        exact = victims.find_lightest(self._pool, everything, _Exact(self, self._pool), steps=_EXACT_STEPS, below=below)
        is_proven = exact.proven and self._seats_left > 0
        if exact.picked is not None:
            return Found(exact.picked, is_proven), None
        return Found(found.picked, is_proven), node

    def _proposed(self) -> tuple[Found, int | None]:
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            also = functools.partial(self.seats, steps=_SECOND_THOUGHTS)
            return GangVictims(
                self._search, self._pool, wanted, lambda picked: also(picked) is not None
            ).find_lightest(), None
        possible = self._fitter.check_empty_nodes(wanted) == FitStatus.FITS
        nodes = [node for node in sorted(self._pool.items_on) if possible[node]]
        return node_victims.find_best_node(
            self._pool, (NodeVictims(self._fitter, self._pool, wanted, node, self._has_seats) for node in nodes)
        )

    def _has_seats(self, node: int, picked: Picked) -> bool:
        return self.seats(picked, node, steps=_SECOND_THOUGHTS) is not None

    # --- where everybody goes ---------------------------------------------------------------------------

    def seats(self, picked: Picked, node: int | None = None, *, steps: int = _SEATS) -> Seats | None:
        """Places for the wanted work (party 0) and those who make way; the snapshot is without them already."""
        wanted = self._waiting.wanted
        if isinstance(wanted, GangRequest):
            found = self._around(wanted, picked, steps)
            if found is not None or self._pods() > _FEW_PODS:
                return found
        crowded = frozenset() if node is None else frozenset({node})
        return self._arranged([self._wanted_party(node), *self._parties(picked)], steps, crowded)

    def _around(self, gang: GangRequest, picked: Picked, steps: int) -> Seats | None:
        """The gang where it would go by itself, and the others around it."""
        plan = self._search.find(gang)
        if not isinstance(plan, GangPlan):
            return None
        with self._fitter.snapshot.trial() as trial:
            trial.commit_all(plan.grants)
            nobody = dataclasses.replace(self._wanted_party(None), members=())
            crowded = frozenset(grant.node for grant in plan.grants)
            found = self._arranged([nobody, *self._parties(picked)], steps, crowded)
        return None if found is None else {**found, **{(0, seat.rank): seat.grant for seat in plan.seats}}

    def _arranged(self, parties: Sequence[MovingMembers], steps: int, crowded: frozenset[int]) -> Seats | None:
        most = min(steps + sum(len(party.members) for party in parties), self._seats_left)
        arrangement = Rearrangement(self._fitter, parties, most, crowded)
        found = arrangement.find_seats()
        self._seats_left -= most - arrangement.steps_left
        return found

    def _pods(self) -> int:
        wanted = self._waiting.wanted
        return sum(role.required_replicas for role in wanted.roles) if isinstance(wanted, GangRequest) else 1

    def _wanted_party(self, node: int | None) -> MovingMembers:
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

    def _parties(self, picked: Picked) -> list[MovingMembers]:
        parties = []
        for number, members in sorted(self._stopped(picked).items()):
            workload = self._pool.workloads[number]
            held = {i: grant.node for i in workload.placed_members if (grant := workload.members[i].grant) is not None}
            parties.append(
                MovingMembers(
                    GangConstraints(self._search.level_tables, workload.gang, len(workload.members)),
                    [member.request for member in workload.members],
                    members,
                    homes={i: held[i] for i in members},
                    placed={i: at for i, at in held.items() if i not in members},
                )
            )
        return parties

    def _stopped(self, picked: Picked) -> dict[int, list[int]]:
        """Workload -> members that make way."""
        stopped: dict[int, list[int]] = {}
        for number in self._pool.with_gang_mates(picked):
            item = self._pool.items[number]
            stopped.setdefault(item.workload, []).extend(item.members)
        return stopped

    # --- what it is worth -------------------------------------------------------------------------------

    def _priced(self, found: Found, node: int | None) -> DefragPlan | Refusal:
        picked = found.picked or ()
        with self._pool.without_items(picked):
            seats = self.seats(picked, node)
        if seats is None:
            return self._refuse(Reason.NO_ARRANGEMENT)
        placement = tuple(grant for (party, _), grant in sorted(seats.items(), key=_place) if party == 0)
        moves = self._moves(picked, seats)
        cost = sum((victim.cost for victim in self._pool.list_victims(picked)), Cost())
        cost_micro = self._micro(cost.lost + cost.restart)
        started = sum(grant_milli(grant, self._fitter.snapshot) for grant in placement)
        benefit_micro = self._micro(round(started * self._waiting.sooner_s))
        if self._rules.max_evictions is not None and len(moves) > self._rules.max_evictions:
            return self._refuse(Reason.TOO_MANY, len(moves), benefit_micro, cost_micro)
        if benefit_micro <= cost_micro:
            return self._refuse(Reason.NOT_WORTH_IT, len(moves), benefit_micro, cost_micro)
        return DefragPlan(self._waiting.name, placement, moves, cost, benefit_micro, cost_micro, found.proven)

    def _moves(self, picked: Picked, seats: Seats) -> tuple[Move, ...]:
        nodes = self._fitter.snapshot.nodes
        moves = []
        for party, (number, members) in enumerate(sorted(self._stopped(picked).items()), 1):
            workload = self._pool.workloads[number]
            for i in sorted(members):
                member, grant = workload.members[i], seats[party, i]
                source = nodes[member.grant.node].name if member.grant is not None else ""
                moves.append(Move(workload.name, member.name, source, nodes[grant.node].name, grant))
        return tuple(moves)

    def _micro(self, milli_s: int) -> int:
        return milli_s * self._rules.price_micro_per_gpu_hour // MILLI_S_PER_GPU_HOUR

    def _milli(self) -> int:
        """GPUs and shares the waiting work needs at least; slices lie on GPUs that nobody shares."""
        wanted = self._waiting.wanted
        pods = (
            [(role.request, role.required_replicas) for role in wanted.roles]
            if isinstance(wanted, GangRequest)
            else [(wanted, 1)]
        )
        return sum((request.gpus.count * GPU_MILLI + request.gpus.milli) * count for request, count in pods)


class _Exact(victims.Problem):
    """Any set will do after which all have a place."""

    def __init__(self, question: _Defrag, pool: VictimPool) -> None:
        self._question = question
        self._pool = pool

    def suffices(self, picked: Picked) -> bool:
        with self._pool.without_items(picked):
            return self._question.seats(picked) is not None


def _place(pair: tuple[tuple[int, int], Grant]) -> tuple[int, int]:
    return pair[0]


def _usd(micro: int) -> str:
    return f"${micro / 1_000_000:.2f}"

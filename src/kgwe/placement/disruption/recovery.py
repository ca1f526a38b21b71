"""Recovery plans: which workloads a failure of nodes, GPUs or domains hits, which members move, and where to.

    failure ──► members that lost their place ──► near nodes, level by level ──► all of them, or nothing is moved

The rules:

- Healthy members stay. Only when the lost ones cannot be placed beside them (the required domain is full, a segment
  does not fit) are healthy ones moved too: as few as possible, at last the whole gang.
- A lost member is replaced in its own leaf, else its own spine, and so on up; never outside the gang's required domain.
- A gang gets all the places it lacks or none; an elastic one all, or enough to continue.
- Among workloads of one priority those that have waited since an earlier failure come first: capacity that comes back
  goes to those that lost it, before anything fresh (volcano#5805).

Several failures are planned together: all failed places are excluded from the start. One node at a time, as in kueue
PR#5621, would move workloads onto nodes that are excluded next.

The snapshot is as it was booked before the failure. Planning leaves nothing behind in it.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.disruption import gang_constraints
from kgwe.placement.disruption.gang_constraints import GangConstraints
from kgwe.placement.disruption.relocate import Relocated, Relocation
from kgwe.placement.disruption.running import Repair
from kgwe.placement.fleet.snapshot import Grant, list_gpus
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.search import GangSearch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.running import Running
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Trial
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.pod.fit import Fitter

# Sets of healthy members that are tried with the lost ones: all sets of seven.
_TRIES: Final = 128


@dataclass(frozen=True)
class Failure:
    """What failed, by name."""

    nodes: frozenset[str] = frozenset()
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Node -> mask of its GPUs."""
    domains: frozenset[tuple[str, str]] = frozenset()
    """(level, domain)"""


class Outcome(enum.StrEnum):
    """What becomes of a workload that was hit."""

    REPLACED = "Replaced"
    """Its lost members get new places."""
    MOVED = "GangMoved"
    """Healthy members have to move too."""
    SHRUNK = "Shrunk"
    """It goes on with fewer members."""
    WAITS = "WaitsForRoom"
    """No place that keeps what it requires; nothing of it is moved."""
    LEFT_ALONE = "LeftAlone"
    """Its policy is to do nothing."""


@dataclass(frozen=True, slots=True)
class Move:
    """A member's new place."""

    member: str
    source: str
    """Node it was on; empty when it had none."""
    node: str
    grant: Grant
    level: str
    """Lowest level that holds the old and the new node."""
    was_healthy: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """What is planned for one workload."""

    workload: str
    outcome: Outcome
    lost: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    restarts: tuple[str, ...] = ()
    """Members that stay where they are and are started again."""
    missing: int = 0
    """Members still without a place."""

    def __str__(self) -> str:
        moved = ", ".join(f"{move.member} {move.source or '-'} -> {move.node} ({move.level})" for move in self.moves)
        lacking = f"{self.missing} of {len(self.lost)} lost members have no place" if self.missing else ""
        return f"{self.workload}: {self.outcome}" + "".join(f"; {part}" for part in (moved, lacking) if part)


@dataclass(frozen=True)
class RecoveryPlan:
    """One entry per workload that was hit, in the order in which they were served."""

    repairs: tuple[Repaired, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(move for repaired in self.repairs for move in repaired.moves)

    @property
    def waiting(self) -> tuple[Repaired, ...]:
        """Workloads still short of members: they come first when capacity is freed."""
        return tuple(repaired for repaired in self.repairs if repaired.missing)


def plan_recovery(fitter: Fitter, tree: Tree | None, running: Iterable[Running], failure: Failure) -> RecoveryPlan:
    """Plan new places for all members that the failure hit, and for members that had none before."""
    with fitter.snapshot.trial() as trial:
        site = _RecoverySearch(fitter, tree or gang_constraints.build_flat_tree(fitter.snapshot), failure, trial)
        hit = [(workload, lost) for workload in running if (lost := site.find_lost_members(workload))]
        hit.sort(key=lambda pair: _order_key(pair[0]))
        site.release_lost([workload for workload, _ in hit if workload.repair is not Repair.NONE])
        return RecoveryPlan(tuple(site.repair(workload, lost) for workload, lost in hit))


def _order_key(workload: Running) -> tuple[int, bool, float, str]:
    is_fresh = len(workload.placed_members) == len(workload.members)
    return -workload.priority, is_fresh, workload.started_at_s, workload.name


class _RecoverySearch:
    """The snapshot without the failed nodes and GPUs, within a trial of the caller."""

    def __init__(self, fitter: Fitter, tree: Tree, failure: Failure, trial: Trial) -> None:
        self._fitter = fitter
        self._snapshot = fitter.snapshot
        self._search = GangSearch(fitter, tree)
        self._dead_names = failure.nodes.union(*(_nodes_in(tree, level, name) for level, name in failure.domains))
        index = self._snapshot.index
        self._dead = frozenset(index[name] for name in self._dead_names if name in index)
        self._failed_gpus = {index[name]: mask for name, mask in failure.gpus.items() if name in index}
        self._usable = np.ones(len(self._snapshot), np.bool_)
        self._usable[list(self._dead)] = False
        self._trial = trial

    def find_lost_members(self, workload: Running) -> tuple[int, ...]:
        """Members without a place, or whose place failed."""
        return tuple(i for i, member in enumerate(workload.members) if member.failed or self._is_hit(member.grant))

    def _is_hit(self, grant: Grant | None) -> bool:
        return grant is None or grant.node in self._dead or bool(grant.gpu_mask & self._failed_gpus.get(grant.node, 0))

    def release_lost(self, workloads: Sequence[Running]) -> None:
        """Release the grants of lost members, and book the failed GPUs so that they are not used."""
        for workload in workloads:
            grants = [workload.members[i].grant for i in self.find_lost_members(workload)]
            self._trial.release_all(grant for grant in grants if grant is not None)
        for node, mask in sorted(self._failed_gpus.items()):
            if node not in self._dead:
                self._trial.commit_all(self._failed_gpu_grants(node, mask))

    def _failed_gpu_grants(self, node: int, mask: int) -> Iterator[Grant]:
        free = int(self._snapshot.free[node]) & mask
        if free and self._snapshot.pods[node] > 0:
            yield Grant(node, gpus=free)
        for gpu in list_gpus(mask & ~free):
            # What is left of a GPU that others share is no better.
            if gpu < self._snapshot.milli.shape[1] and (left := int(self._snapshot.milli[node, gpu])):
                yield Grant(node, share=(gpu, left, int(self._snapshot.share_mib[node, gpu])), pods=0)
        slices = [
            (gpu, placed)
            for (at, gpu), held in sorted(self._snapshot.free_slices.items())
            if at == node and mask >> gpu & 1
            for placed in held
        ]
        if slices and self._snapshot.pods[node] > bool(free):
            yield Grant(node, slices=tuple(slices))

    # --- one workload -----------------------------------------------------------------------------------

    def repair(self, workload: Running, lost: tuple[int, ...]) -> Repaired:
        if workload.repair is Repair.NONE:
            names = tuple(workload.members[i].name for i in lost)
            return Repaired(workload.name, Outcome.LEFT_ALONE, names, missing=len(lost))
        bound = GangConstraints(self._search.level_tables, workload.gang, len(workload.members))
        requests = [member.request for member in workload.members]
        reseating = Relocation(self._fitter, bound, requests, _find_homes(workload), self._usable, trial=self._trial)
        seated = reseating.relocate_all(lost, _staying_nodes(workload, lost))
        if seated is None and workload.min_members is not None:
            seated = self._relocate_some(workload, lost, reseating)
        if seated is None:
            seated = self._relocate_with_healthy(workload, lost, bound, reseating)
        return self._build_repaired(workload, lost, seated or {}, bound)

    def _relocate_some(
        self, workload: Running, lost: Sequence[int], reseating: Relocation
    ) -> dict[int, Relocated] | None:
        """Relocate as many as fit, if that is enough to continue."""
        mark = len(self._trial)
        seated = reseating.relocate_some(lost, _staying_nodes(workload, lost))
        left = len(workload.members) - len(lost) + len(seated)
        if _is_enough(workload, left):
            return seated
        self._trial.rollback(mark)
        return None

    def _relocate_with_healthy(
        self, workload: Running, lost: tuple[int, ...], bound: GangConstraints, reseating: Relocation
    ) -> dict[int, Relocated] | None:
        """Move healthy members too, as few as possible."""
        healthy = [i for i in workload.placed_members if i not in lost]
        for others in _list_movers(workload, healthy, bound):
            moving = [*lost, *others]
            mark = len(self._trial)
            self._trial.release_all(grant for i in others if (grant := workload.members[i].grant) is not None)
            seated = reseating.relocate_all(moving, _staying_nodes(workload, moving))
            if seated is not None:
                return seated
            if len(others) == len(healthy) and (seated := self._replan_gang(workload, bound)) is not None:
                return seated
            self._trial.rollback(mark)
        return None

    def _replan_gang(self, workload: Running, bound: GangConstraints) -> dict[int, Relocated] | None:
        """Plan the whole gang again, away from the failure."""
        gang = workload.gang
        if gang is None or _requests_by_rank(gang) != [member.request for member in workload.members]:
            return None
        plan = self._search.find(_exclude_nodes(gang, self._dead_names))
        if not isinstance(plan, GangPlan) or len(plan.seats) != len(workload.members):
            return None
        self._trial.commit_all(plan.grants)
        return {seat.rank: Relocated(seat.grant, len(bound.node_domains.names) - 1) for seat in plan.seats}

    def _build_repaired(
        self, workload: Running, lost: tuple[int, ...], seated: Mapping[int, Relocated], bound: GangConstraints
    ) -> Repaired:
        moves = []
        for i, seat in sorted(seated.items()):
            member = workload.members[i]
            if i in lost or member.grant != seat.grant:
                moves.append(
                    Move(
                        member=member.name,
                        source=self._snapshot.nodes[member.grant.node].name if member.grant is not None else "",
                        node=self._snapshot.nodes[seat.grant.node].name,
                        grant=seat.grant,
                        level=bound.node_domains.names[seat.level],
                        was_healthy=i not in lost,
                    )
                )
        moved = {move.member for move in moves}
        stay = [workload.members[i].name for i in workload.placed_members if i not in lost]
        restarts = [name for name in stay if name not in moved] if workload.repair is Repair.RESTART_GANG else []
        missing = sum(i not in seated for i in lost)
        return Repaired(
            workload.name,
            _choose_outcome(workload, moves, missing),
            tuple(workload.members[i].name for i in lost),
            tuple(moves),
            tuple(restarts) if moves else (),
            missing,
        )


def _choose_outcome(workload: Running, moves: Sequence[Move], missing: int) -> Outcome:
    if missing:
        return Outcome.SHRUNK if _is_enough(workload, len(workload.members) - missing) else Outcome.WAITS
    return Outcome.MOVED if any(move.was_healthy for move in moves) else Outcome.REPLACED


def _is_enough(workload: Running, members: int) -> bool:
    """Whether the workload can run with this many members."""
    return workload.min_members is not None and members >= max(1, workload.min_members)


def _list_movers(workload: Running, healthy: Sequence[int], bound: GangConstraints) -> Iterator[tuple[int, ...]]:
    """Sets of healthy members that could move too, the smallest first, all of them last.

    Equal members that are bound only as a whole gain nothing by changing seats inside their domain.
    """
    if not bound.covers_whole_gang_only or len({member.request for member in workload.members}) > 1:
        sizes = (itertools.combinations(healthy, count) for count in range(1, len(healthy)))
        yield from itertools.islice(itertools.chain.from_iterable(sizes), _TRIES)
    if healthy:
        yield tuple(healthy)


def _find_homes(workload: Running) -> list[int | None]:
    """The home of each member: its own node or, if it has none, that of the nearest rank with one."""
    held = _staying_nodes(workload, ())
    homes: list[int | None] = []
    for i in range(len(workload.members)):
        nearest = min((abs(j - i), j) for j in held)[1] if held else None
        homes.append(None if nearest is None else held[nearest])
    return homes


def _staying_nodes(workload: Running, without: Collection[int]) -> dict[int, int]:
    """Member -> node of those that stay."""
    return {
        i: grant.node
        for i in workload.placed_members
        if i not in without and (grant := workload.members[i].grant) is not None
    }


def _nodes_in(tree: Tree, level: str, name: str) -> frozenset[str]:
    """Nodes of all domains of that name."""
    found = tree.levels[tree.level(level)]
    return frozenset(
        node for number, known in enumerate(found.names) if known == name for node in tree.nodes[found.nodes(number)]
    )


def _requests_by_rank(gang: GangRequest) -> list[Request]:
    """Requests by rank, with the most members it can have."""
    return [role.request for role in gang.roles for _ in range(role.replicas)]


def _exclude_nodes(gang: GangRequest, names: Collection[str]) -> GangRequest:
    """The gang with these nodes excluded."""
    roles = []
    for role in gang.roles:
        avoid = role.request.constraints.avoid | frozenset(names)
        constraints = dataclasses.replace(role.request.constraints, avoid=avoid)
        roles.append(dataclasses.replace(role, request=dataclasses.replace(role.request, constraints=constraints)))
    return dataclasses.replace(gang, roles=tuple(roles))

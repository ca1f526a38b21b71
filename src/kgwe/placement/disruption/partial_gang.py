"""Gangs of which some pods have their places and others have none: the others go where the gang stays together.

A member was replaced by its owner, an elastic gang grew, or seating was interrupted half-way. Who has a place keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.disruption.gang_constraints import Bonds
from kgwe.placement.disruption.recovery import Failure, plan_recovery
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.constraints import NAME_FIELD, Operator, Requirement
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch

if TYPE_CHECKING:
    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.recovery import Move
    from kgwe.placement.fleet.constraints import Constraints
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.pod.fit import Fitter


@dataclass(frozen=True, slots=True)
class Sitting:
    """One pod of the gang."""

    pod: str
    request: Request
    #: where it is, or will be; empty: nowhere yet
    node: str = ""


@dataclass(frozen=True, slots=True)
class Partial:
    """The whole gang, by rank."""

    members: tuple[Sitting, ...]
    gang: GangRequest
    #: pods it can go on with; None: all of them
    least: int | None = None

    @property
    def missing(self) -> int:
        return sum(not member.node for member in self.members)

    @property
    def is_broken(self) -> bool:
        """Whether fewer pods have a place than it can go on with: it lost some, or was never seated as a whole."""
        least = len(self.members) if self.least is None else self.least
        return len(self.members) - self.missing < least


def confined(fitter: Fitter, tree: Tree, partial: Partial) -> GangRequest:
    """Those that have no place, as a gang that is kept to where they could join the others.

    For who plans without regard to the others: every place of a plan for the gang is among these, and for one pod, or
    where nothing binds parts of the gang, the other way round too.
    """
    index = fitter.snapshot.index
    bound = Bonds(GangSearch(fitter, tree).level_tables, partial.gang, len(partial.members))
    placed = {rank: index[each.node] for rank, each in enumerate(partial.members) if each.node in index}
    missing = [rank for rank in range(len(partial.members)) if rank not in placed]
    near = np.logical_or.reduce([bound.allowed(rank, placed) for rank in missing])
    request = partial.members[missing[0]].request
    if not near.all():
        names = tuple(fitter.snapshot.nodes[number].name for number in np.flatnonzero(near))
        request = replace(request, constraints=within(request.constraints, names))
    return GangRequest.uniform(request, len(missing), priority=partial.gang.priority, name=partial.gang.name)


def within(constraints: Constraints, names: tuple[str, ...]) -> Constraints:
    """The same, on these nodes only."""
    line = Requirement(NAME_FIELD, Operator.IN, names)
    terms = constraints.affinity
    return replace(
        constraints, affinity=((line,),) if terms is None else tuple((*term, line) for term in terms if term)
    )


def refill(fitter: Fitter, tree: Tree, partial: Partial) -> dict[str, Move]:
    """Pod -> its place, for those that have none: all of them, or enough of an elastic gang; none: there is no room."""
    index = fitter.snapshot.index
    members = tuple(
        # What it holds is booked already and none of our concern, but for where that is.
        Member(each.pod, each.request, Grant(index[each.node], pods=0) if each.node in index else None)
        for each in partial.members
    )
    there = {each.pod for each in partial.members if each.node}
    running = Running("gang", members, least=partial.least, gang=partial.gang)
    for repaired in plan_recovery(fitter, tree, (running,), Failure()).repairs:
        if not any(move.was_healthy for move in repaired.moves):
            return {move.member: move for move in repaired.moves if move.member not in there}
    return {}

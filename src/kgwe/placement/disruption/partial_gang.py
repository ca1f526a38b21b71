"""Gangs of which some pods have places and others have none: the others are placed near them.

This happens when an owner replaces a member, an elastic gang grows, or placing was interrupted. Placed pods stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.disruption.gang_constraints import GangConstraints
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
class PartialMember:
    """One pod of the gang."""

    pod: str
    request: Request
    #: its node; empty: not placed
    node: str = ""


@dataclass(frozen=True, slots=True)
class PartialGang:
    """A gang by rank, some of whose members are not placed."""

    members: tuple[PartialMember, ...]
    gang: GangRequest
    #: fewest pods it can run with; None: all of them
    min_members: int | None = None

    @property
    def missing(self) -> int:
        return sum(not member.node for member in self.members)

    @property
    def is_broken(self) -> bool:
        """Whether fewer pods are placed than it can run with."""
        least = len(self.members) if self.min_members is None else self.min_members
        return len(self.members) - self.missing < least


def gang_of_missing(fitter: Fitter, tree: Tree, partial: PartialGang) -> GangRequest:
    """The missing members as a gang of their own, restricted to nodes where they can join the others.

    An over-approximation for callers that ignore the placed members: it contains every valid node, and is exact for
    one pod or when there are no segments.
    """
    index = fitter.snapshot.index
    constraints = GangConstraints(GangSearch(fitter, tree).level_tables, partial.gang, len(partial.members))
    placed = {rank: index[each.node] for rank, each in enumerate(partial.members) if each.node in index}
    missing = [rank for rank in range(len(partial.members)) if rank not in placed]
    near = np.logical_or.reduce([constraints.allowed_nodes(rank, placed) for rank in missing])
    request = partial.members[missing[0]].request
    if not near.all():
        names = tuple(fitter.snapshot.nodes[number].name for number in np.flatnonzero(near))
        request = replace(request, constraints=restrict_to_nodes(request.constraints, names))
    return GangRequest.uniform(request, len(missing), priority=partial.gang.priority, name=partial.gang.name)


def restrict_to_nodes(constraints: Constraints, names: tuple[str, ...]) -> Constraints:
    """The constraints, restricted to these nodes."""
    line = Requirement(NAME_FIELD, Operator.IN, names)
    terms = constraints.affinity
    return replace(
        constraints, affinity=((line,),) if terms is None else tuple((*term, line) for term in terms if term)
    )


def complete_gang(fitter: Fitter, tree: Tree, partial: PartialGang) -> dict[str, Move]:
    """Pod -> its place, for all missing members or enough of an elastic gang; empty: there is no room."""
    index = fitter.snapshot.index
    members = tuple(
        # Its grant is booked already; only its node matters here.
        Member(each.pod, each.request, Grant(index[each.node], pods=0) if each.node in index else None)
        for each in partial.members
    )
    there = {each.pod for each in partial.members if each.node}
    running = Running("gang", members, min_members=partial.min_members, gang=partial.gang)
    for repaired in plan_recovery(fitter, tree, (running,), Failure()).repairs:
        if not any(move.was_healthy for move in repaired.moves):
            return {move.member: move for move in repaired.moves if move.member not in there}
    return {}

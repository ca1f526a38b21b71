"""Gangs of which some pods have their places and others have none: the others go where the gang stays together.

A member was replaced by its owner, an elastic gang grew, or seating was interrupted half-way. Who has a place keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.placement.recover import Failure, plan_recovery
from kgwe.placement.running import Member, Running
from kgwe.placement.snapshot import Grant

if TYPE_CHECKING:
    from kgwe.model.domains import Tree
    from kgwe.placement.fit import Fitter
    from kgwe.placement.gang_request import GangRequest
    from kgwe.placement.node import Request
    from kgwe.placement.recover import Move


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

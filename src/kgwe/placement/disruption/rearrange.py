"""Seats for several workloads at once: the one that wants to start, and those that move for it.

Members are seated one after the other, the wanted workload first and then the largest. Each gets the nearest node that
fits and keeps its constraints, its old node before all others; among equally near ones the fullest. When a member finds
no node, the previous one is seated elsewhere, within a number of steps. Interchangeable members are kept in the order
of nodes, since swapping them changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.disruption.room_curves import requested_amount
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.disruption.gang_constraints import GangConstraints
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.pod.fit import Fitter


@dataclass
class MovingMembers:
    """Members of one workload that need nodes, beside those that stay."""

    constraints: GangConstraints
    requests: Sequence[Request]
    """Requests of all its members."""
    members: Sequence[int]
    """Members that need a node."""
    homes: dict[int, int] = field(default_factory=dict)
    """Member -> its old node."""
    placed: dict[int, int] = field(default_factory=dict)
    """Member -> node of those that stay, and of those seated so far."""
    allowed: NDArray[np.bool_] | None = None
    """Nodes to consider; None: all."""

    def is_interchangeable(self) -> bool:
        """Whether its members can be swapped without a difference."""
        return (
            not self.homes
            and self.constraints.covers_whole_gang_only
            and len({self.requests[i] for i in self.members}) == 1
        )


Seats = dict[tuple[int, int], "Grant"]
"""(index of the workload, member) -> its grant"""


class Rearrangement:
    """One attempt; the snapshot is unchanged afterwards. Members on crowded nodes are seated last."""

    def __init__(
        self, fitter: Fitter, workloads: Sequence[MovingMembers], steps: int, crowded: frozenset[int] = frozenset()
    ) -> None:
        self._fitter = fitter
        self._workloads = workloads
        self.steps_left = steps
        """Steps left; 0 afterwards: the search was cut off."""
        self._crowded = crowded
        self._trial = fitter.snapshot.trial()
        """One booking for each member seated so far."""
        self._seats: Seats = {}

    def find_seats(self) -> Seats | None:
        """Seats for all members, or None."""
        order = [(number, member) for number, moving in enumerate(self._workloads) for member in moving.members]
        # The wanted workload is the first; it is seated before those that move for it.
        order.sort(key=lambda each: self._order_key(*each))
        with self._trial:
            return dict(self._seats) if self._search(order) else None

    def _order_key(self, number: int, member: int) -> tuple[bool, int, bool, int, int]:
        moving = self._workloads[number]
        must_go = moving.homes.get(member) in self._crowded
        return number > 0, -requested_amount(moving.requests[member]), must_go, number, member

    def _search(self, order: Sequence[tuple[int, int]]) -> bool:
        """Seat members in this order with backtracking; iterative, because there may be hundreds."""
        choices: list[Iterator[int]] = []
        while len(self._trial) < len(order):
            number, member = order[len(self._trial)]
            if len(choices) == len(self._trial):
                choices.append(iter(self._list_nodes(self._workloads[number], member)))
            node = next(choices[-1], None)
            if node is None:
                choices.pop()
                if not len(self._trial):
                    return False
                self._unseat(*order[len(self._trial) - 1])
            elif self.steps_left <= 0:
                return False
            else:
                self.steps_left -= 1
                self._seat(number, member, node)
        return True

    def _unseat(self, number: int, member: int) -> None:
        self._trial.rollback(len(self._trial) - 1)
        del self._workloads[number].placed[member], self._seats[number, member]

    def _seat(self, number: int, member: int, node: int) -> None:
        moving = self._workloads[number]
        grant = self._fitter.find_grant(moving.requests[member], node)
        if grant is None:
            raise errors.InvariantBroken(f"node {node} fits a pod and grants it nothing")
        self._trial.commit(grant)
        moving.placed[member] = node
        self._seats[number, member] = grant

    def _list_nodes(self, moving: MovingMembers, member: int) -> list[int]:
        allowed = self._fitter.check_nodes(moving.requests[member]) == FitStatus.FITS
        if moving.allowed is not None:
            allowed &= moving.allowed
        allowed &= moving.constraints.allowed_nodes(member, moving.placed)
        if moving.is_interchangeable():
            seated = [moving.placed[i] for i in moving.members if i in moving.placed]
            allowed[: max(seated, default=0)] = False
        found = np.flatnonzero(allowed)
        home = moving.homes.get(member)
        near = (
            np.zeros(len(found), np.int64)
            if home is None
            else moving.constraints.node_domains.level_distances(home)[found]
        )
        free = np.bitwise_count(self._fitter.snapshot.free[found])
        spot = self._fitter.mask_avoided(moving.requests[member], found)
        ordered: list[int] = found[np.lexsort((found, free, spot, near))].tolist()
        return ordered

"""Places for several pieces of work at once: what wants to start, and what had to make way for it.

Members are seated one after the other, the wanted work first and then the largest, each on the nearest node that
takes it and keeps its bonds, its own old node before all others; among equally near ones the fullest. Where one finds
no place, the one before is seated elsewhere, within a number of steps. Equal members that are bound only as a
whole are kept in the order of nodes, since changing seats among them changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.disruption.room_curves import amount
from kgwe.placement.pod.fit import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.disruption.gang_constraints import Bonds
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.pod.fit import Fitter


@dataclass
class Party:
    """Members of one workload that need places, beside those of it that stay."""

    bonds: Bonds
    requests: Sequence[Request]
    """Of all its members."""
    members: Sequence[int]
    """Those that need a place."""
    homes: dict[int, int] = field(default_factory=dict)
    """Member -> node it comes from."""
    placed: dict[int, int] = field(default_factory=dict)
    """Member -> node of those that stay, and of those seated so far."""
    only: NDArray[np.bool_] | None = None
    """Nodes that are considered at all."""

    def is_even(self) -> bool:
        """Whether it makes no difference which of its members sits where."""
        return not self.homes and self.bonds.is_simple and len({self.requests[i] for i in self.members}) == 1


Seats = dict[tuple[int, int], "Grant"]
"""(party, member) -> its place"""


class Arrangement:
    """One attempt; the snapshot is the same afterwards. Members whose home is crowded come after those who may stay."""

    def __init__(
        self, fitter: Fitter, parties: Sequence[Party], steps: int, crowded: frozenset[int] = frozenset()
    ) -> None:
        self._fitter = fitter
        self._parties = parties
        self.steps_left = steps
        """Seats that may still be tried; 0 after `find`: not all ways were gone."""
        self._crowded = crowded
        self._trial = fitter.snapshot.trial()
        """One booking for each member seated so far."""
        self._seats: Seats = {}

    def find(self) -> Seats | None:
        """Places for all, or None: none were found."""
        order = [(number, member) for number, party in enumerate(self._parties) for member in party.members]
        # The wanted work is the first party; it takes its place before anybody who makes way for it.
        order.sort(key=lambda each: self._turn(*each))
        with self._trial:
            return dict(self._seats) if self._search(order) else None

    def _turn(self, number: int, member: int) -> tuple[bool, int, bool, int, int]:
        party = self._parties[number]
        must_go = party.homes.get(member) in self._crowded
        return number > 0, -amount(party.requests[member]), must_go, number, member

    def _search(self, order: Sequence[tuple[int, int]]) -> bool:
        """Seat them in this order, going back where one finds no place; a stack, for there may be hundreds."""
        choices: list[Iterator[int]] = []
        while len(self._trial) < len(order):
            number, member = order[len(self._trial)]
            if len(choices) == len(self._trial):
                choices.append(iter(self._nodes(self._parties[number], member)))
            node = next(choices[-1], None)
            if node is None:
                choices.pop()
                if not len(self._trial):
                    return False
                self._leave(*order[len(self._trial) - 1])
            elif self.steps_left <= 0:
                return False
            else:
                self.steps_left -= 1
                self._take(number, member, node)
        return True

    def _leave(self, number: int, member: int) -> None:
        self._trial.rollback(len(self._trial) - 1)
        del self._parties[number].placed[member], self._seats[number, member]

    def _take(self, number: int, member: int, node: int) -> None:
        party = self._parties[number]
        grant = self._fitter.grant(party.requests[member], node)
        if grant is None:
            raise errors.InvariantBroken(f"node {node} fits a pod and grants it nothing")
        self._trial.commit(grant)
        party.placed[member] = node
        self._seats[number, member] = grant

    def _nodes(self, party: Party, member: int) -> list[int]:
        allowed = self._fitter.verdicts(party.requests[member]) == Verdict.FITS
        if party.only is not None:
            allowed &= party.only
        allowed &= party.bonds.allowed(member, party.placed)
        if party.is_even():
            seated = [party.placed[i] for i in party.members if i in party.placed]
            allowed[: max(seated, default=0)] = False
        found = np.flatnonzero(allowed)
        home = party.homes.get(member)
        near = np.zeros(len(found), np.int64) if home is None else party.bonds.rungs.steps_from(home)[found]
        free = np.bitwise_count(self._fitter.snapshot.free[found])
        spot = self._fitter.avoided(party.requests[member], found)
        ordered: list[int] = found[np.lexsort((found, free, spot, near))].tolist()
        return ordered

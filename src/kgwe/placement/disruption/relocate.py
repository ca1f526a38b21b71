"""New nodes for some members of a gang, as near as possible to their old ones, while the others stay.

Members are relocated level by level: first all that fit in their own leaf, then all that fit in their spine, and so on.
So no member that has to go far takes the node of one that could stay near. Larger members go first. Among nodes equally
near the most reliable is taken, then the one with which the gang spans the fewest leaves, then the fullest.

For equal members with constraints on the whole gang only, this finds a solution whenever there is one. Otherwise, when
it does not, nodes are searched in the same order, within a number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.disruption.room_curves import requested_amount
from kgwe.placement.gang import reliability
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.disruption.gang_constraints import GangConstraints
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Trial
    from kgwe.placement.pod.fit import Fitter

# Nodes tried for members of different sizes or with constraints among them: about 0.2 s.
_STEPS: Final = 2000


@dataclass(frozen=True, slots=True)
class Relocated:
    """A member's new grant, and the level of the move."""

    grant: Grant
    level: int


class Relocation:
    """Relocates members of one gang; books within the caller's trial."""

    def __init__(
        self,
        fitter: Fitter,
        constraints: GangConstraints,
        requests: Sequence[Request],
        homes: Sequence[int | None],
        usable: NDArray[np.bool_],
        *,
        trial: Trial,
    ) -> None:
        self._fitter = fitter
        self._constraints = constraints
        self._requests = requests
        self._usable = usable
        self._distances = {
            member: constraints.node_domains.level_distances(home)
            for member, home in enumerate(homes)
            if home is not None
        }
        self._trial = trial
        self._tries = 0

    def relocate_all(self, members: Sequence[int], staying: Mapping[int, int]) -> dict[int, Relocated] | None:
        """Relocate all these members, `staying`: member -> node of the others; None: impossible, nothing is booked."""
        mark = len(self._trial)
        found = self._relocate_by_level(members, staying, together=True)
        if len(found) == len(members):
            return found
        self._trial.rollback(mark)
        if self._constraints.covers_whole_gang_only and len({self._requests[member] for member in members}) == 1:
            return None
        self._tries = _STEPS
        searched: dict[int, Relocated] = {}
        return searched if self._search(self._sort_largest_first(members), dict(staying), searched) else None

    def relocate_some(self, members: Sequence[int], staying: Mapping[int, int]) -> dict[int, Relocated]:
        """Relocate as many of the members as fit."""
        return self._relocate_by_level(members, staying, together=False)

    def _relocate_by_level(
        self, members: Sequence[int], staying: Mapping[int, int], *, together: bool
    ) -> dict[int, Relocated]:
        """`together`: use no domain without room for all members that must share it."""
        placed, found = dict(staying), {}
        waiting = self._sort_largest_first(members)
        for level in range(len(self._constraints.node_domains.names)):
            for member in list(waiting):
                nodes = self._list_nodes(member, placed, level, waiting if together else ())
                if nodes:
                    waiting.remove(member)
                    found[member] = self._seat(member, nodes[0], placed)
        return found

    def _sort_largest_first(self, members: Sequence[int]) -> list[int]:
        return sorted(members, key=lambda member: (-requested_amount(self._requests[member]), member))

    def _seat(self, member: int, node: int, placed: dict[int, int]) -> Relocated:
        grant = self._fitter.find_grant(self._requests[member], node)
        if grant is None:
            raise errors.InvariantBroken(f"node {node} fits member {member} and grants it nothing")
        self._trial.commit(grant)
        placed[member] = node
        return Relocated(grant, self._level_of(member, node))

    def _level_of(self, member: int, node: int) -> int:
        steps = self._distances.get(member)
        return len(self._constraints.node_domains.names) - 1 if steps is None else int(steps[node])

    def _list_nodes(self, member: int, placed: Mapping[int, int], level: int, waiting: Sequence[int]) -> list[int]:
        """Nodes up to the level where the member fits: the nearest first, then non-spot where it avoids spot, then the
        most reliable, then the fullest."""
        request = self._requests[member]
        steps = self._distances.get(member)
        nodes = self._usable & self._constraints.allowed_nodes(member, placed)
        if steps is not None:
            nodes &= steps <= level
        nodes &= self._fitter.check_nodes(request) == FitStatus.FITS
        if not nodes.any():
            return []
        alike, room = self._members_like(request, waiting), self._usable_room(request)
        nodes &= self._constraints.nodes_with_room(member, placed, alike, room)
        found = np.flatnonzero(nodes)
        free = np.bitwise_count(self._fitter.snapshot.free[found])
        near = np.zeros(len(found), np.int64) if steps is None else steps[found]
        doubt = reliability.count_missed_cutoffs(self._fitter.snapshot, found)
        spot = self._fitter.mask_avoided(request, found)
        leaf = self._constraints.rank_leaves(placed, max(len(alike), 1), room)[found]
        ordered: list[int] = found[np.lexsort((found, free, leaf, doubt, spot, near))].tolist()
        return ordered

    def _members_like(self, request: Request, waiting: Sequence[int]) -> frozenset[int]:
        return frozenset(member for member in waiting if self._requests[member] == request)

    def _usable_room(self, request: Request) -> NDArray[np.int64]:
        return np.where(self._usable, self._fitter.count_pods(request), 0).astype(np.int64)

    def _search(self, waiting: list[int], placed: dict[int, int], found: dict[int, Relocated]) -> bool:
        if not waiting:
            return True
        member, rest, mark = waiting[0], waiting[1:], len(self._trial)
        for node in self._list_nodes(member, placed, len(self._constraints.node_domains.names), waiting):
            if self._tries <= 0:
                return False
            self._tries -= 1
            found[member] = self._seat(member, node, placed)
            if self._search(rest, placed, found):
                return True
            self._trial.rollback(mark)
            del placed[member], found[member]
        return False

"""New places for some members of a gang, as near as possible to where they were, the others staying.

Members are seated rung by rung: first all that find room in their own leaf, then all that find it in their spine,
and so on, so that no member that has to go far takes the place of one that could have stayed near. Larger members go
first. Among places equally near the most reliable is taken, then the one with which the gang spans the fewest leaves,
then the fullest node, which keeps empty ones empty.

With equal members bound only as a whole that finds a way whenever there is one. Otherwise, when it does not, the
places are searched through in the same order, within a number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.disruption.room_curves import amount
from kgwe.placement.gang import reliability
from kgwe.placement.pod.fit import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.disruption.gang_constraints import Bonds
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Trial
    from kgwe.placement.pod.fit import Fitter

# Places tried for members of different sizes or with bonds among themselves: about 0.2 s.
_STEPS: Final = 2000


@dataclass(frozen=True, slots=True)
class Seated:
    """A member's new place, and the rung up to which it had to look for it."""

    grant: Grant
    rung: int


class Reseating:
    """Seats members of one gang; books what it gives within the trial of the caller."""

    def __init__(
        self,
        fitter: Fitter,
        bonds: Bonds,
        requests: Sequence[Request],
        homes: Sequence[int | None],
        usable: NDArray[np.bool_],
        *,
        trial: Trial,
    ) -> None:
        self._fitter = fitter
        self._bonds = bonds
        self._requests = requests
        self._usable = usable
        self._steps = {member: bonds.rungs.steps_from(home) for member, home in enumerate(homes) if home is not None}
        self._trial = trial
        self._tries = 0

    def seat(self, members: Sequence[int], staying: Mapping[int, int]) -> dict[int, Seated] | None:
        """Places for all the members, the others staying (member -> node); None, and nothing booked: there are none."""
        mark = len(self._trial)
        found = self._by_rungs(members, staying, together=True)
        if len(found) == len(members):
            return found
        self._trial.rollback(mark)
        if self._bonds.is_simple and len({self._requests[member] for member in members}) == 1:
            return None
        self._tries = _STEPS
        searched: dict[int, Seated] = {}
        return searched if self._search(self._largest_first(members), dict(staying), searched) else None

    def seat_some(self, members: Sequence[int], staying: Mapping[int, int]) -> dict[int, Seated]:
        """Places for as many of the members as find one."""
        return self._by_rungs(members, staying, together=False)

    def _by_rungs(self, members: Sequence[int], staying: Mapping[int, int], *, together: bool) -> dict[int, Seated]:
        """`together`: no domain is begun that has no room for all that must be in it."""
        placed, found = dict(staying), {}
        waiting = self._largest_first(members)
        for rung in range(len(self._bonds.rungs.names)):
            for member in list(waiting):
                nodes = self._places(member, placed, rung, waiting if together else ())
                if nodes:
                    waiting.remove(member)
                    found[member] = self._take(member, nodes[0], placed)
        return found

    def _largest_first(self, members: Sequence[int]) -> list[int]:
        return sorted(members, key=lambda member: (-amount(self._requests[member]), member))

    def _take(self, member: int, node: int, placed: dict[int, int]) -> Seated:
        grant = self._fitter.grant(self._requests[member], node)
        if grant is None:
            raise errors.InvariantBroken(f"node {node} fits member {member} and grants it nothing")
        self._trial.commit(grant)
        placed[member] = node
        return Seated(grant, self._rung(member, node))

    def _rung(self, member: int, node: int) -> int:
        steps = self._steps.get(member)
        return len(self._bonds.rungs.names) - 1 if steps is None else int(steps[node])

    def _places(self, member: int, placed: Mapping[int, int], rung: int, waiting: Sequence[int]) -> list[int]:
        """Nodes up to the rung that take the member: the nearest first, then those that are not spot where it avoids
        spot, then the most reliable, then the fullest."""
        request = self._requests[member]
        steps = self._steps.get(member)
        nodes = self._usable & self._bonds.allowed(member, placed)
        if steps is not None:
            nodes &= steps <= rung
        nodes &= self._fitter.verdicts(request) == Verdict.FITS
        if not nodes.any():
            return []
        alike, room = self._alike(request, waiting), self._usable_room(request)
        nodes &= self._bonds.roomy(member, placed, alike, room)
        found = np.flatnonzero(nodes)
        free = np.bitwise_count(self._fitter.snapshot.free[found])
        near = np.zeros(len(found), np.int64) if steps is None else steps[found]
        doubt = reliability.count_missed_cutoffs(self._fitter.snapshot, found)
        spot = self._fitter.avoided(request, found)
        leaf = self._bonds.rank_leaves(placed, max(len(alike), 1), room)[found]
        ordered: list[int] = found[np.lexsort((found, free, leaf, doubt, spot, near))].tolist()
        return ordered

    def _alike(self, request: Request, waiting: Sequence[int]) -> frozenset[int]:
        return frozenset(member for member in waiting if self._requests[member] == request)

    def _usable_room(self, request: Request) -> NDArray[np.int64]:
        return np.where(self._usable, self._fitter.room(request), 0).astype(np.int64)

    def _search(self, waiting: list[int], placed: dict[int, int], found: dict[int, Seated]) -> bool:
        if not waiting:
            return True
        member, rest, mark = waiting[0], waiting[1:], len(self._trial)
        for node in self._places(member, placed, len(self._bonds.rungs.names), waiting):
            if self._tries <= 0:
                return False
            self._tries -= 1
            found[member] = self._take(member, node, placed)
            if self._search(rest, placed, found):
                return True
            self._trial.rollback(mark)
            del placed[member], found[member]
        return False

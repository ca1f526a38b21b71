"""When and where work that does not fit now will: by what is known to end.

Running work is ended, in a shadow of the fleet, in the order it is expected to end, until the waiting work fits; the
place it then gets, by the same planner that places work, is where it can start first. Room only grows on the way, so
the moment is found by doubling and halving rather than one end after the other.

Work whose end is not known is taken to stay. Where that makes waiting endless, the place is the domain that lacks
least, and the start is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import CARD_MILLI
from kgwe.placement.gang.plan import GangPlan, Missing
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.live.scratch import NOWHERE, Shadow
from kgwe.placement.pod import shortage
from kgwe.placement.pod.fit import Verdict
from kgwe.placement.queue.work import milli_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.queue.work import Occupant, Roster


_SURELY: Final = 0.95


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where work will start, and when."""

    nodes: frozenset[str]
    start_s: float | None
    """None: not by anything that is known to end."""
    level: str
    domain: str
    free: int = 0
    """Cards free there, where the start is not known."""


class Outlook:
    """Looks ahead over one fleet and its roster."""

    def __init__(self, source: Source, roster: Roster) -> None:
        self._source = source
        self._roster = roster
        self._shadow = Shadow(source)

    def look(
        self,
        request: Request | GangRequest,
        now_s: float,
        veil: frozenset[str] = NOWHERE,
        part: float = 0.5,
        share: float = 1.0,
    ) -> Prospect | None:
        """Where it can start first without the nodes of `veil`; None: nowhere, not even on an empty fleet.

        `share`: where the start is not known, the nodes have at most this share of the GPUs it could use.
        """
        found = _place(self._shadow, request, self.when(request, now_s, veil, part), veil)
        if found is None or found.start_s is not None:
            return found
        return self._limit(found, request, share) if share > 0 else None

    def share_of(self, nodes: frozenset[str], request: Request | GangRequest) -> float:
        """How much of the GPUs that the work could use, if nothing ran, are on these nodes."""
        usable = self._usable(request)
        index = self._shadow.snapshot.index
        return sum(int(usable[index[name]]) for name in nodes if name in index) / max(1, int(usable.sum()))

    def _limit(self, prospect: Prospect, request: Request | GangRequest, share: float) -> Prospect:
        """The emptiest of its nodes, one at least: a fleet of one node has no half."""
        snapshot, usable = self._shadow.snapshot, self._usable(request)
        free = np.bitwise_count(snapshot.free)
        left = share * int(usable.sum())
        kept: list[str] = []
        for name in sorted(prospect.nodes, key=lambda name: (-int(free[snapshot.index[name]]), name)):
            left -= int(usable[snapshot.index[name]])
            if kept and left < 0:
                break
            kept.append(name)
        idle = sum(int(free[snapshot.index[name]]) for name in kept)
        return replace(prospect, nodes=frozenset(kept), free=idle)

    def _usable(self, request: Request | GangRequest) -> NDArray[np.int64]:
        """GPUs of each node that would take a pod of the work if nothing ran."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        takes = np.any([self._shadow.fitter.when_empty(pod) == Verdict.FITS for pod in pods], axis=0)
        cards = np.array([node.shape.cards for node in self._shadow.snapshot.nodes], np.int64)
        return np.where(takes, cards, 0)

    def when(
        self, request: Request | GangRequest, now_s: float, veil: frozenset[str] = NOWHERE, part: float = 0.5
    ) -> float | None:
        """Just when that is; None: not by anything that is known to end. Leaves the shadow at that moment."""
        shadow = self._shadow
        shadow.sync(veil)
        ends = self._roster.by_end(now_s, part)
        clock = _Clock(shadow, ends, self._roster)
        count = clock.first(lambda: shadow.fits(request), self._surely_short(shadow, request, ends))
        return None if count is None else max(now_s, ends[count - 1][0] if count else now_s)

    def all_but(self, nodes: frozenset[str]) -> frozenset[str]:
        return frozenset(self._source.snapshot.index).difference(nodes)

    def leaves_room(
        self,
        request: Request | GangRequest,
        grants: Sequence[Grant],
        now_s: float,
        until_s: float,
        veil: frozenset[str],
    ) -> bool:
        """Whether it fits then, with all gone that ends until then 19 times out of 20, and with these grants taken."""
        shadow = self._shadow
        shadow.sync(veil)
        ends = self._roster.by_end(now_s, _SURELY)
        _Clock(shadow, ends, self._roster).move_to(sum(end_s <= until_s for end_s, _ in ends))
        for grant in grants:
            shadow.snapshot.book(grant)
        return shadow.fits(request)

    @staticmethod
    def _surely_short(shadow: Shadow, request: Request | GangRequest, ends: Sequence[tuple[float, Occupant]]) -> int:
        """So many must end before there are cards enough, wherever they are."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        if not all(pod.gpus.count for pod in pods):
            return 0
        missing = milli_of(request) - int(np.bitwise_count(shadow.snapshot.free).sum()) * CARD_MILLI
        for number, (_, occupant) in enumerate(ends):
            if missing <= 0:
                return number
            missing -= occupant.milli
        return len(ends)


class _Clock:
    """A shadow in which the first so many of the running have ended."""

    def __init__(self, shadow: Shadow, ends: Sequence[tuple[float, Occupant]], roster: Roster) -> None:
        self._shadow = shadow
        self._ends = ends
        self._roster = roster
        self._trial = shadow.snapshot.trial()
        self._marks: list[int] = []
        """For each that has ended, the length of the trial before that."""

    def move_to(self, count: int) -> None:
        while len(self._marks) > count:
            self._trial.rollback(self._marks.pop())
        while len(self._marks) < count:
            occupant = self._ends[len(self._marks)][1]
            self._marks.append(len(self._trial))
            self._shadow.end(self._roster.grants_of(occupant.key), self._trial)

    def first(self, fits: Callable[[], bool], least: int) -> int | None:
        """How many must end until it fits; None: that is never. Leaves the shadow at that moment."""
        low, high, step = least, least, 1
        self.move_to(high)
        while not fits():
            if high == len(self._ends):
                return None
            low, high, step = high + 1, min(high + step, len(self._ends)), step * 2
            self.move_to(high)
        while low < high:
            middle = (low + high) // 2
            self.move_to(middle)
            if fits():
                high = middle
            else:
                low = middle + 1
        self.move_to(high)
        return high


def _place(
    shadow: Shadow, request: Request | GangRequest, start_s: float | None, veil: frozenset[str]
) -> Prospect | None:
    if not isinstance(request, GangRequest):
        return _node_of(shadow, request, start_s)
    found = shadow.search.find(request)
    if isinstance(found, GangPlan):
        return Prospect(frozenset(found.nodes), start_s, found.level, found.domain)
    return _least_lacking(shadow, request, found, veil)


def _node_of(shadow: Shadow, request: Request, start_s: float | None) -> Prospect | None:
    codes = shadow.fitter.verdicts(request)
    if start_s is not None:
        name = shadow.snapshot.nodes[int(np.argmax(codes == Verdict.FITS))].name
    else:
        nearest = shortage.nearest(shadow.fitter, request, codes)
        if nearest is None or shadow.fitter.when_empty(request)[nearest.node] != Verdict.FITS:
            return None
        name = nearest.name
    return Prospect(frozenset((name,)), start_s, "node", name)


def _least_lacking(shadow: Shadow, gang: GangRequest, missing: Missing, veil: frozenset[str]) -> Prospect | None:
    """Of the domain with most room, the nodes that would hold the gang once they are empty, the emptiest first."""
    ladder = shadow.search.level_tables.for_levels(gang.named_levels)
    rung = ladder.levels[ladder.find_level(missing.level)]
    if missing.domain not in rung.names:
        return None
    places = rung.place_range(rung.names.index(missing.domain))
    nodes, cards = ladder.node[places], ladder.cards[places]
    role = next(role for role in gang.roles if role.name == missing.role)
    room = shadow.fitter.room(role.request)[nodes]
    each = cards // max(role.request.gpus.count, 1)
    each[shadow.fitter.when_empty(role.request)[nodes] != Verdict.FITS] = 0
    chosen: list[str] = []
    needed, idle = missing.needed, 0
    free = np.bitwise_count(shadow.snapshot.free[nodes])
    for place in np.lexsort((-free.astype(np.int64), -room)).tolist():
        name = shadow.snapshot.nodes[int(nodes[place])].name
        if needed > 0 and each[place] and name not in veil:
            chosen.append(name)
            needed -= int(each[place])
            idle += int(free[place])
    return Prospect(frozenset(chosen), None, missing.level, missing.domain, idle) if needed <= 0 else None

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
from kgwe.placement.gang.plan import GangPlan, Shortfall
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.live.scratch import NO_NODES, ScratchFleet
from kgwe.placement.pod import shortage
from kgwe.placement.pod.fit import FitStatus
from kgwe.placement.queue.workloads import requested_milli

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.queue.workloads import RunningWorkload, RunningWorkloads


_SURELY: Final = 0.95


@dataclass(frozen=True, slots=True)
class EarliestStart:
    """Where work will start, and when."""

    nodes: frozenset[str]
    start_s: float | None
    """None: not by anything that is known to end."""
    level: str
    domain: str
    free: int = 0
    """Cards free there, where the start is not known."""


class StartForecast:
    """Looks ahead over one fleet and its roster."""

    def __init__(self, source: Source, running: RunningWorkloads) -> None:
        self._source = source
        self._roster = running
        self._shadow = ScratchFleet(source)

    def find_start(
        self,
        request: Request | GangRequest,
        now_s: float,
        masked: frozenset[str] = NO_NODES,
        part: float = 0.5,
        share: float = 1.0,
    ) -> EarliestStart | None:
        """Where it can start first without the masked nodes; None: nowhere, not even on an empty fleet.

        `share`: where the start is not known, the nodes have at most this share of the GPUs it could use.
        """
        found = _find_place(self._shadow, request, self.find_start_time(request, now_s, masked, part), masked)
        if found is None or found.start_s is not None:
            return found
        return self._limit_to_share(found, request, share) if share > 0 else None

    def gpu_share(self, nodes: frozenset[str], request: Request | GangRequest) -> float:
        """How much of the GPUs that the work could use, if nothing ran, are on these nodes."""
        usable = self._usable_gpus(request)
        index = self._shadow.snapshot.index
        return sum(int(usable[index[name]]) for name in nodes if name in index) / max(1, int(usable.sum()))

    def _limit_to_share(self, start: EarliestStart, request: Request | GangRequest, share: float) -> EarliestStart:
        """The emptiest of its nodes, one at least: a fleet of one node has no half."""
        snapshot, usable = self._shadow.snapshot, self._usable_gpus(request)
        free = np.bitwise_count(snapshot.free)
        left = share * int(usable.sum())
        entry: list[str] = []
        for name in sorted(start.nodes, key=lambda name: (-int(free[snapshot.index[name]]), name)):
            left -= int(usable[snapshot.index[name]])
            if entry and left < 0:
                break
            entry.append(name)
        idle = sum(int(free[snapshot.index[name]]) for name in entry)
        return replace(start, nodes=frozenset(entry), free=idle)

    def _usable_gpus(self, request: Request | GangRequest) -> NDArray[np.int64]:
        """GPUs of each node that would take a pod of the work if nothing ran."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        takes = np.any([self._shadow.fitter.check_empty_nodes(pod) == FitStatus.FITS for pod in pods], axis=0)
        cards = np.array([node.shape.cards for node in self._shadow.snapshot.nodes], np.int64)
        return np.where(takes, cards, 0)

    def find_start_time(
        self, request: Request | GangRequest, now_s: float, masked: frozenset[str] = NO_NODES, part: float = 0.5
    ) -> float | None:
        """Just when that is; None: not by anything that is known to end. Leaves the shadow at that moment."""
        scratch = self._shadow
        scratch.sync(masked)
        ends = self._roster.sort_by_end(now_s, part)
        clock = _Timeline(scratch, ends, self._roster)
        count = clock.find_first_fit(lambda: scratch.fits(request), self._min_ends_needed(scratch, request, ends))
        return None if count is None else max(now_s, ends[count - 1][0] if count else now_s)

    def all_nodes_except(self, nodes: frozenset[str]) -> frozenset[str]:
        return frozenset(self._source.snapshot.index).difference(nodes)

    def fits_beside(
        self,
        request: Request | GangRequest,
        grants: Sequence[Grant],
        now_s: float,
        until_s: float,
        masked: frozenset[str],
    ) -> bool:
        """Whether it fits then, with all gone that ends until then 19 times out of 20, and with these grants taken."""
        scratch = self._shadow
        scratch.sync(masked)
        ends = self._roster.sort_by_end(now_s, _SURELY)
        _Timeline(scratch, ends, self._roster).move_to(sum(end_s <= until_s for end_s, _ in ends))
        for grant in grants:
            scratch.snapshot.book(grant)
        return scratch.fits(request)

    @staticmethod
    def _min_ends_needed(
        scratch: ScratchFleet, request: Request | GangRequest, ends: Sequence[tuple[float, RunningWorkload]]
    ) -> int:
        """So many must end before there are cards enough, wherever they are."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        if not all(pod.gpus.count for pod in pods):
            return 0
        missing = requested_milli(request) - int(np.bitwise_count(scratch.snapshot.free).sum()) * CARD_MILLI
        for number, (_, workload) in enumerate(ends):
            if missing <= 0:
                return number
            missing -= workload.milli
        return len(ends)


class _Timeline:
    """A shadow in which the first so many of the running have ended."""

    def __init__(
        self, scratch: ScratchFleet, ends: Sequence[tuple[float, RunningWorkload]], running: RunningWorkloads
    ) -> None:
        self._shadow = scratch
        self._ends = ends
        self._roster = running
        self._trial = scratch.snapshot.trial()
        self._marks: list[int] = []
        """For each that has ended, the length of the trial before that."""

    def move_to(self, count: int) -> None:
        while len(self._marks) > count:
            self._trial.rollback(self._marks.pop())
        while len(self._marks) < count:
            workload = self._ends[len(self._marks)][1]
            self._marks.append(len(self._trial))
            self._shadow.release(self._roster.grants_of(workload.key), self._trial)

    def find_first_fit(self, fits: Callable[[], bool], least: int) -> int | None:
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


def _find_place(
    scratch: ScratchFleet, request: Request | GangRequest, start_s: float | None, masked: frozenset[str]
) -> EarliestStart | None:
    if not isinstance(request, GangRequest):
        return _find_node(scratch, request, start_s)
    found = scratch.search.find(request)
    if isinstance(found, GangPlan):
        return EarliestStart(frozenset(found.nodes), start_s, found.level, found.domain)
    return _find_emptiest_domain(scratch, request, found, masked)


def _find_node(scratch: ScratchFleet, request: Request, start_s: float | None) -> EarliestStart | None:
    codes = scratch.fitter.check_nodes(request)
    if start_s is not None:
        name = scratch.snapshot.nodes[int(np.argmax(codes == FitStatus.FITS))].name
    else:
        nearest = shortage.find_nearest(scratch.fitter, request, codes)
        if nearest is None or scratch.fitter.check_empty_nodes(request)[nearest.node] != FitStatus.FITS:
            return None
        name = nearest.name
    return EarliestStart(frozenset((name,)), start_s, "node", name)


def _find_emptiest_domain(
    scratch: ScratchFleet, gang: GangRequest, missing: Shortfall, masked: frozenset[str]
) -> EarliestStart | None:
    """Of the domain with most room, the nodes that would hold the gang once they are empty, the emptiest first."""
    ladder = scratch.search.level_tables.for_levels(gang.named_levels)
    rung = ladder.levels[ladder.find_level(missing.level)]
    if missing.domain not in rung.names:
        return None
    places = rung.place_range(rung.names.index(missing.domain))
    nodes, cards = ladder.node[places], ladder.cards[places]
    role = next(role for role in gang.roles if role.name == missing.role)
    room = scratch.fitter.count_pods(role.request)[nodes]
    each = cards // max(role.request.gpus.count, 1)
    each[scratch.fitter.check_empty_nodes(role.request)[nodes] != FitStatus.FITS] = 0
    chosen: list[str] = []
    needed, idle = missing.needed, 0
    free = np.bitwise_count(scratch.snapshot.free[nodes])
    for place in np.lexsort((-free.astype(np.int64), -room)).tolist():
        name = scratch.snapshot.nodes[int(nodes[place])].name
        if needed > 0 and each[place] and name not in masked:
            chosen.append(name)
            needed -= int(each[place])
            idle += int(free[place])
    return EarliestStart(frozenset(chosen), None, missing.level, missing.domain, idle) if needed <= 0 else None

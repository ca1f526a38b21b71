"""When and where a workload that does not fit now can start first.

Running workloads are ended on a scratch copy of the fleet, in the order of their expected ends, until the waiting one
fits. The planner then says where it starts. Room only grows on the way, so the moment is found by doubling and halving
instead of one end after the other.

Workloads with an unknown end are expected to stay. If that makes waiting endless, the place is the domain that lacks
least, and the start is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang.plan import GangPlan, Shortfall
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.live.scratch import NO_NODES, ScratchFleet
from kgwe.placement.pod import shortage
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.queue import own_delays
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
    """Where a workload can start first, and when."""

    nodes: frozenset[str]
    start_s: float | None
    """None: unknown."""
    level: str
    domain: str
    free: int = 0
    """GPUs free there, if the start is unknown."""
    others: frozenset[str] = NO_NODES
    """More nodes that it needs, beyond the share that may be reserved."""


class StartForecast:
    """Forecasts over one fleet and its running workloads."""

    def __init__(self, source: Source, running: RunningWorkloads) -> None:
        self._source = source
        self._running = running
        self._scratch = ScratchFleet(source)

    def find_start(
        self,
        request: Request | GangRequest,
        now_s: float,
        masked: frozenset[str] = NO_NODES,
        part: float = 0.5,
        share: float = 1.0,
    ) -> EarliestStart | None:
        """Find the earliest start off the masked nodes; None: it fits nowhere, even if nothing runs.

        `share`: if the start is unknown, the nodes have at most this share of the GPUs it could use.
        """
        found = _find_place(self._scratch, request, self.find_start_time(request, now_s, masked, part), masked)
        if found is None or found.start_s is not None:
            return found
        return self._limit_to_share(found, request, share) if share > 0 else None

    def is_delayed_by_own(self, namespace: str, nodes: frozenset[str], now_s: float) -> bool:
        """Whether most GPUs in use on the nodes are held by the namespace itself, without a known end."""
        return own_delays.is_delayed_by_own(namespace, nodes, self._running, self._source.snapshot, now_s)

    def gpu_share(self, nodes: frozenset[str], request: Request | GangRequest) -> float:
        """The share of the GPUs usable by the workload that is on these nodes."""
        usable = self._usable_gpus(request)
        index = self._scratch.snapshot.index
        return sum(int(usable[index[name]]) for name in nodes if name in index) / max(1, int(usable.sum()))

    def _limit_to_share(self, start: EarliestStart, request: Request | GangRequest, share: float) -> EarliestStart:
        """Keep the emptiest of its nodes up to the share, at least one."""
        snapshot, usable = self._scratch.snapshot, self._usable_gpus(request)
        free = np.bitwise_count(snapshot.free)
        left = share * int(usable.sum())
        chosen: list[str] = []
        for name in sorted(start.nodes, key=lambda name: (-int(free[snapshot.index[name]]), name)):
            left -= int(usable[snapshot.index[name]])
            if chosen and left < 0:
                break
            chosen.append(name)
        idle = sum(int(free[snapshot.index[name]]) for name in chosen)
        kept = frozenset(chosen)
        return replace(start, nodes=kept, free=idle, others=start.nodes - kept)

    def _usable_gpus(self, request: Request | GangRequest) -> NDArray[np.int64]:
        """GPUs of each node on which a pod of the request fits if nothing runs."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        takes = np.any([self._scratch.fitter.check_empty_nodes(pod) == FitStatus.FITS for pod in pods], axis=0)
        gpus = np.array([node.shape.gpu_count for node in self._scratch.snapshot.nodes], np.int64)
        return np.where(takes, gpus, 0)

    def find_start_time(
        self, request: Request | GangRequest, now_s: float, masked: frozenset[str] = NO_NODES, part: float = 0.5
    ) -> float | None:
        """Find the earliest start time; None: unknown. Leaves the scratch fleet at that moment."""
        scratch = self._scratch
        scratch.sync(masked)
        ends = self._running.sort_by_end(now_s, part)
        clock = _Timeline(scratch, ends, self._running)
        count = clock.find_first_fit(lambda: scratch.fits(request), self._min_ends_needed(scratch, request, ends))
        return None if count is None else max(now_s, ends[count - 1][0] if count else now_s)

    def fits_now(self, request: Request | GangRequest, masked: frozenset[str]) -> bool:
        """Whether the request fits off the masked nodes without any end."""
        self._scratch.sync(masked)
        return self._scratch.fits(request)

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
        """Whether the request fits at `until_s` beside these grants, counting only ends that are 95 % certain."""
        scratch = self._scratch
        scratch.sync(masked)
        ends = self._running.sort_by_end(now_s, _SURELY)
        _Timeline(scratch, ends, self._running).move_to(sum(end_s <= until_s for end_s, _ in ends))
        for grant in grants:
            scratch.snapshot.book(grant)
        return scratch.fits(request)

    @staticmethod
    def _min_ends_needed(
        scratch: ScratchFleet, request: Request | GangRequest, ends: Sequence[tuple[float, RunningWorkload]]
    ) -> int:
        """Lower bound of the workloads that must end before there are enough GPUs anywhere."""
        pods = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
        if not all(pod.gpus.count for pod in pods):
            return 0
        missing = requested_milli(request) - scratch.count_free_gpus() * GPU_MILLI
        for number, (_, workload) in enumerate(ends):
            if missing <= 0:
                return number
            missing -= workload.milli
        return len(ends)


class _Timeline:
    """A scratch fleet in which the first `count` running workloads have ended."""

    def __init__(
        self, scratch: ScratchFleet, ends: Sequence[tuple[float, RunningWorkload]], running: RunningWorkloads
    ) -> None:
        self._scratch = scratch
        self._ends = ends
        self._running = running
        self._trial = scratch.snapshot.trial()
        self._marks: list[int] = []
        """For each that has ended, the length of the trial before that."""

    def move_to(self, count: int) -> None:
        while len(self._marks) > count:
            self._trial.rollback(self._marks.pop())
        while len(self._marks) < count:
            workload = self._ends[len(self._marks)][1]
            self._marks.append(len(self._trial))
            self._scratch.release(self._running.grants_of(workload.key), self._trial)

    def find_first_fit(self, fits: Callable[[], bool], least: int) -> int | None:
        """How many must end until it fits; None: never. Leaves the scratch fleet at that moment."""
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
    """Of the domain with most room, the nodes that fit the gang when empty, the emptiest first."""
    table = scratch.search.level_tables.for_levels(gang.named_levels)
    level = table.levels[table.find_level(missing.level)]
    if missing.domain not in level.names:
        return None
    places = level.place_range(level.names.index(missing.domain))
    nodes, gpus = table.node[places], table.gpu_counts[places]
    role = next(role for role in gang.roles if role.name == missing.role)
    room = scratch.fitter.count_pods(role.request)[nodes]
    each = gpus // max(role.request.gpus.count, 1)
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

"""One pass over the queue: who starts now.

The pass goes by priority, then age, and never looks twice at what cannot have changed: a kind of job that was refused
is not tried again before room has appeared, and a job of one pod then only on the nodes that changed since.

Who does not fit:

- `none`: holds up everybody behind;
- `greedy`: is passed over, which starves large jobs on a busy fleet;
- `easy`: the first one is promised the place it could have first when all that runs ends as known; others may go
  ahead if they are gone by then, or stay off the nodes of that place.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.placement.pod.fit import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.policies.registry import Policy
    from kgwe.sim.traces.workload import Job
    from kgwe.sim.waiting import Waiting


class Backfill(enum.StrEnum):
    NONE = "none"
    GREEDY = "greedy"
    EASY = "easy"


@dataclass(slots=True)
class Run:
    """A job that runs."""

    grants: tuple[Grant, ...]
    release: Callable[[], None]
    started_s: float
    end_s: float
    #: micro-dollars per hour of what it holds
    rate_micro: float
    milli: int


@dataclass(frozen=True, slots=True)
class Promise:
    """The place the first waiting job will have."""

    number: int
    at_s: float
    nodes: frozenset[int]


class Dispatcher:
    def __init__(
        self, world: World, jobs: Sequence[Job], waiting: Waiting, policy: Policy, *, backfill: Backfill, depth: int
    ) -> None:
        self._world = world
        self._jobs = jobs
        self._waiting = waiting
        self._policy = policy
        self._backfill = backfill
        self._depth = depth
        # Kind -> version of the snapshot, and count of departures, when it was last refused.
        self._refused: dict[tuple[object, int], tuple[int, int]] = {}
        self._freed = 0
        # Kind -> where it would go, and the count of starts and departures when that was found out.
        self._places: dict[tuple[object, int], tuple[int, tuple[Grant, ...]]] = {}
        self._changes = 0
        self._promise: Promise | None = None

    def arrived(self, number: int) -> None:
        """To be told when a job begins to wait, or to wait again."""

    def stopped(self, number: int) -> None:
        """To be told when a job no longer runs."""
        del number
        self.room_appeared()

    def room_appeared(self) -> None:
        """To be told when anything was given back."""
        self._freed += 1
        self._changes += 1

    def room_vanished(self) -> None:
        """To be told when something broke: a promised or remembered place may be gone."""
        self._promise = None
        self._changes += 1

    def run(
        self,
        now_s: float,
        start: Callable[[int, tuple[Grant, ...]], None],
        end_of: Callable[[int, tuple[Grant, ...]], float],
        ends: Callable[[], Iterable[tuple[float, Run]]],
    ) -> None:
        """Start who can start; `end_of` says when a job would end there, `ends()` what runs, first to end first."""
        heads = self._waiting.heads()
        promise: Promise | None = None
        aside: list[int] = []
        looked = 0
        while heads and looked <= self._depth:
            (_, number), kind = heapq.heappop(heads)
            job = self._jobs[number]
            looked += promise is not None
            grants = self._try(job)
            if grants is None:
                if self._backfill is Backfill.NONE:
                    break
                if self._backfill is Backfill.EASY and promise is None:
                    promise = self._promise_to(number, now_s, ends())
                continue
            self._waiting.take(number, job)
            if promise is None or _keeps(promise, grants, end_of(number, grants)):
                start(number, grants)
                self._changes += 1
            else:
                aside.append(number)
            following = self._waiting.head_of(kind)
            if following is not None:
                heapq.heappush(heads, (following, kind))
        for number in aside:
            self._waiting.add(number, self._jobs[number])

    def _try(self, job: Job) -> tuple[Grant, ...] | None:
        world, kind = self._world, job.kind
        refused = self._refused.get(kind)
        if refused is not None and not self._may_fit_now(job, *refused):
            return None
        known = self._places.get(kind)
        if known is not None and known[0] == self._changes:
            return known[1]
        grants = self._policy.place(job) if self._has_room(job) else None
        if grants is None:
            self._refused[kind] = (world.snapshot.version, self._freed)
        else:
            self._refused.pop(kind, None)
            self._places[kind] = (self._changes, grants)
        return grants

    def _has_room(self, job: Job) -> bool:
        """Whether there is room for so many pods at all: asked first, for it costs a tenth of a policy's refusal."""
        if job.milli > self._world.idle:
            return False
        return job.pods == 1 or int(self._world.fitter.room(job.request).sum()) >= job.pods

    def _may_fit_now(self, job: Job, version: int, freed: int) -> bool:
        """Whether anything happened since the refusal that could change it."""
        if freed == self._freed or job.milli > self._world.idle:
            return False
        if job.pods > 1:
            return True
        changed = self._world.snapshot.newer_than(version)
        fits = bool((self._world.fitter.verdicts(job.request, changed) == Verdict.FITS).any())
        if not fits:
            self._refused[job.kind] = (self._world.snapshot.version, self._freed)
        return fits

    def _promise_to(self, number: int, now_s: float, ends: Iterable[tuple[float, Run]]) -> Promise | None:
        """When and where the job fits first, if nothing else starts; None: not even when all is gone (nodes are out).

        Found by ending, in the snapshot, what ends first until it fits; then all is put back.
        """
        known = self._promise
        if known is not None and known.number == number and known.at_s > now_s:
            return known
        job = self._jobs[number]
        ended: list[Run] = []
        self._promise = None
        check_at = 1
        try:
            for end_s, run in ends:
                run.release()
                ended.append(run)
                # Asking after every single end would cost more than an hour-glass this exact is worth.
                if len(ended) < check_at or self._world.idle < job.milli:
                    continue
                check_at = len(ended) + 1 + len(ended) // 8
                place = self._policy.place(job) if self._has_room(job) else None
                if place is not None:
                    self._promise = Promise(number, end_s, frozenset(grant.node for grant in place))
                    break
        finally:
            for run in reversed(ended):
                run.release = self._world.book(run.grants)
        return self._promise


def _keeps(promise: Promise, grants: tuple[Grant, ...], end_s: float) -> bool:
    """Whether a job that goes ahead leaves the promised place alone."""
    return end_s <= promise.at_s or not any(grant.node in promise.nodes for grant in grants)

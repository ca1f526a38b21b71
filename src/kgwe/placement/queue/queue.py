"""What waits, and whose turn it is.

    queue = Queue()
    queue.put(work)             it waits; put again, it waits as what it is now
    queue.wake(RoomFreed("n1"))
    queue.retry(work, now_s, luck)   its plan failed: again, after a while
    queue.drop(key)             it is bound, or gone: nothing of it is remembered
    run_pass(queue, …)          kgwe.placement.queue.cycle: places what can be placed

The order: higher priority first; then work that lost its place (`first_claim`), the oldest first; then namespaces in
turn, always the one whose share is smallest: what it holds, and what it was given in this pass, by its weight. Within
a namespace the oldest goes first. Equal in all that, the smaller key: the order is total.

Refused work is parked by shape (`kgwe.placement.queue.unschedulable`). Only errors are retried after a back-off; room
that is missing is waited for, and costs nothing meanwhile.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from kgwe.model.units import backoff
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.queue import fair_share
from kgwe.placement.queue.fair_share import Shares
from kgwe.placement.queue.unschedulable import Bucket, Parking, Shape, VictimGone
from kgwe.placement.queue.work import milli_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Mapping

    from kgwe.placement.queue.unschedulable import Event
    from kgwe.placement.queue.work import Work

    Level = tuple[int, bool]

_BACKOFF_BASE_S: Final = 1.0
_LEVEL: Final = itemgetter(0)
# Gangs that are remembered once they have their places.
_LATELY: Final = 16
# Shapes of which nobody waits are kept until there are as many as of others, or so many.
_FEW_SHAPES: Final = 256


class Verdict(enum.StrEnum):
    """Why work no longer waits though it has no place. Condition reasons: users and alerts match on them."""

    TIMED_OUT = "SchedulingTimedOut"
    ATTEMPTS_EXHAUSTED = "SchedulingAttemptsExhausted"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It waits no longer. Put it again and it does, from the start."""

    work: Work
    verdict: Verdict
    words: str


class Entry:
    """One work that waits; without a bucket it is in a back-off."""

    __slots__ = ("bucket", "shape", "work")

    def __init__(self, work: Work, shape: Shape) -> None:
        self.work = work
        self.shape = shape
        self.bucket: Bucket | None = None


class Queue:
    """All that waits. Not thread-safe; reads no clock."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: namespace -> what it is due, against 1 for the others."""
        self.weights = weights or {}
        self.parking = Parking()
        self.entries: dict[str, Entry] = {}
        #: works nobody was told about yet
        self.untold: dict[str, None] = {}
        #: when to look again whether those who wait behind holds still have to
        self.review_s: float | None = None
        self._shapes: dict[Hashable, Shape] = {}
        self._most_shapes = _FEW_SHAPES
        self._attempts: dict[str, tuple[int, str]] = {}
        self._later: list[tuple[float, str]] = []
        self._deadlines: list[tuple[float, str]] = []
        self._parked_levels: tuple[int, list[Level]] = (-1, [])
        #: gangs that got their places last, the oldest first: what usually comes
        self.started_lately: deque[GangRequest] = deque(maxlen=_LATELY)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    # --- in and out -------------------------------------------------------------------------------------

    def put(self, work: Work) -> None:
        """It waits from now on, without a past."""
        if work.key in self.entries:
            self.remove(work.key)
        self._attempts.pop(work.key, None)
        self._admit(self._enter(work))

    def drop(self, key: str) -> None:
        """It waits no longer, and if it ever does again, it is new."""
        self._attempts.pop(key, None)
        if key in self.entries:
            self.remove(key)

    def retry(self, work: Work, now_s: float, luck: float, words: str = "") -> None:
        """Its plan was refused or failed: it waits again, after a back-off. `luck` is uniform in [0, 1)."""
        if work.key in self.entries:
            self.remove(work.key)
        failed = self._attempts.get(work.key, (0, ""))[0] + 1
        self._attempts[work.key] = failed, words
        self._enter(work)
        due_s = now_s + backoff.delay_s(_BACKOFF_BASE_S, failed - 1, luck)
        if work.max_attempts and failed >= work.max_attempts:
            due_s = now_s
        heapq.heappush(self._later, (due_s, work.key))

    def remove(self, key: str) -> None:
        """Out of the queue; its failures are remembered, in case it comes back."""
        entry = self.entries.pop(key)
        self.untold.pop(key, None)
        bucket, shape = entry.bucket, entry.shape
        if bucket is not None:
            works = bucket.works
            del works[bisect.bisect_left(works, (entry.work.since_s, key))]
            if not works:
                del shape.buckets[bucket.level, bucket.namespace]
        self._forget_if_empty(shape)

    def note_started(self, work: Work) -> None:
        """It has its place."""
        if isinstance(work.request, GangRequest):
            self.started_lately.append(work.request)

    def wake(self, event: Event) -> None:
        """Something happened; the next pass looks whom it helps."""
        if isinstance(event, VictimGone):
            entry = self.entries.get(event.key)
            if entry is not None:
                self.parking.wake(entry.shape)
        else:
            self.parking.note(event)

    def _enter(self, work: Work) -> Entry:
        key = shape_of(work)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= self._most_shapes:
                self._forget_shapes()
            shape = self._shapes[key] = Shape(key, work.request, milli_of(work.request))
        entry = self.entries[work.key] = Entry(work, shape)
        self.untold[work.key] = None
        if work.timeout_s:
            heapq.heappush(self._deadlines, (work.since_s + work.timeout_s, work.key))
        return entry

    def _admit(self, entry: Entry) -> None:
        work, shape = entry.work, entry.shape
        where = (work.level, work.namespace)
        bucket = shape.buckets.get(where)
        if bucket is None:
            bucket = shape.buckets[where] = Bucket(shape, *where)
        bisect.insort(bucket.works, (work.since_s, work.key))
        entry.bucket = bucket
        self.parking.add(shape)

    def _forget_if_empty(self, shape: Shape) -> None:
        """Nobody of it can be tried; the shape itself stays a while, for the next of it to be found soon."""
        if not shape.buckets:
            self.parking.remove(shape)
            shape.no, shape.behind = None, 0

    def _forget_shapes(self) -> None:
        self._shapes = {key: shape for key, shape in self._shapes.items() if shape.buckets}
        self._most_shapes = max(_FEW_SHAPES, 2 * len(self._shapes))

    # --- time -------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[GivenUp]:
        """End back-offs that are over, and give up what has waited or failed too often."""
        over: list[GivenUp] = []
        while self._later and self._later[0][0] <= now_s:
            entry = self.entries.get(heapq.heappop(self._later)[1])
            if entry is None or entry.bucket is not None:
                continue
            failed, words = self._attempts.get(entry.work.key, (0, ""))
            if entry.work.max_attempts and failed >= entry.work.max_attempts:
                over.append(self._give_up(entry, Verdict.ATTEMPTS_EXHAUSTED, _failed(failed, words)))
            else:
                # While all works of a shape were in a back-off it may have been forgotten, and made anew.
                entry.shape = self._shapes.setdefault(entry.shape.key, entry.shape)
                self._admit(entry)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, key = heapq.heappop(self._deadlines)
            entry = self.entries.get(key)
            if entry is not None and entry.work.since_s + entry.work.timeout_s == deadline_s:
                over.append(self._give_up(entry, Verdict.TIMED_OUT, _waited(entry)))
        return over

    def next_s(self) -> float | None:
        """When there is something to do though nothing happens."""
        times = [heap[0][0] for heap in (self._later, self._deadlines) if heap]
        return min([*times, *([] if self.review_s is None else [self.review_s])], default=None)

    def _give_up(self, entry: Entry, verdict: Verdict, words: str) -> GivenUp:
        self.drop(entry.work.key)
        return GivenUp(entry.work, verdict, words)

    # --- order ------------------------------------------------------------------------------------------

    def order(self, held: Mapping[str, int]) -> Iterator[Work]:
        """All that could be tried now, parked or not, as if each were given what it asks for when its turn comes."""
        shares = Shares(held, self.weights)
        levels: dict[Level, dict[str, list[tuple[float, str]]]] = {}
        for shape in self._shapes.values():
            for (level, namespace), bucket in shape.buckets.items():
                levels.setdefault(level, {}).setdefault(namespace, []).extend(bucket.works)
        for level in sorted(levels):
            for key in fair_share.in_turn(
                levels[level], lambda key: self.entries[key].shape.milli, shares, fair=level[1]
            ):
                yield self.entries[key].work

    def agenda(self) -> list[tuple[Level, list[Bucket]]]:
        """Level by level, the works that are awake."""
        found: dict[Level, list[Bucket]] = {}
        for shape in self.parking.awake:
            for bucket in shape.buckets.values():
                found.setdefault(bucket.level, []).append(bucket)
        return sorted(found.items(), key=_LEVEL) if len(found) > 1 else list(found.items())

    def heads(self, level: Level, shares: Shares, but: Container[str] = ()) -> list[Entry]:
        """Of those of a level that are parked and could ever start: the oldest, and the one whose turn is first.

        But for those named. They are often the same.
        """
        first = [
            (works, shares.of(bucket.namespace))
            for shape in self.parking.parked
            if shape.no is not None and shape.no.possible
            for bucket in shape.buckets.values()
            if bucket.level == level and (works := next((each for each in bucket.works if each[1] not in but), None))
        ]
        if not first:
            return []
        oldest = min(first)[0][1]
        in_turn = min(first, key=lambda each: (each[1], each[0]))[0][1] if level[1] else oldest
        return [self.entries[key] for key in dict.fromkeys((oldest, in_turn))]

    def parked_levels(self) -> list[Level]:
        """Levels at which something that could ever start is parked, the first first; there may be others named."""
        if self._parked_levels[0] != self.parking.version:
            self._parked_levels = self.parking.version, self._levels_of_parked()
        return self._parked_levels[1]

    def _levels_of_parked(self) -> list[Level]:
        return sorted(
            {
                level
                for shape in self.parking.parked
                if shape.no is not None and shape.no.possible
                for level, _ in shape.buckets
            }
        )


def _failed(failed: int, words: str) -> str:
    times = "once" if failed == 1 else f"{failed} times in a row"
    return f"its plan failed {times}" + (f", last: {words}" if words else "") + "; change it, or raise the limit"


def _waited(entry: Entry) -> str:
    no = entry.shape.no
    return f"found no place in {entry.work.timeout_s:g} s" + (f": {no.words}" if no else "")

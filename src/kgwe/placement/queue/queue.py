"""The queue of waiting workloads and its order.

    queue = Queue()
    queue.put(workload)         add, or replace one of the same key
    queue.handle_event(RoomFreed("n1"))
    queue.retry(workload, now_s, jitter)   its plan failed: retry after a back-off
    queue.drop(key)             it is bound or deleted: forget it
    run_cycle(queue, …)         kgwe.placement.queue.cycle: place what fits

The order: higher priority first; then workloads that lost their place (`first_claim`), the oldest first; then the
namespace with the smallest fair share: its usage and what it was given in this cycle, divided by its weight. Within a
namespace the oldest goes first, then the smaller key: the order is total.

Refused workloads are unschedulable by request class (`kgwe.placement.queue.unschedulable`). Only errors are retried
after a back-off. Waiting for capacity costs nothing.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import deque
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from kgwe.model.units import backoff
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.queue import fair_share
from kgwe.placement.queue.fair_share import FairShares
from kgwe.placement.queue.unschedulable import Bucket, RequestClass, UnschedulablePool, VictimGone
from kgwe.placement.queue.workloads import request_class_of, requested_milli

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Mapping

    from kgwe.placement.queue.unschedulable import Event
    from kgwe.placement.queue.workloads import QueuedWorkload, RunTime

    Level = tuple[int, bool]

_BACKOFF_BASE_S: Final = 1.0
_LEVEL: Final = itemgetter(0)
# Started gangs that are remembered.
_RECENT: Final = 16
# Empty request classes are kept until there are as many as others, or this many.
_MIN_CLASSES: Final = 256


class GiveUpReason(enum.StrEnum):
    """Why a workload was given up. Condition reasons: users and alerts match on them."""

    TIMED_OUT = "SchedulingTimedOut"
    ATTEMPTS_EXHAUSTED = "SchedulingAttemptsExhausted"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The workload left the queue without a place. If it is put again, it starts over."""

    workload: QueuedWorkload
    reason: GiveUpReason
    message: str


class Entry:
    """One waiting workload; without a bucket it is in a back-off."""

    __slots__ = ("bucket", "request_class", "workload")

    def __init__(self, workload: QueuedWorkload, request_class: RequestClass) -> None:
        self.workload = workload
        self.request_class = request_class
        self.bucket: Bucket | None = None


class Queue:
    """All waiting workloads. Not thread-safe; reads no clock."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: namespace -> its fair-share weight; 1 for the others."""
        self.weights = weights or {}
        self.pool = UnschedulablePool()
        self.entries: dict[str, Entry] = {}
        # Workloads whose waiting was not reported yet.
        self._unreported: dict[str, None] = {}
        self._review_s: float | None = None
        self._classes: dict[Hashable, RequestClass] = {}
        self._max_classes = _MIN_CLASSES
        self._attempts: dict[str, tuple[int, str]] = {}
        self._backoffs: list[tuple[float, str]] = []
        self._deadlines: list[tuple[float, str]] = []
        self._unschedulable_levels: tuple[int, list[Level]] = (-1, [])
        #: gangs that started last, the oldest first: a forecast of what comes
        self.recently_started: deque[GangRequest] = deque(maxlen=_RECENT)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    # --- in and out -------------------------------------------------------------------------------------

    def put(self, workload: QueuedWorkload) -> None:
        """Add the workload, without earlier failures; replaces one of the same key."""
        if workload.key in self.entries:
            self.remove(workload.key)
        self._attempts.pop(workload.key, None)
        self._enqueue(self._create_entry(workload))

    def set_run_time(self, key: str, run_time: RunTime | None, predicted_p95_s: float) -> None:
        """Change the run time of a waiting workload; it keeps its order, its failures and its back-off."""
        entry = self.entries[key]
        entry.workload = replace(entry.workload, run_time=run_time, predicted_p95_s=predicted_p95_s)
        if entry.bucket is not None and entry.request_class.blocked_at:
            self.pool.activate(entry.request_class)  # it may be short enough to backfill now

    def drop(self, key: str) -> None:
        """Remove the workload and forget its failures."""
        self._attempts.pop(key, None)
        if key in self.entries:
            self.remove(key)

    def retry(self, workload: QueuedWorkload, now_s: float, jitter: float, words: str = "") -> None:
        """Put back a workload whose plan failed, with a back-off. `jitter` is uniform in [0, 1)."""
        if workload.key in self.entries:
            self.remove(workload.key)
        failed = self._attempts.get(workload.key, (0, ""))[0] + 1
        self._attempts[workload.key] = failed, words
        self._create_entry(workload)
        due_s = now_s + backoff.delay_s(_BACKOFF_BASE_S, failed - 1, jitter)
        if workload.max_attempts and failed >= workload.max_attempts:
            due_s = now_s
        heapq.heappush(self._backoffs, (due_s, workload.key))

    def remove(self, key: str) -> None:
        """Remove the workload; its failures are remembered, in case it comes back."""
        entry = self.entries.pop(key)
        self._unreported.pop(key, None)
        bucket, request_class = entry.bucket, entry.request_class
        if bucket is not None:
            workloads = bucket.workloads
            del workloads[bisect.bisect_left(workloads, (entry.workload.since_s, key))]
            if not workloads:
                del request_class.buckets[bucket.level, bucket.namespace]
        self._forget_if_empty(request_class)

    def find_namespaces(self) -> set[str]:
        """Namespaces with workloads that wait for GPUs."""
        return {namespace for each in self._classes.values() for _, namespace in each.buckets}

    def list_unreported(self) -> list[Entry]:
        """Refused workloads whose waiting was not reported yet."""
        entries = (self.entries[key] for key in self._unreported)
        return [entry for entry in entries if entry.request_class.refusal is not None and entry.bucket is not None]

    def mark_reported(self, key: str) -> None:
        self._unreported.pop(key, None)

    def record_start(self, workload: QueuedWorkload) -> None:
        """Remember a gang that got its place."""
        if isinstance(workload.request, GangRequest):
            self.recently_started.append(workload.request)

    def handle_event(self, event: Event) -> None:
        """Record the event; the next cycle checks which workloads it helps."""
        if isinstance(event, VictimGone):
            entry = self.entries.get(event.key)
            if entry is not None:
                self.pool.activate(entry.request_class)
        else:
            self.pool.record_event(event)

    def _create_entry(self, workload: QueuedWorkload) -> Entry:
        key = request_class_of(workload)
        request_class = self._classes.get(key)
        if request_class is None:
            if len(self._classes) >= self._max_classes:
                self._forget_empty_classes()
            request_class = self._classes[key] = RequestClass(key, workload.request, requested_milli(workload.request))
        entry = self.entries[workload.key] = Entry(workload, request_class)
        self._unreported[workload.key] = None
        if workload.timeout_s:
            heapq.heappush(self._deadlines, (workload.since_s + workload.timeout_s, workload.key))
        return entry

    def _enqueue(self, entry: Entry) -> None:
        workload, request_class = entry.workload, entry.request_class
        where = (workload.level, workload.namespace)
        bucket = request_class.buckets.get(where)
        if bucket is None:
            bucket = request_class.buckets[where] = Bucket(request_class, *where)
        bisect.insort(bucket.workloads, (workload.since_s, workload.key))
        entry.bucket = bucket
        self.pool.add(request_class)

    def _forget_if_empty(self, request_class: RequestClass) -> None:
        """Take an empty class out of the pool; the object stays a while for the next workload like it."""
        if not request_class.buckets:
            self.pool.remove(request_class)
            request_class.refusal, request_class.blocked_at = None, 0

    def _forget_empty_classes(self) -> None:
        self._classes = {key: request_class for key, request_class in self._classes.items() if request_class.buckets}
        self._max_classes = max(_MIN_CLASSES, 2 * len(self._classes))

    # --- time -------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[GivenUp]:
        """End back-offs that are over; give up workloads that timed out or failed too often."""
        over: list[GivenUp] = []
        while self._backoffs and self._backoffs[0][0] <= now_s:
            entry = self.entries.get(heapq.heappop(self._backoffs)[1])
            if entry is None or entry.bucket is not None:
                continue
            failed, words = self._attempts.get(entry.workload.key, (0, ""))
            if entry.workload.max_attempts and failed >= entry.workload.max_attempts:
                over.append(self._give_up(entry, GiveUpReason.ATTEMPTS_EXHAUSTED, _describe_failures(failed, words)))
            else:
                # While all its workloads were in a back-off, the class may have been forgotten and created again.
                entry.request_class = self._classes.setdefault(entry.request_class.key, entry.request_class)
                self._enqueue(entry)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, key = heapq.heappop(self._deadlines)
            entry = self.entries.get(key)
            if entry is not None and entry.workload.since_s + entry.workload.timeout_s == deadline_s:
                over.append(self._give_up(entry, GiveUpReason.TIMED_OUT, _describe_timeout(entry)))
        return over

    def set_review(self, at_s: float | None) -> None:
        """When to check again whether reservations still block other workloads; None: they block none."""
        self._review_s = at_s

    def next_due_s(self) -> float | None:
        """When the next cycle is due without any event."""
        times = [heap[0][0] for heap in (self._backoffs, self._deadlines) if heap]
        return min([*times, *([] if self._review_s is None else [self._review_s])], default=None)

    def _give_up(self, entry: Entry, verdict: GiveUpReason, words: str) -> GivenUp:
        self.drop(entry.workload.key)
        return GivenUp(entry.workload, verdict, words)

    # --- order ------------------------------------------------------------------------------------------

    def iterate_in_order(self, held: Mapping[str, int]) -> Iterator[QueuedWorkload]:
        """Workloads not in a back-off, in the order in which they would be placed if all fitted."""
        shares = FairShares(held, self.weights)
        levels: dict[Level, dict[str, list[tuple[float, str]]]] = {}
        for request_class in self._classes.values():
            for (level, namespace), bucket in request_class.buckets.items():
                levels.setdefault(level, {}).setdefault(namespace, []).extend(bucket.workloads)
        for level in sorted(levels):
            for key in fair_share.order_by_fair_share(
                levels[level], lambda key: self.entries[key].request_class.milli, shares, fair=level[1]
            ):
                yield self.entries[key].workload

    def active_by_level(self) -> list[tuple[Level, list[Bucket]]]:
        """Buckets of the active classes, level by level."""
        found: dict[Level, list[Bucket]] = {}
        for request_class in self.pool.active:
            for bucket in request_class.buckets.values():
                found.setdefault(bucket.level, []).append(bucket)
        return sorted(found.items(), key=_LEVEL) if len(found) > 1 else list(found.items())

    def find_heads(self, level: Level, shares: FairShares, but: Container[str] = ()) -> list[Entry]:
        """Of the unschedulable workloads of a level that could ever start: the oldest and the first by fair share.

        Keys in `but` are left out. The two are often the same.
        """
        first = [
            (workloads, shares.get(bucket.namespace))
            for request_class in self.pool.unschedulable
            if request_class.refusal is not None and request_class.refusal.possible
            for bucket in request_class.buckets.values()
            if bucket.level == level
            and (workloads := next((each for each in bucket.workloads if each[1] not in but), None))
        ]
        if not first:
            return []
        oldest = min(first)[0][1]
        in_turn = min(first, key=lambda each: (each[1], each[0]))[0][1] if level[1] else oldest
        return [self.entries[key] for key in dict.fromkeys((oldest, in_turn))]

    def unschedulable_levels(self) -> list[Level]:
        """Levels with unschedulable workloads that could ever start, in order; may include others."""
        if self._unschedulable_levels[0] != self.pool.version:
            self._unschedulable_levels = self.pool.version, self._find_unschedulable_levels()
        return self._unschedulable_levels[1]

    def _find_unschedulable_levels(self) -> list[Level]:
        return sorted(
            {
                level
                for request_class in self.pool.unschedulable
                if request_class.refusal is not None and request_class.refusal.possible
                for level, _ in request_class.buckets
            }
        )


def _describe_failures(failed: int, words: str) -> str:
    times = "once" if failed == 1 else f"{failed} times in a row"
    return f"Placement failed {times}" + (f", last: {words}" if words else "") + ". Change the spec or the limit."


def _describe_timeout(entry: Entry) -> str:
    refusal = entry.request_class.refusal
    return f"Not placed within {entry.workload.timeout_s:g} s" + (f": {refusal.message}" if refusal else ".")

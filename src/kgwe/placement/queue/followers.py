"""Which gangs come after a work: those that wait for their turn in the same pass, then such as started lately.

The order is that of priority and age. Fair shares, which change with every plan, are left out: this is a forecast that
decides where a gang goes, never when.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.request import NONE_FOLLOW, Following, GangRequest

if TYPE_CHECKING:
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.unschedulable import Shape
    from kgwe.placement.queue.work import Work

# Gangs that are looked at, and the fewest of them: where fewer wait, as many more as started lately are expected.
_MOST: Final = 48
_USUAL: Final = 32
_LISTED: Final = 2 * _MOST + 1


class Followers:
    """Of one pass: who waits is listed when the first gang is planned, and again when most of those have had a turn."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[tuple[Level, float, str, Shape]] | None = None
        self._is_cut = False
        self._numbers: dict[GangRequest, int] = {}
        self._by_shape: dict[int, int] = {}
        #: by identity: a gang is slow to hash; it is held here, so its id is not used again
        self._known: dict[int, tuple[GangRequest, int]] = {}

    def of(self, work: Work) -> Following:
        """Gangs that follow this work; none for a single pod."""
        if not isinstance(work.request, GangRequest):
            return NONE_FOLLOW
        order = [self._number_of(shape) for _, _, key, shape in self._list() if key != work.key][:_MOST]
        waiting = len(order)
        recent = [self._number(gang) for gang in self._queue.started_lately]
        while recent and len(order) < _USUAL:
            order += recent[: _USUAL - len(order)]
        return Following(tuple(self._numbers), tuple(order), len(order) - waiting)

    def _list(self) -> list[tuple[Level, float, str, Shape]]:
        """Those that still wait, at least as many as are looked at if there are so many."""
        if self._waiting:
            entries = self._queue.entries
            self._waiting = [each for each in self._waiting if each[2] in entries and each[3].no is None]
        if self._waiting is None or (self._is_cut and len(self._waiting) <= _MOST):
            self._waiting = _list_waiting(self._queue)
            self._is_cut = len(self._waiting) == _LISTED
        return self._waiting

    def _number_of(self, shape: Shape) -> int:
        found = self._by_shape.get(id(shape))
        if found is None:
            gang = shape.request
            found = self._by_shape[id(shape)] = self._number(gang) if isinstance(gang, GangRequest) else -1
        return found

    def _number(self, gang: GangRequest) -> int:
        known = self._known.get(id(gang))
        if known is None:
            known = self._known[id(gang)] = gang, self._numbers.setdefault(gang.without_name, len(self._numbers))
        return known[1]


def _list_waiting(queue: Queue) -> list[tuple[Level, float, str, Shape]]:
    found = (
        (level, since_s, key, shape)
        for shape in queue.parking.awake
        if isinstance(shape.request, GangRequest)
        for (level, _), bucket in shape.buckets.items()
        for since_s, key in bucket.works[:_LISTED]
    )
    return heapq.nsmallest(_LISTED, found, key=lambda each: each[:3])

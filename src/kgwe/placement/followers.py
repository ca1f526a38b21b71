"""Which gangs come after a work: those that wait for their turn in the same pass, then such as started lately.

The order is that of priority and age. Fair shares, which change with every plan, are left out: this is a forecast that
decides where a gang goes, never when.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang_request import NONE_FOLLOW, Following, GangRequest

if TYPE_CHECKING:
    from kgwe.placement.parking import Shape
    from kgwe.placement.queue import Level, Queue
    from kgwe.placement.work import Work

# Gangs that are looked at, and the fewest of them: where fewer wait, as many more as started lately are expected.
_MOST: Final = 40
_USUAL: Final = 32


class Followers:
    """Of one pass: who waits is listed when the first gang is planned."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[tuple[Level, float, str, Shape]] | None = None
        self._numbers: dict[GangRequest, int] = {}
        self._by_shape: dict[int, int] = {}

    def of(self, work: Work) -> Following:
        """Gangs that follow this work; none for a single pod."""
        if not isinstance(work.request, GangRequest):
            return NONE_FOLLOW
        if self._waiting is None:
            self._waiting = _list_waiting(self._queue)
        entries = self._queue.entries
        order = [
            self._number_of(shape)
            for _, _, key, shape in self._waiting
            if key != work.key and key in entries and shape.no is None
        ]
        recent = [self._number(gang) for gang in self._queue.started_lately]
        while recent and len(order) < _USUAL:
            order += recent[: _USUAL - len(order)]
        return Following(tuple(self._numbers), tuple(order))

    def _number_of(self, shape: Shape) -> int:
        found = self._by_shape.get(id(shape))
        if found is None:
            gang = shape.request
            found = self._by_shape[id(shape)] = self._number(gang) if isinstance(gang, GangRequest) else -1
        return found

    def _number(self, gang: GangRequest) -> int:
        return self._numbers.setdefault(gang.unnamed, len(self._numbers))


def _list_waiting(queue: Queue) -> list[tuple[Level, float, str, Shape]]:
    found = (
        (level, since_s, key, shape)
        for shape in queue.parking.awake
        if isinstance(shape.request, GangRequest)
        for (level, _), bucket in shape.buckets.items()
        for since_s, key in bucket.works[: _MOST + 1]
    )
    return heapq.nsmallest(_MOST + 1, found, key=lambda each: each[:3])

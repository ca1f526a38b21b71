"""Which gangs come after a workload: those that wait in the same cycle, then recently started ones.

The order is that of priority and age. Fair shares, which change with every plan, are left out: this is a forecast that
decides where a gang goes, never when.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.request import NONE_FOLLOW, Following, GangRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.gang.request import Intent
    from kgwe.placement.queue.queue import Level, Queue
    from kgwe.placement.queue.unschedulable import RequestClass
    from kgwe.placement.queue.workloads import QueuedWorkload

    _Waiting = tuple[Level, float, str, RequestClass]

# Most and fewest gangs considered: if fewer wait, recently started ones are expected to come again.
_MOST: Final = 48
_USUAL: Final = 32
_LISTED: Final = 160


class Followers:
    """The waiting gangs of one cycle, listed when the first gang is planned, and again when most had their turn."""

    def __init__(self, queue: Queue, arrange: Callable[[Following], Sequence[Intent | None]]) -> None:
        """`arrange`: plans gangs together (`cycle.Planner`)."""
        self._queue = queue
        self._arrange = arrange
        self._intents: dict[str, Intent] = {}
        self._waiting: list[_Waiting] | None = None
        self._is_cut = False
        self._numbers: dict[GangRequest, int] = {}
        self._by_shape: dict[int, int] = {}
        #: by identity: a gang is slow to hash; it is held here, so its id is not used again
        self._known: dict[int, tuple[GangRequest, int]] = {}

    def find_following(self, workload: QueuedWorkload) -> Following:
        """Gangs that follow this workload; none for a single pod."""
        if not isinstance(workload.request, GangRequest):
            return NONE_FOLLOW
        waiting = [each for each in self._refresh_waiting() if each[2] != workload.key][:_MOST]
        return replace(self._list_following(waiting), intent=self._intents.get(workload.key))

    def _list_following(self, waiting: Sequence[_Waiting]) -> Following:
        """These gangs, and if they are few, recently started ones behind them."""
        order = [self._class_number(request_class) for _, _, _, request_class in waiting]
        recent = [self._gang_number(gang) for gang in self._queue.recently_started]
        while recent and len(order) < _USUAL:
            order += recent[: _USUAL - len(order)]
        return Following(tuple(self._numbers), tuple(order), len(order) - len(waiting))

    def _refresh_waiting(self) -> list[_Waiting]:
        """Gangs that still wait; listed again when too few are left."""
        if self._waiting:
            entries = self._queue.entries
            self._waiting = [each for each in self._waiting if each[2] in entries and each[3].refusal is None]
        if self._waiting is None or (self._is_cut and len(self._waiting) <= _MOST):
            self._waiting = _list_waiting(self._queue)
            self._is_cut = len(self._waiting) == _LISTED
            self._plan_together(self._waiting)
        return self._waiting

    def _plan_together(self, waiting: Sequence[_Waiting]) -> None:
        if len(waiting) > 1:
            intents = self._arrange(self._list_following(waiting))
            self._intents = {each[2]: intent for each, intent in zip(waiting, intents, strict=False) if intent}

    def _class_number(self, request_class: RequestClass) -> int:
        found = self._by_shape.get(id(request_class))
        if found is None:
            gang = request_class.request
            found = self._by_shape[id(request_class)] = self._gang_number(gang) if isinstance(gang, GangRequest) else -1
        return found

    def _gang_number(self, gang: GangRequest) -> int:
        known = self._known.get(id(gang))
        if known is None:
            known = self._known[id(gang)] = gang, self._numbers.setdefault(gang.without_name, len(self._numbers))
        return known[1]


def _list_waiting(queue: Queue) -> list[_Waiting]:
    found = (
        (level, since_s, key, request_class)
        for request_class in queue.pool.active
        if isinstance(request_class.request, GangRequest)
        for (level, _), bucket in request_class.buckets.items()
        for since_s, key in bucket.workloads[:_LISTED]
    )
    return heapq.nsmallest(_LISTED, found, key=lambda each: each[:3])

"""The events of a simulation and their order.

Simultaneous events are handled in the order of their kind: events that free capacity come before those that take it,
so an arriving job finds the capacity of an ending one. Within a kind the order is by subject, never by insertion, so
a run depends only on its input.
"""

from __future__ import annotations

import enum
import heapq
from typing import NamedTuple


class Kind(enum.IntEnum):
    """Event kinds, in their order at one moment."""

    END = 0
    NODE_UP = 1
    CARD_UP = 2
    NODE_DOWN = 3
    CARD_DOWN = 4
    TAKE_BACK = 5
    ARRIVAL = 6


class Event(NamedTuple):
    at_s: float
    kind: Kind
    #: job number for ends and arrivals, otherwise node number
    subject: int
    #: attempt of the job, or GPU of the node
    detail: int = 0


class Agenda:
    """The pending events."""

    def __init__(self) -> None:
        self._heap: list[Event] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, event: Event) -> None:
        heapq.heappush(self._heap, event)

    def take_moment(self) -> list[Event]:
        """Return all events of the next moment, in order."""
        first = heapq.heappop(self._heap)
        events = [first]
        while self._heap and self._heap[0].at_s == first.at_s:
            events.append(heapq.heappop(self._heap))
        return events

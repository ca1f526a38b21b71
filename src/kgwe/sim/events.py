"""What happens in a simulation, and in which order.

Things that happen at the same moment are taken in the order of their kind: what frees room comes before what takes it,
so a job that arrives when another ends finds its place. Within a kind the order is by subject, never by the order
in which events were put in: a run depends on what was asked, not on how it was written down.
"""

from __future__ import annotations

import enum
import heapq
from typing import NamedTuple


class Kind(enum.IntEnum):
    """In the order in which they are taken at one moment."""

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
    #: job number for ends and arrivals, node number otherwise
    subject: int
    #: attempt of the job, or card of the node
    detail: int = 0


class Agenda:
    """Events to come."""

    def __init__(self) -> None:
        self._heap: list[Event] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, event: Event) -> None:
        heapq.heappush(self._heap, event)

    def take_moment(self) -> list[Event]:
        """Everything that happens at the next moment, in order."""
        first = heapq.heappop(self._heap)
        events = [first]
        while self._heap and self._heap[0].at_s == first.at_s:
            events.append(heapq.heappop(self._heap))
        return events

"""The messages that wait for one channel: bounded, without repetition, the due ones first."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kgwe.notify.notification import Notification

_MOST_REMEMBERED: Final = 20_000


@dataclass(slots=True)
class Message:
    """A notification on its way to one target."""

    notification: Notification
    target: str
    attempts: int = 0
    number: int = 0
    """Order of arrival in its outbox."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return what makes it the same message again. A higher severity is another message."""
        return self.target, self.notification.key, self.notification.severity.value


class Outbox:
    """A queue without a clock: times are arguments. Every operation takes logarithmic time at most."""

    def __init__(self, size: int, repeat_s: float) -> None:
        self._size = size
        self._repeat_s = repeat_s
        self._number = 0
        self._waiting: OrderedDict[int, Message] = OrderedDict()
        """By arrival: the first is the oldest."""
        self._due: list[tuple[float, int]] = []
        """Heap of (time, number); numbers that no longer wait are skipped."""
        self._accepted: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_repeated(self, message: Message, now: float) -> bool:
        """Whether the same message was accepted within the repeat time."""
        accepted = self._accepted.get(message.identity)
        return accepted is not None and now - accepted < self._repeat_s

    def put(self, message: Message, now: float) -> Message | None:
        """Add a message and return the oldest one if there was no room."""
        self._accepted[message.identity] = now
        self._accepted.move_to_end(message.identity)
        if len(self._accepted) > _MOST_REMEMBERED:
            self._accepted.popitem(last=False)
        dropped = None
        if len(self._waiting) >= self._size:
            _, dropped = self._waiting.popitem(last=False)
            self.forget(dropped)
        self._number += 1
        message.number = self._number
        self._waiting[message.number] = message
        self._schedule(message, now)
        return dropped

    def put_back(self, message: Message, due: float) -> Message | None:
        """Keep a message that was taken, to be sent at a later time. Return it if newer ones have filled the queue."""
        if len(self._waiting) >= self._size:
            self.forget(message)
            return message
        self._waiting[message.number] = message
        self._waiting.move_to_end(message.number, last=False)
        self._schedule(message, due)
        return None

    def take(self, now: float) -> Message | None:
        """Remove and return the message that has been due for the longest time; None if none is due."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, number = heapq.heappop(self._due)
        return self._waiting.pop(number)

    def next_due(self) -> float | None:
        """Return the time at which the next message is due."""
        while self._due and self._due[0][1] not in self._waiting:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def forget(self, message: Message) -> None:
        """Forget that a message was accepted: it was not delivered, so the next one is not a repetition."""
        self._accepted.pop(message.identity, None)

    def _schedule(self, message: Message, due: float) -> None:
        heapq.heappush(self._due, (due, message.number))
        if len(self._due) > 2 * self._size:
            self._due = [entry for entry in self._due if entry[1] in self._waiting]
            heapq.heapify(self._due)

"""Work that goes ahead because it will be gone in time promises to be. Here is counted who breaks such promises."""

from __future__ import annotations

import collections
import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kgwe.placement.queue.work import Roster, Work


class Trust:
    """Which namespaces keep to the run times they declare."""

    _COUNTED: Final = 20

    def __init__(self, forgiven: int, remembered_s: float) -> None:
        self._forgiven = forgiven
        self._remembered_s = remembered_s
        self._promised: list[tuple[float, str, str]] = []
        #: namespace -> when its last promises were due, and whether they were kept
        self._record: dict[str, collections.deque[tuple[float, bool]]] = {}
        #: who broke one -> when it was due; the oldest first
        self._broken: dict[str, float] = {}

    def promise(self, work: Work, until_s: float) -> None:
        heapq.heappush(self._promised, (until_s, work.key, work.namespace))

    def settle(self, roster: Roster, now_s: float) -> None:
        """Look which promises are due, and who is still there."""
        while self._promised and self._promised[0][0] < now_s:
            until_s, key, namespace = heapq.heappop(self._promised)
            record = self._record.setdefault(namespace, collections.deque(maxlen=self._COUNTED))
            record.append((until_s, key not in roster))
            if key in roster:
                self._broken[key] = until_s
        while self._broken and self._is_forgotten(next(iter(self._broken.values())), now_s):
            del self._broken[next(iter(self._broken))]

    def has(self, work: Work, now_s: float) -> bool:
        """Whether its word is taken."""
        if work.key in self._broken:
            return False
        record = self._record.get(work.namespace, ())
        broken = sum(not kept and not self._is_forgotten(due_s, now_s) for due_s, kept in record)
        return broken <= self._forgiven

    def _is_forgotten(self, due_s: float, now_s: float) -> bool:
        return now_s - due_s >= self._remembered_s

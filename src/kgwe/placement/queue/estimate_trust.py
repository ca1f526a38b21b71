"""Which namespaces keep to their declared run times: backfilled workloads promise to end in time."""

from __future__ import annotations

import collections
import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads


class EstimateTrust:
    """Which namespaces keep to the run times they declare."""

    _COUNTED: Final = 20

    def __init__(self, forgiven: int, remembered_s: float) -> None:
        self._forgiven = forgiven
        self._remembered_s = remembered_s
        self._promised: list[tuple[float, str, str]] = []
        #: namespace -> due time of its last promises, and whether they were kept
        self._record: dict[str, collections.deque[tuple[float, bool]]] = {}
        #: workload that broke its promise -> when it was due; the oldest first
        self._broken: dict[str, float] = {}

    def record_promise(self, workload: QueuedWorkload, until_s: float) -> None:
        heapq.heappush(self._promised, (until_s, workload.key, workload.namespace))

    def check_promises(self, running: RunningWorkloads, now_s: float) -> None:
        """Record which due promises were broken by workloads that still run."""
        while self._promised and self._promised[0][0] < now_s:
            until_s, key, namespace = heapq.heappop(self._promised)
            record = self._record.setdefault(namespace, collections.deque(maxlen=self._COUNTED))
            record.append((until_s, key not in running))
            if key in running:
                self._broken[key] = until_s
        while self._broken and self._is_forgotten(next(iter(self._broken.values())), now_s):
            del self._broken[next(iter(self._broken))]

    def is_trusted(self, workload: QueuedWorkload, now_s: float) -> bool:
        """Whether the workload's run time is trusted."""
        if workload.key in self._broken:
            return False
        record = self._record.get(workload.namespace, ())
        broken = sum(not entry and not self._is_forgotten(due_s, now_s) for due_s, entry in record)
        return broken <= self._forgiven

    def _is_forgotten(self, due_s: float, now_s: float) -> bool:
        return now_s - due_s >= self._remembered_s

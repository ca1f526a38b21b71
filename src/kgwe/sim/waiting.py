"""Jobs that wait: by priority, then age, grouped by kind.

Jobs of one kind (equal pods, equally many) are interchangeable to a policy, so a pass over the queue asks once per
kind and skips the rest of a kind that was refused. The order is still that of the whole queue.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.sim.traces.workload import Job

    _Kind = tuple[object, int]


class Waiting:
    """The queue. A job's rank is (-priority, number): numbers rise with arrival and are kept over restarts."""

    def __init__(self) -> None:
        self._by_kind: dict[_Kind, list[tuple[int, int]]] = {}
        self._count = 0
        #: milli that waits
        self.milli = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, job: Job) -> None:
        heapq.heappush(self._by_kind.setdefault(job.kind, []), (-job.priority, number))
        self._count += 1
        self.milli += job.milli

    def take(self, number: int, job: Job) -> None:
        """Remove a job."""
        ranks = self._by_kind[job.kind]
        rank = (-job.priority, number)
        if ranks[0] == rank:
            heapq.heappop(ranks)
        else:
            ranks.remove(rank)
            heapq.heapify(ranks)
        if not ranks:
            del self._by_kind[job.kind]
        self._count -= 1
        self.milli -= job.milli

    def heads(self) -> list[tuple[tuple[int, int], _Kind]]:
        """The first of every kind, best rank first."""
        return sorted((ranks[0], kind) for kind, ranks in self._by_kind.items()) if self._by_kind else []

    def head_of(self, kind: _Kind) -> tuple[int, int] | None:
        ranks = self._by_kind.get(kind)
        return ranks[0] if ranks else None

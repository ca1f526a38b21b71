"""The fair-share order of namespaces: the smallest share first, within a namespace the oldest workload.

A share is the GPU usage of a namespace, and what it was given in this cycle, divided by its weight. Ties go to the
older workload, then to the smaller key.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.placement.queue.unschedulable import Bucket

    Level = tuple[int, bool]


class FairShares:
    """Weighted GPU usage of namespaces: before the cycle, and given in it."""

    __slots__ = ("_totals", "_usage", "_weights")

    def __init__(self, usage: Mapping[str, int], weights: Mapping[str, float]) -> None:
        self._usage = usage
        self._weights = weights
        # Namespace -> its usage when first read, and what was given since: `usage` may grow with what is given.
        self._totals: dict[str, float] = {}

    def get(self, namespace: str) -> float:
        found = self._totals.get(namespace)
        if found is None:
            found = self._totals[namespace] = self._usage.get(namespace, 0) / self._weights.get(namespace, 1.0)
        return found

    def add(self, namespace: str, milli: int) -> float:
        share = self._totals[namespace] = self.get(namespace) + milli / self._weights.get(namespace, 1.0)
        return share


class FairShareOrder:
    """Order of the active workloads of one level; a share grows only by what was placed."""

    def __init__(self, level: Level, buckets: Iterable[Bucket], shares: FairShares) -> None:
        self._fair = level[1]
        self._shares = shares
        self._lines: dict[str, list[tuple[float, str, int, Bucket]]] = {}
        for bucket in buckets:
            line = self._lines.setdefault(bucket.namespace if self._fair else "", [])
            line.append((*bucket.workloads[0], 0, bucket))
        self._turns = []
        for namespace, line in self._lines.items():
            heapq.heapify(line)
            self._turns.append((self._share(namespace), *line[0][:2], namespace))
        heapq.heapify(self._turns)

    def _share(self, namespace: str) -> float:
        return self._shares.get(namespace) if self._fair else 0.0

    def peek(self) -> tuple[str, Bucket] | None:
        """The key of the next workload; None: none is left. Stays until it is marked."""
        turns = self._turns
        while turns:
            namespace = turns[0][3]
            line = self._lines[namespace]
            while line and line[0][3].request_class.refusal is not None:
                heapq.heappop(line)
            if line:
                since_s, key, _, bucket = line[0]
                if turns[0][2] == key:
                    return key, bucket
                heapq.heapreplace(turns, (self._share(namespace), since_s, key, namespace))
            else:
                heapq.heappop(turns)
        return None

    def mark_placed(self) -> None:
        """The workload was placed and removed from the queue."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._shares.add(bucket.namespace, bucket.request_class.milli)
        self._replace_head(number, bucket)

    def mark_removed(self) -> None:
        """The workload was removed from the queue without a place."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._replace_head(number, bucket)

    def mark_skipped(self) -> None:
        """The workload stays in the queue; go on with the next."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._replace_head(number + 1, bucket)

    def _replace_head(self, number: int, bucket: Bucket) -> None:
        namespace = self._turns[0][3]
        line = self._lines[namespace]
        if number < len(bucket.workloads):
            heapq.heappush(line, (*bucket.workloads[number], number, bucket))
        if line:
            heapq.heapreplace(self._turns, (self._share(namespace), *line[0][:2], namespace))
        else:
            heapq.heappop(self._turns)


def order_by_fair_share(
    lines: Mapping[str, list[tuple[float, str]]], milli_of: Callable[[str], int], shares: FairShares, *, fair: bool
) -> Iterator[str]:
    """Keys in order if each is placed in its turn; `lines`: namespace -> its (since, key)."""
    if not fair:
        for _, key, namespace in sorted((*each, namespace) for namespace, line in lines.items() for each in line):
            shares.add(namespace, milli_of(key))
            yield key
        return
    turns = []
    for namespace, line in lines.items():
        backwards = sorted(line, reverse=True)
        turns.append((shares.get(namespace), *backwards[-1], namespace, backwards))
    heapq.heapify(turns)
    while turns:
        _, _, key, namespace, line = turns[0]
        line.pop()
        share = shares.add(namespace, milli_of(key))
        if line:
            heapq.heapreplace(turns, (share, *line[-1], namespace, line))
        else:
            heapq.heappop(turns)
        yield key

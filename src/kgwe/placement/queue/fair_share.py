"""Whose turn it is among namespaces: always the one whose share is smallest, within it the oldest work.

A share is what a namespace holds, and what it was given since the pass began, by its weight. Ties go to the older work,
then to the smaller key.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.placement.queue.unschedulable import Bucket

    Level = tuple[int, bool]


class Shares:
    """What namespaces have, by their weights: held when the pass began, and given in it."""

    __slots__ = ("_given", "_held", "_weights")

    def __init__(self, held: Mapping[str, int], weights: Mapping[str, float]) -> None:
        self._held = held
        self._weights = weights
        # Namespace -> held when first asked about, and given since: `held` may grow with what is given.
        self._given: dict[str, float] = {}

    def of(self, namespace: str) -> float:
        found = self._given.get(namespace)
        if found is None:
            found = self._given[namespace] = self._held.get(namespace, 0) / self._weights.get(namespace, 1.0)
        return found

    def give(self, namespace: str, milli: int) -> float:
        share = self._given[namespace] = self.of(namespace) + milli / self._weights.get(namespace, 1.0)
        return share


class Rounds:
    """Turns within one level of a pass: only what is awake, and a share grows only by what was really given."""

    def __init__(self, level: Level, buckets: Iterable[Bucket], shares: Shares) -> None:
        self._fair = level[1]
        self._shares = shares
        self._lines: dict[str, list[tuple[float, str, int, Bucket]]] = {}
        for bucket in buckets:
            line = self._lines.setdefault(bucket.namespace if self._fair else "", [])
            line.append((*bucket.works[0], 0, bucket))
        self._turns = []
        for namespace, line in self._lines.items():
            heapq.heapify(line)
            self._turns.append((self._share(namespace), *line[0][:2], namespace))
        heapq.heapify(self._turns)

    def _share(self, namespace: str) -> float:
        return self._shares.of(namespace) if self._fair else 0.0

    def next(self) -> tuple[str, Bucket] | None:
        """The key of whose turn it is; None: nobody is left. Stays until `given` or `passed`."""
        turns = self._turns
        while turns:
            namespace = turns[0][3]
            line = self._lines[namespace]
            while line and line[0][3].shape.no is not None:
                heapq.heappop(line)
            if line:
                since_s, key, _, bucket = line[0]
                if turns[0][2] == key:
                    return key, bucket
                heapq.heapreplace(turns, (self._share(namespace), since_s, key, namespace))
            else:
                heapq.heappop(turns)
        return None

    def given(self) -> None:
        """It has its place, and was removed from the queue."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._shares.give(bucket.namespace, bucket.shape.milli)
        self._follow(number, bucket)

    def dropped(self) -> None:
        """It was taken out of the queue without a place."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._follow(number, bucket)

    def passed(self) -> None:
        """It stays where it is; on to the one behind it."""
        _, _, number, bucket = heapq.heappop(self._lines[self._turns[0][3]])
        self._follow(number + 1, bucket)

    def _follow(self, number: int, bucket: Bucket) -> None:
        namespace = self._turns[0][3]
        line = self._lines[namespace]
        if number < len(bucket.works):
            heapq.heappush(line, (*bucket.works[number], number, bucket))
        if line:
            heapq.heapreplace(self._turns, (self._share(namespace), *line[0][:2], namespace))
        else:
            heapq.heappop(self._turns)


def in_turn(
    lines: Mapping[str, list[tuple[float, str]]], milli_of: Callable[[str], int], shares: Shares, *, fair: bool
) -> Iterator[str]:
    """Keys in order when each is given what it asks for; `lines`: namespace -> its (since, key)."""
    if not fair:
        for _, key, namespace in sorted((*each, namespace) for namespace, line in lines.items() for each in line):
            shares.give(namespace, milli_of(key))
            yield key
        return
    turns = []
    for namespace, line in lines.items():
        backwards = sorted(line, reverse=True)
        turns.append((shares.of(namespace), *backwards[-1], namespace, backwards))
    heapq.heapify(turns)
    while turns:
        _, _, key, namespace, line = turns[0]
        line.pop()
        share = shares.give(namespace, milli_of(key))
        if line:
            heapq.heapreplace(turns, (share, *line[-1], namespace, line))
        else:
            heapq.heappop(turns)
        yield key

"""Why GPUs were paid for and held by no pod: the cost of no pod, divided by cause. The causes sum to it.

starting    the node had no pod yet
draining    the node had its last pod behind it
empty       the node had no pod for a while, between two pods, or never
beside      whole GPUs were free on a node with pods: pods were spread, or the rest was too small for what came
parts       other pods held shares or slices of the GPU
host        CPUs and memory
"""

from __future__ import annotations

import bisect
import enum
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.segments import PPM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Cause(enum.StrEnum):
    """Why no pod held it."""

    STARTING = "starting"
    DRAINING = "draining"
    EMPTY = "empty"
    BESIDE = "beside"
    PARTS = "parts"
    HOST = "host"


class Spare(NamedTuple):
    """A time in which no pod held a piece of a node."""

    start_s: int
    end_s: int
    rate: int
    ppm: int
    is_host: bool = False


class NodeHistory(NamedTuple):
    """One node in a window."""

    spare: Sequence[Spare]
    held: Sequence[tuple[int, int]]
    """When pods held GPUs of it, in any order."""
    began: bool
    """Whether the node began within the window: before, it may have had pods."""
    ended: bool


class Fragment(NamedTuple):
    """The cost of one cause."""

    ticks: int = 0
    ppm_s: int = 0

    def plus(self, ticks: int, ppm_s: int) -> Fragment:
        """Return it with more."""
        return Fragment(self.ticks + ticks, self.ppm_s + ppm_s)


def price_causes(nodes: Iterable[NodeHistory]) -> dict[Cause, Fragment]:
    """Return the cost of no pod by cause."""
    found = dict.fromkeys(Cause, Fragment())
    for node in nodes:
        busy = join_spans(node.held)
        starts = [start for start, _ in busy]
        for spare in node.spare:
            if spare.is_host or spare.ppm < PPM:
                cause = Cause.HOST if spare.is_host else Cause.PARTS
                length = spare.end_s - spare.start_s
                found[cause] = found[cause].plus(spare.rate * length, spare.ppm * length)
                continue
            for start_s, end_s, is_busy in _cut(spare, busy, starts):
                cause = Cause.BESIDE if is_busy else _name_empty(node, busy, start_s, end_s)
                length = end_s - start_s
                found[cause] = found[cause].plus(spare.rate * length, spare.ppm * length)
    return found


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _cut(spare: Spare, busy: Sequence[tuple[int, int]], starts: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Return the parts of a spare time, and whether its node had pods then."""
    parts: list[tuple[int, int, bool]] = []
    at_s = spare.start_s
    number = max(bisect.bisect_right(starts, at_s) - 1, 0)
    while at_s < spare.end_s:
        while number < len(busy) and busy[number][1] <= at_s:
            number += 1
        if number == len(busy) or busy[number][0] >= spare.end_s:
            parts.append((at_s, spare.end_s, False))
            break
        first, last = busy[number]
        if first > at_s:
            parts.append((at_s, first, False))
            at_s = first
        end_s = min(last, spare.end_s)
        parts.append((at_s, end_s, True))
        at_s = end_s
    return parts


def _name_empty(node: NodeHistory, busy: Sequence[tuple[int, int]], start_s: int, end_s: int) -> Cause:
    if busy and node.began and end_s <= busy[0][0]:
        return Cause.STARTING
    if busy and node.ended and start_s >= busy[-1][1]:
        return Cause.DRAINING
    return Cause.EMPTY

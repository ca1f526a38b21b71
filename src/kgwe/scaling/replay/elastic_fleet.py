"""A pool of nodes that grows and shrinks with its pods: each pod is placed by the scheduler's own engine.

A node is bought when a pod fits on none that is there, and returned when it was empty for the given time.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.engine import Decision, Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.pod.ranking import Strategy
    from kgwe.scaling.replay.recording import Allocation, Delays

_FIRST_NODES: Final = 16
_PODS: Final = 10_000


class FleetRun(NamedTuple):
    """What a replayed pool needed."""

    node_s: int
    """Seconds for which its nodes were paid, summed."""
    nodes: int
    """Nodes at the same time, at most."""
    launches: int


class ElasticFleet:
    """One pool in simulated time."""

    def __init__(self, gpus: int, strategy: Strategy, delays: Delays, window: tuple[int, int]) -> None:
        self._gpus = gpus
        self._strategy = strategy
        self._delays = delays
        self._window = window
        self._shape = Shape(Wiring(tuple(Slot(bus="") for _ in range(gpus))), "GPU")
        self._grants: dict[int, Grant] = {}
        """By number of the pod."""
        self._pods: list[int] = []
        """Pods on each node."""
        self._emptied: dict[int, int] = {}
        """Empty nodes that are there, with the time since when."""
        self._since: dict[int, int] = {}
        """Nodes that are there, with the time from which they are paid."""
        self._node_s = 0
        self._most = 0
        self._launches = 0
        self._off: list[int] = []
        self._grow(_FIRST_NODES)

    def run(self, allocations: Iterable[Allocation]) -> FleetRun:
        """Place the allocations in the order of their starts, and return what the pool needed."""
        ends: list[tuple[int, int]] = []
        for number, each in enumerate(sorted(allocations, key=lambda one: (one.start_s, one.end_s))):
            while ends and ends[0][0] <= each.start_s:
                self._end(*heapq.heappop(ends))
            self._return_nodes(each.start_s)
            self._place(number, each)
            heapq.heappush(ends, (each.end_s, number))
        while ends:
            self._end(*heapq.heappop(ends))
        self._return_nodes(self._window[1])
        for since_s in self._since.values():
            self._node_s += self._window[1] - since_s
        return FleetRun(self._node_s, self._most, self._launches)

    def _place(self, number: int, allocation: Allocation) -> None:
        gpus = Gpus(count=allocation.gpus) if allocation.gpus else Gpus(milli=allocation.milli)
        request = Request(gpus)
        there = np.fromiter(sorted(self._since), np.intp, len(self._since))
        answer = self._engine.decide(request, candidates=there) if len(there) else None
        if not isinstance(answer, Decision):
            node = self._launch(allocation.start_s)
            answer = self._engine.decide(request, candidates=np.array([node]))
            if not isinstance(answer, Decision):
                raise errors.InvariantBroken(f"{allocation} does not fit on an empty node with {self._gpus} GPUs")
        self._snapshot.commit(answer.grant)
        self._grants[number] = answer.grant
        self._pods[answer.node] += 1
        self._emptied.pop(answer.node, None)

    def _end(self, at_s: int, number: int) -> None:
        grant = self._grants.pop(number)
        self._snapshot.release(grant)
        self._pods[grant.node] -= 1
        if not self._pods[grant.node]:
            self._emptied[grant.node] = at_s

    def _launch(self, at_s: int) -> int:
        if not self._off:
            self._grow(2 * len(self._pods))
        node = heapq.heappop(self._off)
        self._since[node] = max(at_s - self._delays.lead_s, self._window[0])
        self._launches += 1
        self._most = max(self._most, len(self._since))
        return node

    def _return_nodes(self, now_s: int) -> None:
        """Return the nodes that were empty for long enough."""
        tail_s = self._delays.tail_s
        if tail_s is None:
            return
        for node, at_s in list(self._emptied.items()):
            if at_s + tail_s > now_s:
                break  # they are in the order of time
            del self._emptied[node]
            self._node_s += min(at_s + tail_s, self._window[1]) - self._since.pop(node)
            heapq.heappush(self._off, node)

    def _grow(self, size: int) -> None:
        """Make room for more nodes; those that are there keep their pods."""
        first = len(self._pods)
        nodes = (
            Node(f"node-{number}", self._shape, cpu_milli=1 << 40, memory_bytes=1 << 60, pods=_PODS)
            for number in range(size)
        )
        self._snapshot = Snapshot.from_nodes(nodes)
        for grant in self._grants.values():
            self._snapshot.commit(grant)
        self._engine = Engine(self._snapshot, strategy=self._strategy)
        self._pods += [0] * (size - first)
        for node in range(first, size):
            heapq.heappush(self._off, node)


def hold_whole_gpus(allocation: Allocation) -> Allocation:
    """Return the allocation as it would be without shares and slices: a whole GPU for a part of one."""
    if allocation.gpus:
        return allocation
    return replace(allocation, gpus=1, milli=0)


def round_up_parts(allocation: Allocation) -> Allocation:
    """Return the allocation as the engine takes it: all of a GPU is a whole GPU."""
    return hold_whole_gpus(allocation) if allocation.milli >= GPU_MILLI else allocation

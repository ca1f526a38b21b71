"""What a ledger recorded of a time: nodes with their lives and rates, and what pods held on them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Pool(NamedTuple):
    """Nodes that can replace each other."""

    instance_type: str
    model: str
    gpus: int
    """GPUs of one node."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a pod held on one node: whole GPUs, or a part of one GPU."""

    node: str
    start_s: int
    end_s: int
    gpus: int = 0
    milli: int = 0
    owner: str = ""
    """Namespace, kind and name of its workload."""
    ticks: int = 0
    """What it cost."""


@dataclass(frozen=True, slots=True)
class NodeLife:
    """A node while it was paid for, as far as it lies in the recorded time."""

    name: str
    pool: Pool
    is_spot: bool
    is_prepaid: bool
    """Paid in advance, used or not."""
    start_s: int
    end_s: int
    paid_s: int
    """Seconds for which it was paid, without gaps."""
    ticks: int


@dataclass(frozen=True, slots=True)
class Recording:
    """Nodes and allocations of a time."""

    start_s: int
    end_s: int
    nodes: tuple[NodeLife, ...]
    allocations: tuple[Allocation, ...]
    on_demand: Mapping[Pool, int] = field(default_factory=dict)
    """On-demand rates of the price book, for pools of which no on-demand node was recorded."""

    @property
    def ticks(self) -> int:
        """What all nodes cost."""
        return sum(each.ticks for each in self.nodes)

    @property
    def prepaid_ticks(self) -> int:
        """What nodes that are paid in advance cost. It is the same, however pods are placed."""
        return sum(each.ticks for each in self.nodes if each.is_prepaid)

    def find_rate(self, pool: Pool, *, is_spot: bool) -> int | None:
        """Return the mean recorded rate of a pool, in micro-dollars per hour; None if it has none."""
        lives = [each for each in self.nodes if each.pool == pool and each.is_spot == is_spot and not each.is_prepaid]
        seconds = sum(each.paid_s for each in lives)
        if seconds:
            return sum(each.ticks for each in lives) // seconds
        return None if is_spot else self.on_demand.get(pool)

    def measure_delays(self) -> Delays:
        """Return how long nodes were paid for before their first pod and after their last, by the median."""
        held: dict[str, tuple[int, int]] = {}
        for each in self.allocations:
            first, last = held.get(each.node, (each.start_s, each.end_s))
            held[each.node] = min(first, each.start_s), max(last, each.end_s)
        lives = [each for each in self.nodes if each.name in held and not each.is_prepaid]
        leads = [max(held[each.name][0] - each.start_s, 0) for each in lives if each.start_s > self.start_s]
        tails = [max(each.end_s - held[each.name][1], 0) for each in lives if each.end_s < self.end_s]
        return Delays(_find_median(leads), _find_median(tails), len(leads), len(tails))


class Delays(NamedTuple):
    """Seconds for which a node is paid and empty: before its first pod, and before it is returned."""

    lead_s: int = 0
    tail_s: int | None = 0
    """None: nodes are never returned."""
    leads: int = 0
    """Nodes of which the first is known; 0: it is not known, and no delay is assumed."""
    tails: int = 0


def _find_median(values: Iterable[int]) -> int:
    found = list(values)
    return round(statistics.median(found)) if found else 0


def clip(allocations: Iterable[Allocation], start_s: int, end_s: int) -> Iterator[Allocation]:
    """Yield the parts of allocations within a time."""
    for each in allocations:
        first, last = max(each.start_s, start_s), min(each.end_s, end_s)
        if first < last:
            yield replace(each, start_s=first, end_s=last)

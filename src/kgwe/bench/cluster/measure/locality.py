"""The locality of placed gangs: the leaves that each spans, and a lower bound.

one_leaf_share   fraction of completely bound gangs that are inside one leaf
mean_leaves      leaves per gang
max_leaves       leaves of the gang that spans most
ideal_leaves     lower bound over all arrangements of these gangs, see `count_fewest_leaves`
partial_gangs    gangs with some pods bound and others not; always 0 for gang schedulers
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Landed:
    """A gang and the nodes of its pods."""

    pods: int
    gpus: int
    nodes: Sequence[str]

    @property
    def is_whole(self) -> bool:
        return len(self.nodes) == self.pods


class Nearness(msgspec.Struct, frozen=True):
    """The locality of all gangs of one run."""

    whole_gangs: int
    partial_gangs: int
    one_leaf_share: float | None
    mean_leaves: float | None
    ideal_leaves: float | None
    max_leaves: int | None = None


def measure_locality(gangs: Sequence[Landed], leaf_of: Mapping[str, str], free: Mapping[str, int]) -> Nearness:
    """Measure the locality of gangs. `free` is the free GPUs of each node before the first gang."""
    whole = [gang for gang in gangs if gang.is_whole]
    leaves = [len({leaf_of[node] for node in gang.nodes}) for gang in whole]
    return Nearness(
        whole_gangs=len(whole),
        partial_gangs=sum(1 for gang in gangs if gang.nodes and not gang.is_whole),
        one_leaf_share=round(leaves.count(1) / len(leaves), 4) if leaves else None,
        mean_leaves=round(statistics.fmean(leaves), 3) if leaves else None,
        ideal_leaves=round(count_fewest_leaves(whole, leaf_of, free) / len(leaves), 3) if leaves else None,
        max_leaves=max(leaves, default=None),
    )


def count_fewest_leaves(gangs: Sequence[Landed], leaf_of: Mapping[str, str], free: Mapping[str, int]) -> int:
    """Return a lower bound of the leaves that these gangs span in total.

    Each kind of gang is treated as if the others did not exist. Of one kind, at most as many gangs are inside one
    leaf as all leaves hold completely; each other gang needs at least two leaves.
    """
    total = 0
    for (pods, gpus), count in Counter((gang.pods, gang.gpus) for gang in gangs).items():
        room = _count_room(gpus, leaf_of, free)
        least = _leaves_of_one(pods, room)
        alone = sum(slots // pods for slots in room) if least == 1 else count
        total += count * least + max(0, count - alone)
    return total


def _count_room(gpus: int, leaf_of: Mapping[str, str], free: Mapping[str, int]) -> list[int]:
    """Return how many such pods each leaf holds, largest first."""
    room: Counter[str] = Counter()
    for node, cards in free.items():
        room[leaf_of[node]] += cards // gpus
    return sorted(room.values(), reverse=True)


def _leaves_of_one(pods: int, room: Sequence[int]) -> int:
    held = 0
    for number, slots in enumerate(room, start=1):
        held += slots
        if held >= pods:
            return number
    return len(room)

"""How near to each other the pods of a gang ended up, and how near they could have been.

one_leaf_share   gangs inside one leaf, of those that were bound whole
mean_leaves      leaves per gang
max_leaves       of the gang that spans most
ideal_leaves     no arrangement of these gangs has fewer, see `fewest`
partial_gangs    gangs of which some pods were bound and others not: never, where gangs are known
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
    """A gang and where its pods are."""

    pods: int
    gpus: int
    nodes: Sequence[str]

    @property
    def is_whole(self) -> bool:
        return len(self.nodes) == self.pods


class Nearness(msgspec.Struct, frozen=True):
    """Of all gangs of one run."""

    whole_gangs: int
    partial_gangs: int
    one_leaf_share: float | None
    mean_leaves: float | None
    ideal_leaves: float | None
    max_leaves: int | None = None


def nearness(gangs: Sequence[Landed], leaf_of: Mapping[str, str], free: Mapping[str, int]) -> Nearness:
    """`free`: GPUs of every node before the first of these gangs came."""
    whole = [gang for gang in gangs if gang.is_whole]
    leaves = [len({leaf_of[node] for node in gang.nodes}) for gang in whole]
    return Nearness(
        whole_gangs=len(whole),
        partial_gangs=sum(1 for gang in gangs if gang.nodes and not gang.is_whole),
        one_leaf_share=round(leaves.count(1) / len(leaves), 4) if leaves else None,
        mean_leaves=round(statistics.fmean(leaves), 3) if leaves else None,
        ideal_leaves=round(fewest(whole, leaf_of, free) / len(leaves), 3) if leaves else None,
        max_leaves=max(leaves, default=None),
    )


def fewest(gangs: Sequence[Landed], leaf_of: Mapping[str, str], free: Mapping[str, int]) -> int:
    """No arrangement puts these gangs into fewer leaves in all.

    A bound, not an arrangement: every kind of gang is looked at as if the others were not there, and of one kind no
    more are alone in one leaf than all leaves together hold whole; the rest need at least two.
    """
    total = 0
    for (pods, gpus), count in Counter((gang.pods, gang.gpus) for gang in gangs).items():
        room = _room(gpus, leaf_of, free)
        least = _leaves_of_one(pods, room)
        alone = sum(slots // pods for slots in room) if least == 1 else count
        total += count * least + max(0, count - alone)
    return total


def _room(gpus: int, leaf_of: Mapping[str, str], free: Mapping[str, int]) -> list[int]:
    """How many such pods each leaf holds, the roomiest first."""
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

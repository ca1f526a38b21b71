"""A quick forecast of what the following gangs will get, placing them one after the other.

The rule: the tightest leaf that holds the gang, else the fewest leaves of a domain with the least left over; within a
leaf the smallest holes. The forecast is made twice, plainly and with a `LargePodReserve`: gangs of small pods then use
only nodes that hold no large pod, as long as gangs of large pods could use the others. They may take more leaves.

    whole nodes  200    gangs of 12 x 8 GPUs: 16 of them, 192 nodes; 8 nodes are spare
    half nodes   150    gangs of 6 x 4: on half nodes, and on the 8 that are spare

The count is in leaves. A gang that finds no room is priced in leaves too: an additional gang is worth several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import free_capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts

# What a gang counts that waits and finds no room, in leaves: so many for each it would need at least now, and no fewer
# than this. The last gangs that fit often span twice as many as they should, which is worth it.
_MIN_PRICE: Final = 12
_PRICE_PER_LEAF: Final = 6
# The same for a gang that does not wait yet: it may never come.
_EXPECTED_PRICE: Final = 4
_EXPECTED_PRICE_PER_LEAF: Final = 2

#: leaves of each domain of one level, of levels from the lowest to try
Scopes = tuple[tuple[range, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GangDemand:
    """A gang as it is counted here; gangs that are alike share one."""

    kind: int
    pods: int
    scopes: Scopes
    """Where to look when no leaf holds it: the first level that has a domain with room."""
    one_leaf: bool = False
    """It does not start unless one leaf holds it."""


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """What the gangs that follow get, as placed by the quick rule."""

    leaves: int
    """Of the gang itself and of those that find room."""
    refused: int
    """Gangs that wait and find none."""
    price: int
    """Of all that find none, in leaves."""

    @property
    def total(self) -> int:
        return self.leaves + self.price


@dataclass(frozen=True, slots=True)
class LargePodReserve:
    """Room that is kept for the gangs of the largest pods."""

    kind: int
    """Of the largest pods."""
    spare: int
    """How many of them fit beyond those that wait: this much, smaller pods may use up."""

    def is_for_larger_pods(self, capacity: FreeCapacity, kind: int) -> bool:
        return capacity.leaf_states.gpus_per_pod[self.kind] > capacity.leaf_states.gpus_per_pod[kind]

    def update(self, before: FreeCapacity, after: FreeCapacity, kind: int) -> LargePodReserve:
        """What may still be used up once a gang of this kind is placed; for one of the largest pods, room is kept."""
        if not self.is_for_larger_pods(before, kind):
            return self
        used = sum(before.room[self.kind]) - sum(after.room[self.kind])
        return replace(self, spare=self.spare - used)

    def place_gang(self, capacity: FreeCapacity, demand: GangDemand, spare: int) -> tuple[Parts, int] | None:
        """Where a gang of smaller pods goes, and how much it uses up.

        One leaf where that uses up no more than is spare; else several; else nodes that hold no large pod.
        """
        costs = capacity.leaf_states.displacement_table(demand.kind, demand.pods, self.kind)
        ranks = [costs[state] for state in capacity.states]
        best = min(ranks)
        one = (((ranks.index(best), demand.pods),), best // free_capacity.STEP) if best < free_capacity.NEVER else None
        if demand.one_leaf or (one and one[1] <= spare):
            return one
        parts = _split_over_fewest(capacity.room[demand.kind], demand)
        if parts is None:
            return one
        several = parts, self._count_displaced(capacity, demand, parts)
        if several[1] <= spare:
            return several
        rests = capacity.leaf_states.small_node_table(demand.kind, self.kind)
        parts = _split_over_fewest([rests[state] for state in capacity.states], demand)
        return (parts, 0) if parts else one or several

    def _count_displaced(self, capacity: FreeCapacity, demand: GangDemand, parts: Parts) -> int:
        """Large pods that fit no more when these pods are placed in the smallest holes."""
        return sum(
            capacity.leaf_states.count_displaced(capacity.states[leaf], demand.kind, pods, self.kind)
            for leaf, pods in parts
        )


class Forecast:
    """The gangs that follow, and what it costs when one of them finds no room."""

    def __init__(self, capacity: FreeCapacity, following: Sequence[GangDemand], waiting: int) -> None:
        """The first `waiting` wait already, the others usually come."""
        self.following = following
        self._least = count_least_leaves(capacity, following)
        self._waiting = waiting
        self._prices = [_price_refusal(least, waits=number < waiting) for number, least in enumerate(self._least)]

    def find_reserve(self, capacity: FreeCapacity, demand: GangDemand) -> LargePodReserve | None:
        """What to keep for the largest pods of the gang and of those that follow; None: all pods are alike."""
        gpus, gangs = capacity.leaf_states.gpus_per_pod, (demand, *self.following)
        total = [sum(room) for room in capacity.room]
        kinds = {each.kind for each in gangs if total[each.kind] >= each.pods}
        if not kinds:
            return None
        wide = max(kinds, key=lambda kind: (gpus[kind], -kind))
        if all(gpus[each.kind] >= gpus[wide] for each in gangs):
            return None
        spare = total[wide]
        for each in gangs:
            if each.kind == wide and each.pods <= spare:
                spare -= each.pods
        return LargePodReserve(wide, spare)

    def predict_leaves(
        self, capacity: FreeCapacity, leaves: int, *, keep: LargePodReserve | None = None, limit: int | None = None
    ) -> ForecastResult:
        """What those that follow get; beyond `limit` it is not worked out.

        `leaves`: of the gang itself. Leaves the capacity full.
        """
        count = price = 0
        rest = sum(self._least)
        refused: set[GangDemand] = set()
        gpus = capacity.leaf_states.gpus_per_pod
        wide, spare = (gpus[keep.kind], keep.spare) if keep else (0, 0)
        for number, demand in enumerate(self.following):
            rest -= self._least[number]
            parts = None
            if demand in refused:
                pass
            elif keep and gpus[demand.kind] < wide:
                found = keep.place_gang(capacity, demand, spare)
                if found:
                    parts = found[0]
                    spare -= found[1]
            else:
                parts = place_gang(capacity, demand)
            if parts is None:
                refused.add(demand)
                count += number < self._waiting
                price += self._prices[number]
            else:
                leaves += len(parts)
                capacity.place_pods(demand.kind, parts, tight=True)
            if limit is not None and leaves + price + rest > limit:
                return ForecastResult(leaves + rest, count, price)
        return ForecastResult(leaves, count, price)


def _price_refusal(least: int, *, waits: bool) -> int:
    """What a gang counts that finds no room, and needs at least so many leaves."""
    return max(_MIN_PRICE, _PRICE_PER_LEAF * least) if waits else _EXPECTED_PRICE + _EXPECTED_PRICE_PER_LEAF * least


def count_least_leaves(capacity: FreeCapacity, following: Sequence[GangDemand]) -> list[int]:
    """No less than what each of those that follow needs: room only shrinks."""
    known: dict[GangDemand, int] = {}
    for demand in following:
        if demand not in known:
            room = capacity.room[demand.kind]
            known[demand] = free_capacity.count_fewest_leaves(room, range(len(room)), demand.pods) or 1
    return [known[demand] for demand in following]


def place_gang(capacity: FreeCapacity, demand: GangDemand) -> Parts | None:
    """The tightest leaf, else the fewest leaves of a domain with the least left over."""
    room = capacity.room[demand.kind]
    if max(room) >= demand.pods:
        tightest = min([each for each in room if each >= demand.pods])
        return ((room.index(tightest), demand.pods),)
    return None if demand.one_leaf else _split_over_fewest(room, demand)


def _split_over_fewest(room: Sequence[int], demand: GangDemand) -> Parts | None:
    """The fewest leaves of the first level that has a domain with room."""
    for domains in demand.scopes:
        found = [parts for leaves in domains if (parts := free_capacity.split_over_leaves(room, leaves, demand.pods))]
        if found:
            return min(found, key=len)
    return None

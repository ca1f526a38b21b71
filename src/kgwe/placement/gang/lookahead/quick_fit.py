"""Forecasts where the following gangs will be placed, by a quick rule.

The rule takes the tightest leaf that holds the gang. If there is none, it takes the fewest leaves of a domain, with the
least room left over. Inside a leaf, nodes with the least room are filled first.

The forecast is made twice, without and with a `LargePodReserve`. With it, gangs of small pods use only nodes that hold
no large pod, as long as gangs of large pods can use the others. They may take more leaves.

    whole nodes  200    gangs of 12 x 8 GPUs: 16 of them, 192 nodes; 8 nodes are spare
    half nodes   150    gangs of 6 x 4: on half nodes, and on the 8 that are spare

The result is a number of leaves. A gang that finds no room counts as several leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import free_capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts

# The price of a waiting gang that finds no room, in leaves: so many for each leaf it needs at least, and no less than
# the minimum. The last gangs that fit often span twice as many leaves as they should, which is acceptable.
_MIN_PRICE: Final = 12
_PRICE_PER_LEAF: Final = 6
# The price of an expected gang, which may never be created.
_EXPECTED_PRICE: Final = 4
_EXPECTED_PRICE_PER_LEAF: Final = 2

#: per level, from the lowest to try, the leaves of each domain
Scopes = tuple[tuple[range, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GangDemand:
    """What a gang needs; equal gangs share one object."""

    kind: int
    pods: int
    scopes: Scopes
    """The levels to try, in order, if no leaf holds the gang."""
    one_leaf: bool = False
    """Whether one leaf must hold it."""


@dataclass(frozen=True, slots=True)
class ForecastResult:
    """The result of placing the following gangs by the quick rule."""

    leaves: int
    """Leaves of the gang itself and of the following gangs that find room."""
    refused: int
    """Waiting gangs that find no room."""
    price: int
    """The price of all gangs that find no room, in leaves."""

    @property
    def total(self) -> int:
        return self.leaves + self.price


@dataclass(frozen=True, slots=True)
class LargePodReserve:
    """Room that is reserved for the gangs with the largest pods."""

    kind: int
    """The kind of the largest pods."""
    spare: int
    """How many of them fit in addition to those that follow; smaller pods may use this room."""

    def is_for_larger_pods(self, capacity: FreeCapacity, kind: int) -> bool:
        return capacity.leaf_states.gpus_per_pod[self.kind] > capacity.leaf_states.gpus_per_pod[kind]

    def after_placing(self, before: FreeCapacity, after: FreeCapacity, kind: int) -> LargePodReserve:
        """The reserve after a gang of this kind is placed; a gang of the largest pods does not change it."""
        if not self.is_for_larger_pods(before, kind):
            return self
        used = sum(before.room[self.kind]) - sum(after.room[self.kind])
        return replace(self, spare=self.spare - used)

    def place_gang(self, capacity: FreeCapacity, demand: GangDemand, spare: int) -> tuple[Parts, int] | None:
        """The place of a gang of smaller pods, and how many large pods no longer fit after that.

        It is one leaf if that displaces no more than `spare`. Else it is several, else nodes that hold no large pod.
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
        """Large pods that no longer fit after these pods are placed on the nodes with the least room first."""
        return sum(
            capacity.leaf_states.count_displaced(capacity.states[leaf], demand.kind, pods, self.kind)
            for leaf, pods in parts
        )


class Forecast:
    """The following gangs, with the price of each if it finds no room."""

    def __init__(self, capacity: FreeCapacity, following: Sequence[GangDemand], waiting: int) -> None:
        """The first `waiting` gangs wait already, the others are expected."""
        self.following = following
        self._least = count_least_leaves(capacity, following)
        self._waiting = waiting
        self._prices = [_price_refusal(least, waits=number < waiting) for number, least in enumerate(self._least)]

    def find_reserve(self, capacity: FreeCapacity, demand: GangDemand) -> LargePodReserve | None:
        """The room to reserve for the largest pods of all gangs; None: all pods are equally large."""
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
        self, capacity: FreeCapacity, leaves: int, *, reserve: LargePodReserve | None = None, limit: int | None = None
    ) -> ForecastResult:
        """Place the following gangs on the capacity, which this changes; stop when the total exceeds `limit`.

        `leaves`: those of the gang itself; `reserve`: the room to reserve.
        """
        waiting_refused = price = 0
        rest = sum(self._least)
        refused: set[GangDemand] = set()
        gpus = capacity.leaf_states.gpus_per_pod
        wide, spare = (gpus[reserve.kind], reserve.spare) if reserve else (0, 0)
        for number, demand in enumerate(self.following):
            rest -= self._least[number]
            parts = None
            if demand in refused:
                pass
            elif reserve and gpus[demand.kind] < wide:
                found = reserve.place_gang(capacity, demand, spare)
                if found:
                    parts = found[0]
                    spare -= found[1]
            else:
                parts = place_gang(capacity, demand)
            if parts is None:
                refused.add(demand)
                waiting_refused += number < self._waiting
                price += self._prices[number]
            else:
                leaves += len(parts)
                capacity.place_pods(demand.kind, parts, tight=True)
            if limit is not None and leaves + price + rest > limit:
                return ForecastResult(leaves + rest, waiting_refused, price)
        return ForecastResult(leaves, waiting_refused, price)


def _price_refusal(least: int, *, waits: bool) -> int:
    """The price of a gang that finds no room and needs at least so many leaves."""
    return max(_MIN_PRICE, _PRICE_PER_LEAF * least) if waits else _EXPECTED_PRICE + _EXPECTED_PRICE_PER_LEAF * least


def count_least_leaves(capacity: FreeCapacity, following: Sequence[GangDemand]) -> list[int]:
    """The least number of leaves that each gang needs; it only grows, because room only shrinks."""
    known: dict[GangDemand, int] = {}
    for demand in following:
        if demand not in known:
            room = capacity.room[demand.kind]
            known[demand] = free_capacity.count_fewest_leaves(room, range(len(room)), demand.pods) or 1
    return [known[demand] for demand in following]


def place_gang(capacity: FreeCapacity, demand: GangDemand) -> Parts | None:
    """The tightest leaf; or the fewest leaves of a domain, with the least room left over. None: no room."""
    room = capacity.room[demand.kind]
    if max(room, default=0) >= demand.pods:
        tightest = min([each for each in room if each >= demand.pods])
        return ((room.index(tightest), demand.pods),)
    return None if demand.one_leaf else _split_over_fewest(room, demand)


def _split_over_fewest(room: Sequence[int], demand: GangDemand) -> Parts | None:
    """The fewest leaves of a domain of the first level that has one with room."""
    for domains in demand.scopes:
        found = [parts for leaves in domains if (parts := free_capacity.split_over_leaves(room, leaves, demand.pods))]
        if found:
            return min(found, key=len)
    return None

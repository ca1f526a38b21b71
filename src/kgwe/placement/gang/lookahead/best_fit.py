"""Places gangs by the published best-fit rule, as the baseline of joint plans.

The rule takes the tightest leaf that holds the gang. If there is none, it takes the tightest domain of the lowest level
that has one with room. If no domain has room, it takes the domains of the highest level with the most room. Of their
leaves it fills those with the most room, then the tightest that holds the rest. It fills the nodes of those leaves in
the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts
    from kgwe.placement.gang.lookahead.quick_fit import GangDemand, Scopes


class BestFit:
    """Finds places for gangs, one by one; books nothing."""

    def __init__(self, levels: Scopes) -> None:
        """`levels`: per level above the leaves, the lowest first, the leaves of each domain."""
        self._levels = levels

    def place_gang(self, capacity: FreeCapacity, gang: GangDemand) -> Parts | None:
        room = capacity.room[gang.kind]
        if max(room, default=0) >= gang.pods:
            return ((room.index(min([each for each in room if each >= gang.pods])), gang.pods),)
        chosen = None if gang.one_leaf else self._choose_leaves(room, gang)
        return _fill_nodes(capacity, gang, chosen) if chosen else None

    def _choose_leaves(self, room: Sequence[int], gang: GangDemand) -> list[int] | None:
        top = len(gang.scopes[-1])
        for domains in self._levels:
            if len(domains) < top:
                break
            totals = _sum_by_domain(room, domains)
            holding = [(total, number) for number, total in enumerate(totals) if total >= gang.pods]
            if holding:
                return _choose_largest(room, domains[min(holding)[1]], gang.pods)
        if top > 1 or sum(room) < gang.pods:
            return None
        highest = self._levels[-1] if self._levels else ()
        spines = _choose_largest(_sum_by_domain(room, highest), range(len(highest)), gang.pods)
        return _choose_largest(room, [leaf for spine in sorted(spines) for leaf in highest[spine]], gang.pods)


def _sum_by_domain(room: Sequence[int], domains: Iterable[range]) -> list[int]:
    return [sum(room[leaves.start : leaves.stop]) for leaves in domains]


def _choose_largest(room: Sequence[int], among: Iterable[int], pods: int) -> list[int]:
    """The entries with the most room; the last one is the tightest that holds the rest."""
    order = sorted(among, key=lambda each: (-room[each], each))
    for number, each in enumerate(order):
        if room[each] >= pods:
            return [*order[:number], min(order[number:], key=lambda at: (room[at] < pods, room[at], at))]
        pods -= room[each]
    return order


def _fill_nodes(capacity: FreeCapacity, gang: GangDemand, leaves: Iterable[int]) -> Parts:
    """Pods per leaf if the nodes with the most room of all these leaves are filled first."""
    nodes = [
        (room, leaf, count)
        for leaf in sorted(leaves)
        for room, count in capacity.leaf_states.count_by_room(capacity.states[leaf], gang.kind)
    ]
    nodes.sort(key=lambda each: (-each[0], each[1]))
    parts: dict[int, int] = {}
    pods = gang.pods
    for number, (room, leaf, count) in enumerate(nodes):
        full = min(count, pods // room)
        if full:
            parts[leaf] = parts.get(leaf, 0) + full * room
            pods -= full * room
        if not pods:
            break
        if full < count:
            last = min(nodes[number:], key=lambda each: (each[0] < pods, each[0], each[1]))[1]
            parts[last] = parts.get(last, 0) + pods
            break
    return tuple(parts.items())

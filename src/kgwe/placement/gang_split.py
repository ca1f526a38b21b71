"""How many pods go where: what every domain can take, and how a number is divided over the children of a domain.

Pods are counted in *units* wherever a segment demands it: inside a leaf that must hold whole groups of four, room for
eleven is room for eight. So the capacity of a domain is the sum of its children's, rounded down to the unit of its
level, and a number that is a multiple of the unit divides into multiples all the way down. With ranks in tree order,
every group of consecutive ranks then lies inside one domain, by construction.

    capacity, segments of 4 in a leaf        12 pods over leaves with room 10 and 10
      spine      8  (not 8 + 3)                6 + 6, not 10 + 2
      leaves   8    0                        … over 10, 9 and 4: 6 + 6 of the first two, not 10 + 2 of the tightest
      nodes   5 6   3                        … over 10 and 4: 8 + 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang_request import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang_request import Role
    from kgwe.placement.ladder import Ladder

    Ints = NDArray[np.int64]


def units(ladder: Ladder, role: Role) -> list[int]:
    """Per rung, the number that every domain's pods are a multiple of."""
    levels = [(ladder.index(segment.level), segment.size) for segment in role.segments]
    return [max((size for rung, size in levels if rung <= number), default=1) for number in range(len(ladder.rungs))]


def capacities(ladder: Ladder, room: Ints, unit: Sequence[int], top: int, per_leaf: Ints | None = None) -> list[Ints]:
    """Per rung up to `top`, how many pods each domain takes; `per_leaf`: per place, the most that its leaf may take."""
    leaf_rung = ladder.whole_leaf_rung
    if per_leaf is not None and leaf_rung is None:
        room, per_leaf = _limit_pods(room, ladder.leaf, per_leaf), None
    found: list[Ints] = []
    for number in range(top + 1):
        rung = ladder.rungs[number]
        sums = room
        if number:
            children = rung.children[:-1]
            sums = np.add.reduceat(found[-1], children) if len(children) else np.zeros(0, np.int64)
        if per_leaf is not None and leaf_rung is not None and number <= leaf_rung:
            sums = np.minimum(sums, per_leaf[rung.starts[:-1]])
        found.append(sums // unit[number] * unit[number])
    return found


def _limit_pods(room: Ints, leaf: Ints, per_leaf: Ints) -> Ints:
    """Room when leaves that are no rung may take at most so many pods: on the nodes with the most room."""
    order = np.lexsort((-room, leaf))
    total = np.cumsum(room[order]) - room[order]
    first = np.searchsorted(leaf[order], leaf[order])
    before = total - total[first]
    out = np.zeros_like(room)
    out[order] = np.clip(per_leaf[order] - before, 0, room[order])
    return out


def limit_nodes(room: Ints, leaf: Ints, most: int, used: NDArray[np.bool_]) -> Ints:
    """Room when a leaf may give at most that many nodes: those used already, then those with the most room."""
    order = np.lexsort((-room, ~used, leaf))
    begins = np.concatenate(([True], leaf[order][1:] != leaf[order][:-1])) if len(room) else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(room)), 0))
    within = np.arange(len(room)) - first < most
    out = np.zeros_like(room)
    out[order[within]] = room[order[within]]
    return out


def spread(
    ladder: Ladder,
    capacity: Sequence[Ints],
    unit: Sequence[int],
    at: tuple[int, int],
    count: int,
    *,
    strategy: Strategy = Strategy.CONSOLIDATED,
) -> Ints:
    """Per place, how many of `count` pods go there when the domain `at` (rung, domain) takes them all."""
    rung, domain = at
    wanted = {domain: count}
    for number in range(rung, 0, -1):
        children = ladder.rungs[number].children
        below: dict[int, int] = {}
        for parent, pods in wanted.items():
            first = int(children[parent])
            room = capacity[number - 1][first : int(children[parent + 1])] // unit[number - 1]
            shares = divide(room, pods // unit[number - 1], strategy, of_nodes=number == 1)
            for child in np.flatnonzero(shares).tolist():
                below[first + child] = int(shares[child]) * unit[number - 1]
        wanted = below
    loads = np.zeros(len(ladder.node), np.int64)
    loads[list(wanted)] = list(wanted.values())
    return loads


def divide(room: Ints, count: int, strategy: Strategy = Strategy.CONSOLIDATED, *, of_nodes: bool = False) -> Ints:
    """Divide a number over children with that much room each; their room together is enough."""
    if int(room.sum()) == count:
        return room
    if len(room) == 1:
        return np.array([count], np.int64)
    if strategy is Strategy.PACK:
        return _smallest_first(room, count)
    if strategy is Strategy.DISTRIBUTED or (strategy is Strategy.BALANCED and of_nodes):
        return _evenly(room, np.argsort(room, kind="stable"), count)
    return _over_fewest(room, count)


def _over_fewest(room: Ints, count: int) -> Ints:
    """The fewest children; of those sets the one that is divided most evenly; of those the one with the least room."""
    ascending = np.argsort(room, kind="stable")
    largest = np.cumsum(room[ascending][::-1])
    number = int(np.searchsorted(largest, count)) + 1
    share, extra = divmod(count, number)
    roomy = ascending[room[ascending] > share][:extra]
    enough = ascending[room[ascending] >= share]
    others = enough[~np.isin(enough, roomy)][: number - extra]
    if len(roomy) < extra or len(others) < number - extra:
        return _evenly(room, ascending[-number:], count)
    out = np.zeros(len(room), np.int64)
    out[others] = share
    out[roomy] = share + 1
    return out


def _evenly(room: Ints, ascending: NDArray[np.intp], count: int) -> Ints:
    """As even as the room allows: the small ones are filled, the others share the rest."""
    out = np.zeros(len(room), np.int64)
    left = len(ascending)
    for child in ascending.tolist():
        out[child] = min(int(room[child]), count // left)
        count -= int(out[child])
        left -= 1
    return out


def _smallest_first(room: Ints, count: int) -> Ints:
    """Fill up the smallest holes."""
    ascending = np.argsort(room, kind="stable")
    before = np.cumsum(room[ascending]) - room[ascending]
    out = np.zeros(len(room), np.int64)
    out[ascending] = np.clip(count - before, 0, room[ascending])
    return out

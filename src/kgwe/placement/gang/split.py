"""How many pods go where: what every domain can take, and how a number is divided over the children of a domain.

Pods are counted in *units* wherever a segment demands it: inside a leaf that must hold whole groups of four, room for
eleven is room for eight. So the capacity of a domain is the sum of its children's, rounded down to the unit of its
level, and a number that is a multiple of the unit divides into multiples all the way down. With ranks in tree order,
every group of consecutive ranks then lies inside one domain, by construction.

    capacity, segments of 4 in a leaf        12 pods over leaves with room 10 and 10
      spine      8  (not 8 + 3)                10 + 2: 20 pairs of pods are apart; with 6 + 6 it is 36
      leaves   8    0                        … over 10, 9 and 4: 10 + 2 of the tightest that holds two
      nodes   5 6   3                        … over 9, 7, 5: 9 + 3, the 3 with the 5

Leaves are chosen from all that the domain has, whichever spines they belong to: the fewest that hold the number. Over
the nodes of a leaf the pods are divided evenly, as ever over the fewest: a node whose cards are used in part brings a
part of its network, and the ring is as fast as its slowest step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.request import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.gang.request import Role

    Ints = NDArray[np.int64]


def segment_units(table: LevelTable, role: Role) -> list[int]:
    """Per level, the number that every domain's pods are a multiple of."""
    levels = [(table.find_level(segment.level), segment.size) for segment in role.segments]
    return [max((size for level, size in levels if level <= number), default=1) for number in range(len(table.levels))]


def sum_capacities(
    table: LevelTable, room: Ints, unit: Sequence[int], top: int, per_leaf: Ints | None = None
) -> list[Ints]:
    """Per level up to `top`, how many pods each domain takes; `per_leaf`: per place, the limit of its leaf."""
    leaf_level = table.whole_leaf_level
    if per_leaf is not None and leaf_level is None:
        room, per_leaf = _limit_pods(room, table.leaf, per_leaf), None
    found: list[Ints] = []
    for number in range(top + 1):
        domains = table.levels[number]
        sums = room
        if number:
            children = domains.children[:-1]
            sums = np.add.reduceat(found[-1], children) if len(children) else np.zeros(0, np.int64)
        if per_leaf is not None and leaf_level is not None and number <= leaf_level:
            sums = np.minimum(sums, per_leaf[domains.starts[:-1]])
        found.append(sums // unit[number] * unit[number])
    return found


def _limit_pods(room: Ints, leaf: Ints, per_leaf: Ints) -> Ints:
    """Room when leaves that are no level may take at most so many pods: on the nodes with the most room."""
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


def split_pods(
    table: LevelTable,
    capacity: Sequence[Ints],
    unit: Sequence[int],
    at: tuple[int, int],
    count: int,
    *,
    strategy: Strategy = Strategy.CONSOLIDATED,
) -> Ints:
    """Per place, how many of `count` pods go there when the domain `at` (level, domain) takes them all."""
    upper, domain = at
    wanted = {domain: count}
    for lower in _split_levels(table, unit, upper, strategy):
        below: dict[int, int] = {}
        for parent, pods in wanted.items():
            first, last = child_range(table, upper, parent, lower)
            room = capacity[lower][first:last] // unit[lower]
            shares = divide_pods(room, pods // unit[lower], strategy, of_nodes=not lower)
            for child in np.flatnonzero(shares).tolist():
                below[first + child] = int(shares[child]) * unit[lower]
        wanted, upper = below, lower
    loads = np.zeros(len(table.node), np.int64)
    loads[list(wanted)] = list(wanted.values())
    return loads


def _split_levels(table: LevelTable, unit: Sequence[int], level: int, strategy: Strategy) -> Iterator[int]:
    """The levels on which a number is divided, from below this one down to the nodes.

    Leaves are divided over directly, unless a segment binds pods to a domain between.
    """
    leaf = table.leaf_level
    while level:
        level -= 1
        if strategy is Strategy.CONSOLIDATED:
            while level > leaf and unit[level - 1] == unit[level]:
                level -= 1
        yield level


def child_range(table: LevelTable, upper: int, domain: int, lower: int) -> tuple[int, int]:
    """The first domain of a lower level inside this one, and the first behind it."""
    inside, starts = table.levels[upper].place_range(domain), table.levels[lower].starts
    first, last = np.searchsorted(starts, (inside.start, inside.stop)).tolist()
    return first, last


def count_leaves(table: LevelTable, capacity: Sequence[Ints], level: int, count: int) -> Ints:
    """Per domain of a level, the fewest leaves of it that hold so many pods."""
    leaf = min(table.leaf_level, level)
    borders = np.searchsorted(table.levels[leaf].starts, table.levels[level].starts)
    domain = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
    room = capacity[leaf][np.lexsort((-capacity[leaf], domain))]
    before = np.cumsum(room) - room
    begun = before - before[borders[:-1]][domain] if len(room) else before
    return np.add.reduceat((begun < count) & (room > 0), borders[:-1], dtype=np.int64)


def divide_pods(room: Ints, count: int, strategy: Strategy = Strategy.CONSOLIDATED, *, of_nodes: bool = False) -> Ints:
    """Divide a number over children with that much room each; their room together is enough."""
    if int(room.sum()) == count:
        return room
    if len(room) == 1:
        return np.array([count], np.int64)
    if strategy is Strategy.PACK:
        return fill_smallest_first(room, count)
    if strategy is Strategy.DISTRIBUTED or (strategy is Strategy.BALANCED and of_nodes):
        return _divide_evenly(room, np.argsort(room, kind="stable"), count)
    if strategy is Strategy.BALANCED or of_nodes:
        return _divide_evenly_over_fewest(room, count)
    return _fill_fewest(room, count)


def _fill_fewest(room: Ints, count: int) -> Ints:
    """The largest children are filled, the rest goes to the tightest: the fewest, with the fewest pairs apart."""
    ascending = np.argsort(room, kind="stable")
    largest = np.cumsum(room[ascending][::-1])
    filled = ascending[::-1][: int(np.searchsorted(largest, count))]
    out = np.zeros(len(room), np.int64)
    out[filled] = room[filled]
    rest = count - int(out.sum())
    others = ascending[: len(ascending) - len(filled)]
    out[others[np.searchsorted(room[others], rest)]] = rest
    return out


def _divide_evenly_over_fewest(room: Ints, count: int) -> Ints:
    """The fewest children; of those sets the one that is divided most evenly; of those the one with the least room."""
    ascending = np.argsort(room, kind="stable")
    largest = np.cumsum(room[ascending][::-1])
    number = int(np.searchsorted(largest, count)) + 1
    share, extra = divmod(count, number)
    roomy = ascending[room[ascending] > share][:extra]
    enough = ascending[room[ascending] >= share]
    others = enough[~np.isin(enough, roomy)][: number - extra]
    if len(roomy) < extra or len(others) < number - extra:
        return _divide_evenly(room, ascending[-number:], count)
    out = np.zeros(len(room), np.int64)
    out[others] = share
    out[roomy] = share + 1
    return out


def _divide_evenly(room: Ints, ascending: NDArray[np.intp], count: int) -> Ints:
    """As even as the room allows: the small ones are filled, the others share the rest."""
    out = np.zeros(len(room), np.int64)
    left = len(ascending)
    for child in ascending.tolist():
        out[child] = min(int(room[child]), count // left)
        count -= int(out[child])
        left -= 1
    return out


def fill_smallest_first(room: Ints, count: int) -> Ints:
    """Fill up the smallest holes."""
    ascending = np.argsort(room, kind="stable")
    before = np.cumsum(room[ascending]) - room[ascending]
    out = np.zeros(len(room), np.int64)
    out[ascending] = np.clip(count - before, 0, room[ascending])
    return out

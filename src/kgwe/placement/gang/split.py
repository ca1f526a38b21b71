"""Counts the pods that every domain can take, and splits pods over the children of a domain.

Segments require that pods are counted in *units*. A leaf that must hold whole groups of four and has room for eleven
takes eight. So the capacity of a domain is the sum over its children, rounded down to the unit of its level. A multiple
of the unit is divided into multiples on every level below. With ranks in tree order, every group of consecutive ranks
then lies inside one domain.

    capacity, segments of 4 in a leaf        12 pods over leaves with room 10 and 10
      spine      8  (not 8 + 3)                10 + 2: 20 pairs of pods are apart; 6 + 6: 36 pairs
      leaves   8    0                        … over 10, 9 and 4: 10 + 2, the 2 in the leaf with 4
      nodes   5 6   3                        … over 9, 7 and 5: 9 + 3, the 3 in the leaf with 5

The fewest leaves that hold the pods are chosen from all leaves of the domain, whichever spines they belong to. Inside
a leaf the pods are divided evenly over the fewest nodes. A node whose GPUs are used in part contributes only a part of
its network, and the ring is as fast as its slowest step.
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
    """Per level, the unit: every domain takes a multiple of so many pods."""
    levels = [(table.find_level(segment.level), segment.size) for segment in role.segments]
    return [max((size for level, size in levels if level <= number), default=1) for number in range(len(table.levels))]


def sum_capacities(
    table: LevelTable, room: Ints, unit: Sequence[int], top: int, per_leaf: Ints | None = None
) -> list[Ints]:
    """Per level up to `top`, how many pods each domain takes.

    `room`: per place, the pods that fit; `per_leaf`: per place, the most pods of its leaf.
    """
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
    """Room under a limit of pods per leaf, if leaves are not a level: nodes with the most room come first."""
    order = np.lexsort((-room, leaf))
    total = np.cumsum(room[order]) - room[order]
    first = np.searchsorted(leaf[order], leaf[order])
    before = total - total[first]
    out = np.zeros_like(room)
    out[order] = np.clip(per_leaf[order] - before, 0, room[order])
    return out


def limit_nodes(room: Ints, leaf: Ints, most: int, used: NDArray[np.bool_]) -> Ints:
    """Room under a limit of nodes per leaf: nodes already used come first, then those with the most room."""
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
    """Per place, its number of the `count` pods if the domain `at` (level, domain) takes all of them."""
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
    """The levels on which pods are divided, from below this one down to the nodes.

    Levels above the leaves are skipped, unless a segment binds pods to one of their domains.
    """
    leaf = table.leaf_level
    while level:
        level -= 1
        if strategy is Strategy.CONSOLIDATED:
            while level > leaf and unit[level - 1] == unit[level]:
                level -= 1
        yield level


def child_range(table: LevelTable, upper: int, domain: int, lower: int) -> tuple[int, int]:
    """The domains of a lower level inside this domain: the first, and the first after them."""
    inside, starts = table.levels[upper].place_range(domain), table.levels[lower].starts
    first, last = np.searchsorted(starts, (inside.start, inside.stop)).tolist()
    return first, last


def count_leaves(table: LevelTable, capacity: Sequence[Ints], level: int, count: int) -> Ints:
    """Per domain of a level, the fewest of its leaves that hold so many pods."""
    leaf = min(table.leaf_level, level)
    borders = np.searchsorted(table.levels[leaf].starts, table.levels[level].starts)
    domain = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
    room = capacity[leaf][np.lexsort((-capacity[leaf], domain))]
    before = np.cumsum(room) - room
    begun = before - before[borders[:-1]][domain] if len(room) else before
    return np.add.reduceat((begun < count) & (room > 0), borders[:-1], dtype=np.int64)


def divide_pods(room: Ints, count: int, strategy: Strategy = Strategy.CONSOLIDATED, *, of_nodes: bool = False) -> Ints:
    """Divide pods over children with room for so many each; their total room must be enough."""
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
    """Use the fewest children: fill the largest, and put the rest into the tightest child that holds it.

    This also leaves the fewest pairs of pods in different children.
    """
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
    """Use the fewest children, divide as evenly as possible, and prefer children with little room."""
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
    """Divide as evenly as the room allows: small children are filled, the others share the rest."""
    out = np.zeros(len(room), np.int64)
    left = len(ascending)
    for child in ascending.tolist():
        out[child] = min(int(room[child]), count // left)
        count -= int(out[child])
        left -= 1
    return out


def fill_smallest_first(room: Ints, count: int) -> Ints:
    """Fill the children with the least room first."""
    ascending = np.argsort(room, kind="stable")
    before = np.cumsum(room[ascending]) - room[ascending]
    out = np.zeros(len(room), np.int64)
    out[ascending] = np.clip(count - before, 0, room[ascending])
    return out

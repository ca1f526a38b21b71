"""Published and simple rules that place a gang on leaves, for comparison. They use GPU counts only, without
constraints.

best fit    Kueue's rule for a preferred level: the tightest leaf that holds the gang; else the tightest spine, else
            the spines with most room; then from all their leaves those with most room first, the last one the
            tightest that holds the rest; and from all the nodes of those leaves likewise
even        the tightest domain of the lowest level that holds the gang; the fewest children, evenly, level by level
first fit   the first leaf that holds the gang, else the first spine, else the first nodes; nodes in their order
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.gang import split
from kgwe.placement.gang.request import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: weights of `DomainWeights` that count if no ring and no history is known
_AVAILABILITY: Final = 40
_UTILISATION: Final = 20


class Grid:
    """Nodes in leaves in spines, in order; `free` changes as gangs are placed."""

    def __init__(self, free: Ints, cards: int, per_leaf: int, per_spine: int) -> None:
        self.free = free.copy()
        self.cards = cards
        self.leaf = np.arange(len(free)) // per_leaf
        self.spine = np.arange(len(free)) // per_spine
        self.spine_of_leaf = self.spine[::per_leaf]

    def place(self, rule: Callable[[Grid, Ints, int], Ints], pods: int, gpus: int) -> list[int] | None:
        """Place a gang and return the node of each pod, or None if there is no room."""
        slots = self.free // gpus
        if int(slots.sum()) < pods:
            return None
        loads = rule(self, slots, pods)
        self.free -= loads * gpus
        nodes: list[int] = np.repeat(np.arange(len(loads)), loads).tolist()
        return nodes


def best_fit(grid: Grid, slots: Ints, pods: int) -> Ints:
    by_leaf, by_spine = np.bincount(grid.leaf, slots).astype(int), np.bincount(grid.spine, slots).astype(int)
    leaf = _find_tightest(by_leaf, pods)
    if leaf is not None:
        chosen = {leaf}
    else:
        spine = _find_tightest(by_spine, pods)
        spines = {spine} if spine is not None else set(_largest_first(by_spine, range(len(by_spine)), pods))
        leaves = [at for at, of in enumerate(grid.spine_of_leaf.tolist()) if of in spines]
        chosen = set(_largest_first(by_leaf, leaves, pods))
    nodes = np.flatnonzero(np.isin(grid.leaf, list(chosen))).tolist()
    loads = np.zeros(len(slots), np.int64)
    for node, count in _largest_first(slots, nodes, pods).items():
        loads[node] = count
    return loads


def spread_evenly(grid: Grid, slots: Ints, pods: int) -> Ints:
    loads = np.zeros(len(slots), np.int64)
    for domain in (grid.leaf, grid.spine, np.zeros_like(grid.leaf)):
        room = np.bincount(domain, slots).astype(np.int64)
        if room.max() >= pods:
            holds = np.flatnonzero(room >= pods)
            used = 1 - np.bincount(domain, grid.free) / (np.bincount(domain) * grid.cards)
            score = _AVAILABILITY * pods / room[holds] + _UTILISATION * used[holds]
            inside = domain == holds[int(np.argmax(score))]
            _share_evenly(grid, slots, loads, inside, pods)
            break
    return loads


def first_fit(grid: Grid, slots: Ints, pods: int) -> Ints:
    inside = np.ones(len(slots), np.bool_)
    for domain in (grid.leaf, grid.spine):
        room = np.bincount(domain, slots)
        if room.max() >= pods:
            inside = domain == int(np.argmax(room >= pods))
            break
    own = np.where(inside, slots, 0)
    loads: Ints = np.clip(pods - (np.cumsum(own) - own), 0, own)
    return loads


RULES: Final[Mapping[str, Callable[[Grid, Ints, int], Ints]]] = {
    "best_fit": best_fit,
    "even": spread_evenly,
    "first_fit": first_fit,
}


def _find_tightest(room: Ints, pods: int) -> int | None:
    holds = np.flatnonzero(room >= pods)
    return int(holds[np.argmin(room[holds])]) if len(holds) else None


def _largest_first(room: Ints, among: Iterable[int], pods: int) -> dict[int, int]:
    """Return domain -> pods: domains with most room first, the last one the tightest that holds the rest."""
    order = sorted(among, key=lambda each: (-room[each], each))
    found: dict[int, int] = {}
    for number, each in enumerate(order):
        if room[each] >= pods:
            last = min((other for other in order[number:] if room[other] >= pods), key=lambda at: (room[at], at))
            return {**found, last: pods}
        found[each] = int(room[each])
        pods -= int(room[each])
    return found


def _share_evenly(grid: Grid, slots: Ints, loads: Ints, inside: NDArray[np.bool_], pods: int) -> None:
    """Spread pods evenly over the fewest spines, then over the fewest leaves and nodes of each."""
    for domain in (grid.spine, grid.leaf, np.arange(len(slots))):
        children = np.unique(domain[inside])
        if len(children) > 1:
            room = np.bincount(domain[inside], slots[inside])[children].astype(np.int64)
            for child, share in zip(children, split.divide_pods(room, pods, Strategy.BALANCED).tolist(), strict=True):
                if share:
                    _share_evenly(grid, slots, loads, inside & (domain == child), share)
            return
    loads[inside] += pods

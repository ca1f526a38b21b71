"""Arranges many gangs on the free capacity, and improves the arrangement by placing a few of them again.

A step removes a gang that spans more leaves than it needs, a few of its neighbours and a few other gangs of several
leaves. It places them again in another order, in leaves with little room left. The result is kept if every gang still
has a place and the total number of leaves is no larger. So the number of leaves never grows, and equally good
arrangements can lead to better ones.

Variation comes from a fixed list of numbers. The same capacity and gangs always give the same arrangement.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import free_capacity, quick_fit
from kgwe.placement.gang.lookahead.free_capacity import NEVER, STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts
    from kgwe.placement.gang.lookahead.quick_fit import GangDemand

    #: (room per leaf, leaves, pods) -> the pods divided over the fewest of the leaves
    Split = Callable[[Sequence[int], Sequence[int], int], Parts | None]

# A step removes fewer than this many neighbours of the first gang, and fewer than this many other gangs.
_MAX_TAKEN: Final = 4
# A leaf or pair of leaves is chosen by the room left over, varied by up to so many pods.
_NOISE: Final = 3.0
# A leaf for small pods is chosen by the large pods that no longer fit, varied by up to 1.5 of them.
_NOISE_LARGE: Final = 1.5 * STEP


def _generate_numbers(count: int) -> list[float]:
    """Pseudo-random numbers in 0..1, always the same: a linear congruential generator."""
    found, state = [], 7
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append((state >> 33) / 2**31)
    return found


_NUMBERS: Final = _generate_numbers(8191)


class Arrangement:
    """The places of many gangs on the free capacity."""

    def __init__(self, capacity: FreeCapacity, gangs: Sequence[GangDemand], *, tight: bool, spares: bool) -> None:
        """Start with no gang placed.

        `tight`: pods fill the nodes with the least room first; `spares`: small pods avoid nodes that hold large ones.
        """
        self.parts: list[Parts | None] = [None] * len(gangs)
        self._gangs = gangs
        self._leaf_states = capacity.leaf_states
        self._tight = tight
        self._base = capacity.states
        self._states = capacity.states[:]
        self._room = [room[:] for room in capacity.room]
        self._counts = [[0] * len(capacity.leaf_states.gpus_per_pod) for _ in capacity.states]
        self._random = itertools.cycle(_NUMBERS).__next__
        self._large = max(
            {gang.kind for gang in gangs}, key=lambda kind: (capacity.leaf_states.gpus_per_pod[kind], -kind)
        )
        self._sparing = {gang.kind for gang in gangs if spares and gang.kind != self._large}
        self._least = quick_fit.count_least_leaves(capacity, gangs)
        #: leaf -> gangs in it, and gangs in several leaves; dicts are used as ordered sets
        self._in_leaf: list[dict[int, None]] = [{} for _ in capacity.states]
        self._split_gangs: dict[int, None] = {}

    # --- building -------------------------------------------------------------------------------------------

    def set_place(self, number: int, parts: Parts) -> None:
        """Place a gang on these leaves."""
        self.parts[number] = parts
        self._update_leaves(self._gangs[number].kind, parts, 1)
        for leaf, _ in parts:
            self._in_leaf[leaf][number] = None
        if len(parts) > 1:
            self._split_gangs[number] = None

    def place_gang(self, number: int) -> None:
        """Place a gang by the rule of `quick_fit`, if there is room."""
        parts = self._find_place(self._gangs[number], free_capacity.split_over_leaves, noise=0.0)
        if parts is not None:
            self.set_place(number, parts)

    def _remove_gang(self, number: int) -> None:
        parts = self.parts[number]
        if parts is not None:
            self._update_leaves(self._gangs[number].kind, parts, -1)
            self.parts[number] = None
            for leaf, _ in parts:
                del self._in_leaf[leaf][number]
            self._split_gangs.pop(number, None)

    def _update_leaves(self, kind: int, parts: Parts, sign: int) -> None:
        leaf_states = self._leaf_states
        for leaf, pods in parts:
            counts = self._counts[leaf]
            counts[kind] += sign * pods
            state = leaf_states.fill_leaf(self._base[leaf], tuple(counts), tight=self._tight)
            if state is None:  # pragma: no cover -- only gangs that fit are placed
                raise AssertionError(f"leaf {leaf} does not hold {counts}")
            self._states[leaf] = state
            for room, of_state in zip(self._room, leaf_states.room):  # noqa: B905 -- called very often
                room[leaf] = of_state[state]

    # --- improving ------------------------------------------------------------------------------------------

    def improve(self, steps: int) -> None:
        for _ in range(steps):
            wide = [n for n in self._split_gangs if len(self.parts[n] or ()) > self._least[n]]
            if not wide:
                return
            self._place_again(self._choose_gangs(wide[self._draw_below(len(wide))]))

    def _choose_gangs(self, first: int) -> list[int]:
        """The gang, some of its neighbours and some other gangs of several leaves, in any order."""
        near = [n for leaf, _ in self.parts[first] or () for n in self._in_leaf[leaf]]
        chosen = {first: None}
        for pool in (near, list(self._split_gangs)):
            chosen |= dict.fromkeys(pool[self._draw_below(len(pool))] for _ in range(self._draw_below(_MAX_TAKEN)))
        return sorted(chosen, key=lambda _: self._random())

    def _place_again(self, gangs: Sequence[int]) -> None:
        """Place these gangs again, in this order; undo that if it takes more leaves."""
        before = [(n, parts) for n in gangs if (parts := self.parts[n]) is not None]
        allowed = sum(len(parts) for _, parts in before)
        for n in gangs:
            self._remove_gang(n)
        for n in gangs:
            parts = self._find_place(self._gangs[n], self._split_with_noise, noise=1.0)
            allowed -= len(parts) if parts is not None else allowed + 1
            if parts is None or allowed < 0:
                break
            self.set_place(n, parts)
        if allowed < 0:
            for n in gangs:
                self._remove_gang(n)
            for n, parts in before:
                self.set_place(n, parts)

    def _draw_below(self, below: int) -> int:
        return int(self._random() * below)

    # --- one gang -------------------------------------------------------------------------------------------

    def _find_place(self, gang: GangDemand, split: Split, *, noise: float) -> Parts | None:
        """The tightest leaf; or the fewest leaves of a domain of the first level that has one with room."""
        room = self._room[gang.kind]
        if max(room, default=0) >= gang.pods:
            return ((self._choose_leaf(gang, noise), gang.pods),)
        if gang.one_leaf:
            return None
        for domains in gang.scopes:
            found = [parts for leaves in domains if (parts := split(room, leaves, gang.pods)) is not None]
            if found:
                return min(found, key=len)
        return None

    def _choose_leaf(self, gang: GangDemand, noise: float) -> int:
        draw = self._random
        if gang.kind not in self._sparing:
            noise *= _NOISE
            rooms = enumerate(self._room[gang.kind])
            return min([(each + noise * draw(), leaf) for leaf, each in rooms if each >= gang.pods])[1]
        noise *= _NOISE_LARGE
        costs = self._leaf_states.displacement_table(gang.kind, gang.pods, self._large)
        ranks = enumerate([costs[state] for state in self._states])
        return min([(rank + noise * draw(), leaf) for leaf, rank in ranks if rank < NEVER])[1]

    def _split_with_noise(self, room: Sequence[int], leaves: Sequence[int], pods: int) -> Parts | None:
        """Divide pods over the fewest leaves: the largest first, the last two with little room left over.

        Any of several equal leaves may be used. None: no room.
        """
        by_room: dict[int, list[int]] = {}
        for leaf in leaves:
            if room[leaf]:
                by_room.setdefault(room[leaf], []).append(leaf)
        if sum(each * len(alike) for each, alike in by_room.items()) < pods:
            return None
        parts: list[tuple[int, int]] = []
        while (largest := max(by_room)) < pods and largest + _second_largest(by_room, largest) < pods:
            parts.append((self._pop_leaf(by_room, largest), largest))
            pods -= largest
        draw = self._random
        if largest >= pods:
            last = min([(each + _NOISE * draw(), each) for each in by_room if each >= pods])[1]
            return (*parts, (self._pop_leaf(by_room, last), pods))
        pairs = [
            (one + other + _NOISE * draw(), one, other)
            for one in by_room
            for other in by_room
            if pods - one <= other <= one and (other < one or len(by_room[one]) > 1)
        ]
        _, one, other = min(pairs)
        full, rest = (one, other) if draw() < 0.5 else (other, one)  # noqa: PLR2004 -- either, equally often
        return (*parts, (self._pop_leaf(by_room, full), full), (self._pop_leaf(by_room, rest), pods - full))

    def _pop_leaf(self, by_room: dict[int, list[int]], room: int) -> int:
        alike = by_room[room]
        leaf = alike.pop(self._draw_below(len(alike)))
        if not alike:
            del by_room[room]
        return leaf


def _second_largest(by_room: dict[int, list[int]], largest: int) -> int:
    """The room of the second largest leaf."""
    return largest if len(by_room[largest]) > 1 else max((each for each in by_room if each < largest), default=0)

"""What room for 1, 2, 3 … more pods weighs on each node, and the lightest mix of nodes for a number of pods.

A curve counts one amount only, that by which the request is measured, and is a proposal: whoever uses it asks the
fitter afterwards. For cards and slices each of its points is the lightest set of items that frees as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.node import CARD_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.placement.eviction import Pool
    from kgwe.placement.fit import Fitter
    from kgwe.placement.node import Request
    from kgwe.placement.snapshot import Grant

    #: for each number of pods, from 1 on: weight, and the items stopped
    Curve = list[tuple[float, tuple[int, ...]]]


# Up to so many cards or slices on a node the lightest set is worked out exactly; thousandths are too many for that.
_FEW_UNITS: Final = 16


class Curves:
    """The curves of one request; those of untouched nodes are worked out once."""

    def __init__(self, fitter: Fitter, pool: Pool, request: Request, most_per_node: int = 0) -> None:
        self._pool = pool
        self._snapshot = fitter.snapshot
        self._request = request
        self._most = most_per_node or math.inf
        self._unit = amount(request)
        self._now = np.minimum(fitter.room(request), self._most).astype(np.int64)
        self._known: dict[int, Curve] = {}
        self._gains: dict[int, list[tuple[int, int]]] = {}

    def of(self, nodes: Sequence[int], gone: frozenset[int], spared: frozenset[int]) -> list[Curve]:
        """The curves of these nodes with some items stopped anyway and others not to be stopped."""
        touched = {grant.node for number in gone | spared for grant in self._pool.items[number].grants}
        found = (self._built(node, gone, spared) if node in touched else self._kept(node) for node in nodes)
        return [curve for curve in found if curve]

    def whole_items(self, nodes: Sequence[int], spared: frozenset[int], missing: int) -> frozenset[int] | None:
        """Items that make room for so many more pods on these nodes, those first that free most for their weight.

        Whoever turns out not to be needed is let go again, the heaviest first.
        """
        gains: dict[int, list[tuple[int, int]]] = {}
        room = {}
        for node in nodes:
            room[node] = _NodeRoom(
                self._unit, self._left_over(node, int(self._now[node])), self._most - self._now[node]
            )
            for number, gain in self._gains_on(node):
                if number not in spared:
                    gains.setdefault(number, []).append((node, gain))
        weight = {number: self._pool.items[number].weight for number in gains}
        stopped: list[int] = []
        for number in sorted(gains, key=lambda each: (weight[each] / sum(gain for _, gain in gains[each]), each)):
            if missing <= 0:
                break
            missing -= sum(room[node].free(gain) for node, gain in gains[number])
            stopped.append(number)
        if missing > 0:
            return None
        for number in sorted(stopped, key=lambda each: (-weight[each], each)):
            lost = -sum(room[node].free(-gain) for node, gain in gains[number])
            if missing + lost > 0:
                for node, gain in gains[number]:
                    room[node].free(gain)
            else:
                missing += lost
                stopped.remove(number)
        return frozenset(stopped)

    def _kept(self, node: int) -> Curve:
        if node not in self._known:
            self._known[node] = self._built(node, frozenset(), frozenset())
        return self._known[node]

    def _built(self, node: int, gone: frozenset[int], spared: frozenset[int]) -> Curve:
        items = [
            (number, 0 if number in gone else self._pool.items[number].weight, gain)
            for number, gain in self._gains_on(node)
            if number not in spared
        ]
        now = int(self._now[node])
        left_over = self._left_over(node, now)
        held = sum(gain for _, _, gain in items)
        pods = int(min((left_over + held) // self._unit, self._most - now))
        needs = [max(0, self._unit * count - left_over) for count in range(1, pods + 1)]
        return _exactly(items, needs, held) if held <= _FEW_UNITS else _by_worth(items, needs)

    def _gains_on(self, node: int) -> list[tuple[int, int]]:
        if node not in self._gains:
            items = self._pool.items
            gains = [
                (number, sum(freed(grant, self._request) for grant in items[number].grants if grant.node == node))
                for number in self._pool.on.get(node, ())
            ]
            self._gains[node] = [(number, gain) for number, gain in gains if gain]
        return self._gains[node]

    def _left_over(self, node: int, now: int) -> int:
        """What is free on the node beyond the pods it takes now."""
        snapshot, gpus = self._snapshot, self._request.gpus
        if gpus.count:
            return int(snapshot.free[node]).bit_count() - gpus.count * now
        if gpus.slices and gpus.profile in snapshot.slices:
            return int(snapshot.slices[gpus.profile][node]) - gpus.slices * now
        return 0


@dataclass(slots=True)
class _NodeRoom:
    """Pods that a node takes beyond those it takes now, while things on it are stopped."""

    unit: int
    amount: int
    most: float

    def free(self, amount: int) -> int:
        """Pods it takes more when so much comes free."""
        before = self._pods()
        self.amount += amount
        return self._pods() - before

    def _pods(self) -> int:
        return int(min(self.amount // self.unit, self.most))


def _exactly(items: Sequence[tuple[int, int, int]], needs: Sequence[int], held: int) -> Curve:
    """For each amount needed the lightest set that frees as much: a knapsack over so few units that it is small."""
    least: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(math.inf, ())] * held]
    for number, weight, gain in items:
        for units in range(held, 0, -1):
            before, stopped = least[max(0, units - gain)]
            if before + weight < least[units][0]:
                least[units] = (before + weight, (*stopped, number))
    return [least[need] for need in needs]


def _by_worth(items: Sequence[tuple[int, int, int]], needs: Sequence[int]) -> Curve:
    """For each amount needed the first of the items, in order of weight per unit, that free as much."""
    curve: Curve = []
    total, freed_so_far, stopped = 0.0, 0, []
    for number, weight, gain in sorted(items, key=lambda item: (item[1] / item[2], item[0])):
        total += weight
        freed_so_far += gain
        stopped.append(number)
        while len(curve) < len(needs) and freed_so_far >= needs[len(curve)]:
            curve.append((total, tuple(stopped)))
    return curve


def amount(request: Request) -> int:
    """The amount by which a request is measured: cards, slices, thousandths of a card, or of a CPU."""
    gpus = request.gpus
    return gpus.count or gpus.slices or gpus.milli or max(1, request.cpu_milli)


def freed(grant: Grant, request: Request) -> int:
    """What a grant gives back of that amount."""
    gpus = request.gpus
    if gpus.count:
        return grant.cards.bit_count() + (grant.share is not None)
    if gpus.slices:
        return sum(placed.profile.name == gpus.profile for _, placed in grant.slices)
    if gpus.milli:
        # A whole card holds a whole number of such shares.
        per_card = CARD_MILLI // gpus.milli * gpus.milli
        return grant.cards.bit_count() * per_card + (grant.share[1] if grant.share else 0)
    return grant.cpu_milli


def lightest_mix(curves: Sequence[Curve], missing: int) -> frozenset[int] | None:
    """Of each curve a number of pods, `missing` in all, at least weight. Fewer pods never weigh more on a node."""
    considered = [curves[number] for number in sorted(_worth_a_look(curves, missing))]
    least = np.full(missing + 1, np.inf)
    least[0] = 0.0
    taken = np.zeros((len(considered), missing + 1), np.int32)
    for number, curve in enumerate(considered):
        before = least.copy()
        for pods, (weight, _) in enumerate(curve[:missing], 1):
            offered = before[: missing + 1 - pods] + weight
            better = np.flatnonzero(offered < least[pods:]) + pods
            least[better] = offered[better - pods]
            taken[number, better] = pods
    if math.isinf(least[missing]):
        return None
    stopped: set[int] = set()
    left = missing
    for number in reversed(range(len(considered))):
        pods = int(taken[number, left])
        if pods:
            stopped.update(considered[number][pods - 1][1])
            left -= pods
    return frozenset(stopped)


def _worth_a_look(curves: Sequence[Curve], missing: int) -> Iterable[int]:
    """At most `missing` nodes are used; one that is not among so many lightest for any number of pods is not needed."""
    longest = max(map(len, curves), default=0)
    chosen: set[int] = set()
    for pods in range(min(longest, missing)):
        offers = sorted((curve[pods][0], number) for number, curve in enumerate(curves) if len(curve) > pods)
        chosen.update(number for _, number in offers[:missing])
    return chosen

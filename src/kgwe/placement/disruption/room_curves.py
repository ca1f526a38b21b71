"""The weight of room for 1, 2, 3 … more pods on each node, and the lightest mix of nodes for a number of pods.

A curve counts the amount by which the request is measured; for GPUs and slices each of its points is the lightest set
of items that frees as much. Where CPU, memory or pod slots then fall short, the lightest items that free them are
added. Topology and the GPUs of shares are left out: a curve is a proposal, which the caller tests with the fitter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.placement.disruption.victims import VictimPool
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.pod.fit import Fitter

    #: the amount a request is measured by, CPU, memory, pod slots
    Amounts = tuple[int, int, int, int]
    #: for each number of pods, from 1 on: weight, and the items stopped
    Curve = list[tuple[float, tuple[int, ...]]]


# Up to this many GPUs or slices on a node the lightest set is exact; there are too many milli-GPUs for that.
_FEW_UNITS: Final = 16


class RoomCurves:
    """The curves of one request; those of untouched nodes are cached."""

    def __init__(self, fitter: Fitter, pool: VictimPool, request: Request, most_per_node: int = 0) -> None:
        self._pool = pool
        self._snapshot = fitter.snapshot
        self._request = request
        self._most = most_per_node or math.inf
        self._unit = requested_amount(request)
        self._now = np.minimum(fitter.count_pods(request), self._most).astype(np.int64)
        self._known: dict[int, Curve] = {}
        self._surcharge: Mapping[int, int] = {}
        self._gains: dict[int, list[tuple[int, Amounts]]] = {}
        snapshot = fitter.snapshot
        self._free = (snapshot.cpu_milli, snapshot.memory_bytes, snapshot.pods)
        self._each: Amounts = (self._unit, request.cpu_milli, request.memory_bytes, 1)
        """Requirements of one pod: the measured amount, CPU, memory, a pod slot."""

    def charge(self, surcharge: Mapping[int, int]) -> None:
        """Add a surcharge (item -> extra weight) from now on."""
        self._surcharge = surcharge
        self._known.clear()

    def _weight(self, number: int) -> int:
        return self._pool.items[number].weight + self._surcharge.get(number, 0)

    def get_curves(self, nodes: Sequence[int], gone: frozenset[int], spared: frozenset[int]) -> list[Curve]:
        """The curves of these nodes with some items stopped anyway and others not to be stopped."""
        touched = {grant.node for number in gone | spared for grant in self._pool.items[number].grants}
        found = (
            self._build_curve(node, gone, spared) if node in touched else self._cached_curve(node) for node in nodes
        )
        return [curve for curve in found if curve]

    def pick_whole_items(self, nodes: Sequence[int], spared: frozenset[int], missing: int) -> frozenset[int] | None:
        """Items that make room for `missing` more pods on these nodes, chosen by weight per unit freed.

        Unneeded items are dropped again, heaviest first. None also if every item is on a single node: then a mix of
        curves is no heavier.
        """
        gains = self._gains_by_item(nodes, spared)
        if all(len(each) == 1 for each in gains.values()):
            return None
        room = {node: _NodeRoom(self._each, list(self._free_on(node)), self._most) for node in nodes}
        weight = {number: self._weight(number) for number in gains}
        missing -= sum(each.pods() - int(self._now[node]) for node, each in room.items())
        stopped: list[int] = []
        for number in sorted(gains, key=lambda each: (*_weight_per_unit(weight[each], gains[each]), each)):
            if missing <= 0:
                break
            missing -= sum(room[node].free_amounts(gain) for node, gain in gains[number])
            stopped.append(number)
        if missing > 0:
            return None
        for number in sorted(stopped, key=lambda each: (-weight[each], each)):
            lost = -sum(room[node].free_amounts(gain, -1) for node, gain in gains[number])
            if missing + lost > 0:
                for node, gain in gains[number]:
                    room[node].free_amounts(gain)
            else:
                missing += lost
                stopped.remove(number)
        return frozenset(stopped)

    def _gains_by_item(self, nodes: Sequence[int], spared: frozenset[int]) -> dict[int, list[tuple[int, Amounts]]]:
        """Item -> its nodes, and what it frees on each."""
        gains: dict[int, list[tuple[int, Amounts]]] = {}
        for node in nodes:
            for number, gain in self._gains_on(node):
                if number not in spared:
                    gains.setdefault(number, []).append((node, gain))
        return gains

    def _cached_curve(self, node: int) -> Curve:
        if node not in self._known:
            self._known[node] = self._build_curve(node, frozenset(), frozenset())
        return self._known[node]

    def _build_curve(self, node: int, gone: frozenset[int], spared: frozenset[int]) -> Curve:
        items = [
            (number, 0 if number in gone else self._weight(number), gain[0])
            for number, gain in self._gains_on(node)
            if number not in spared and gain[0]
        ]
        now = int(self._now[node])
        left_over = self._free_on(node)[0] - self._unit * now
        held = sum(gain for _, _, gain in items)
        pods = int(min((left_over + held) // self._unit, self._most - now))
        needs = [max(0, self._unit * count - left_over) for count in range(1, pods + 1)]
        curve = _solve_knapsack(items, needs, held) if held <= _FEW_UNITS else _pick_by_worth(items, needs)
        return self._add_other_resources(node, curve, gone, spared)

    def _add_other_resources(self, node: int, curve: Curve, gone: frozenset[int], spared: frozenset[int]) -> Curve:
        """The curve with CPU, memory and pod slots counted too; it ends where there are never enough."""
        now, free = int(self._now[node]), self._free_on(node)
        if all(need * (now + len(curve)) <= max(0, left) for need, left in zip(self._each[1:], free[1:], strict=True)):
            return curve
        found: Curve = []
        for pods, (weight, stopped) in enumerate(curve, now + 1):
            more = self._pick_for_other_resources(node, pods, gone.union(stopped), spared)
            if more is None:
                break
            extra = sum(self._weight(number) for number in more)
            found.append((weight + extra, (*stopped, *more)))
        return found

    def _pick_for_other_resources(
        self, node: int, pods: int, stopped: frozenset[int], spared: frozenset[int]
    ) -> tuple[int, ...] | None:
        """More items to stop so that CPU, memory and pod slots suffice for `pods` pods; None: impossible."""
        gains, free = self._gains_on(node), self._free_on(node)
        added: list[int] = []
        for kind in [kind for kind, need in enumerate(self._each) if kind and need]:
            lacking = self._each[kind] * pods - free[kind]
            lacking -= sum(gain[kind] for number, gain in gains if number in stopped or number in added)
            others = [
                (self._weight(number) / gain[kind], number, gain[kind])
                for number, gain in gains
                if gain[kind] and number not in stopped and number not in spared and number not in added
            ]
            for _, number, gain_of_kind in sorted(others) if lacking > 0 else ():
                if lacking <= 0:
                    break
                added.append(number)
                lacking -= gain_of_kind
            if lacking > 0:
                return None
        return tuple(added)

    def _gains_on(self, node: int) -> list[tuple[int, Amounts]]:
        """The items on the node, and what each frees there."""
        if node not in self._gains:
            self._gains[node] = [
                (number, self._gain([grant for grant in self._pool.items[number].grants if grant.node == node]))
                for number in self._pool.items_on.get(node, ())
            ]
        return self._gains[node]

    def _gain(self, grants: Sequence[Grant]) -> Amounts:
        return (
            sum(freed_amount(grant, self._request) for grant in grants),
            sum(grant.cpu_milli for grant in grants),
            sum(grant.memory_bytes for grant in grants),
            sum(grant.pods for grant in grants),
        )

    def _free_on(self, node: int) -> Amounts:
        """What is free on the node: the amount the request is measured by, CPU, memory, pod slots."""
        snapshot, gpus = self._snapshot, self._request.gpus
        cpu, memory, pods = (int(free[node]) for free in self._free)
        if gpus.count:
            return int(snapshot.free[node]).bit_count() - int(snapshot.owed[node]), cpu, memory, pods
        if gpus.slices and gpus.profile in snapshot.slices:
            return count_free_slices(snapshot, gpus.profile, node), cpu, memory, pods
        # The free parts of shared GPUs are too small for one more pod.
        return self._unit * int(self._now[node]), cpu, memory, pods


def _weight_per_unit(weight: int, gains: Sequence[tuple[int, Amounts]]) -> tuple[bool, float]:
    """Weight per unit freed; those that free only other things come last."""
    units = sum(gain[0] for _, gain in gains)
    return not units, weight / max(1, units)


@dataclass(slots=True)
class _NodeRoom:
    """How many pods a node can take while items on it are stopped."""

    each: Amounts
    free_now: list[int]
    most: float

    def free_amounts(self, gain: Amounts, sign: int = 1) -> int:
        """Free these amounts, or take them again; returns the change in the number of pods."""
        before = self.pods()
        for kind, amount_freed in enumerate(gain):
            self.free_now[kind] += sign * amount_freed
        return self.pods() - before

    def pods(self) -> int:
        counts = [free // need for need, free in zip(self.each, self.free_now, strict=True) if need]
        return int(max(0, min(*counts, self.most)))


def _solve_knapsack(items: Sequence[tuple[int, int, int]], needs: Sequence[int], held: int) -> Curve:
    """For each needed amount, the lightest set that frees it: a knapsack over few units."""
    least: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(math.inf, ())] * held]
    for number, weight, gain in items:
        for units in range(held, 0, -1):
            before, stopped = least[max(0, units - gain)]
            if before + weight < least[units][0]:
                least[units] = (before + weight, (*stopped, number))
    return [least[need] for need in needs]


def _pick_by_worth(items: Sequence[tuple[int, int, int]], needs: Sequence[int]) -> Curve:
    """For each needed amount, the first items, by weight per unit, that free it."""
    curve: Curve = []
    total, freed_so_far, stopped = 0.0, 0, []
    for number, weight, gain in sorted(items, key=lambda item: (item[1] / item[2], item[0])):
        total += weight
        freed_so_far += gain
        stopped.append(number)
        while len(curve) < len(needs) and freed_so_far >= needs[len(curve)]:
            curve.append((total, tuple(stopped)))
    return curve


def requested_amount(request: Request) -> int:
    """The amount by which a request is measured: GPUs, slices, thousandths of a GPU, or of a CPU."""
    gpus = request.gpus
    return gpus.count or gpus.slices or gpus.milli or max(1, request.cpu_milli)


def count_free_slices(snapshot: Snapshot, profile: str, node: int) -> int:
    """Free slices of the profile on the node, less those that overcommitted pods get first; may be below 0."""
    free, owed = snapshot.slices.get(profile), snapshot.owed_slices.get(profile)
    return (0 if free is None else int(free[node])) - (0 if owed is None else int(owed[node]))


def freed_amount(grant: Grant, request: Request) -> int:
    """The amount that a grant frees, plus the overcommitted amount that its end makes good."""
    gpus = request.gpus
    if gpus.count:
        # A shared GPU may still be held by others.
        return grant.gpus.bit_count() + (grant.share is not None) + grant.owed.gpus
    if gpus.slices:
        owed = sum(count for profile, count in grant.owed.slices if profile == gpus.profile)
        return sum(placed.profile.name == gpus.profile for _, placed in grant.slices) + owed
    if gpus.milli:
        # A whole GPU holds a whole number of such shares.
        per_gpu = GPU_MILLI // gpus.milli * gpus.milli
        return grant.gpus.bit_count() * per_gpu + (grant.share[1] if grant.share else 0)
    return grant.cpu_milli


def find_lightest_mix(curves: Sequence[Curve], missing: int) -> frozenset[int] | None:
    """A number of pods from each curve, `missing` in all, of least weight. Fewer pods never weigh more on a node."""
    considered = [curves[number] for number in sorted(_list_useful_curves(curves, missing))]
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


def _list_useful_curves(curves: Sequence[Curve], missing: int) -> Iterable[int]:
    """At most `missing` nodes are used, so only the `missing` lightest for each number of pods matter."""
    longest = max(map(len, curves), default=0)
    chosen: set[int] = set()
    for pods in range(min(longest, missing)):
        offers = sorted((curve[pods][0], number) for number, curve in enumerate(curves) if len(curve) > pods)
        chosen.update(number for _, number in offers[:missing])
    return chosen

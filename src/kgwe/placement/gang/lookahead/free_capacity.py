"""Holds the free capacity of every leaf in a compact form, so that many gangs can be placed within a millisecond.

Nodes of a leaf with the same free GPUs and the same room for every kind of pod are grouped. So the state of a leaf is
a short tuple, and equal leaves share one number. The state after placing so many pods of a kind is computed once
(`LeafStates`). `FreeCapacity` has one such number per leaf; placing pods changes numbers in a list.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.levels import Level

    Ints = NDArray[np.int64]

#: free GPUs of a node, and its room for each kind of pod
NodeState = tuple[int, ...]
#: the different node states of a leaf, and how many nodes have each
LeafState = tuple[tuple[NodeState, int], ...]
#: leaf -> pods
Parts = tuple[tuple[int, int], ...]
# Weight of one displaced pod in `DisplacementTable`; no leaf has room for so many pods.
STEP: Final = 1 << 20
NEVER: Final = 1 << 60


class LeafStates:
    """States of leaves by number, and the state of each after placing pods."""

    def __init__(self, gpus_per_pod: Sequence[int]) -> None:
        """`gpus_per_pod`: GPUs of a pod of each kind."""
        self.gpus_per_pod = tuple(gpus_per_pod)
        #: kind -> state -> pods that fit
        self.room: list[list[int]] = [[] for _ in gpus_per_pod]
        self._states: list[LeafState] = []
        self._numbers: dict[LeafState, int] = {}
        #: (state, kind, pods, tight) -> state; a cache
        self.known: dict[tuple[int, int, int, bool], int] = {}
        #: (state, pods of each kind, tight) -> state
        self._filled: dict[tuple[int, tuple[int, ...], bool], int | None] = {}
        self._by_size = sorted(range(len(self.gpus_per_pod)), key=lambda kind: (-self.gpus_per_pod[kind], kind))
        self._costs: dict[tuple[int, int, int], DisplacementTable] = {}
        self._rests: dict[tuple[int, int], SmallNodeTable] = {}

    def __len__(self) -> int:
        return len(self.known) + len(self._filled)

    def displacement_table(self, kind: int, pods: int, wide: int) -> DisplacementTable:
        found = self._costs.get((kind, pods, wide))
        if found is None:
            found = self._costs[kind, pods, wide] = DisplacementTable(self, kind, pods, wide)
        return found

    def small_node_table(self, kind: int, wide: int) -> SmallNodeTable:
        found = self._rests.get((kind, wide))
        if found is None:
            found = self._rests[kind, wide] = SmallNodeTable(self, kind, wide)
        return found

    def count_displaced(self, state: int, kind: int, pods: int, wide: int) -> int:
        """Pods of the larger kind `wide` that no longer fit after placing so many of this kind on small nodes first."""
        room = self.room[wide]
        return room[state] - room[self.place_pods(state, kind, pods, tight=True)]

    def count_on_small_nodes(self, state: int, kind: int, wide: int) -> int:
        """Room on the nodes that hold no pod of the larger kind `wide`."""
        return sum(alike[1 + kind] * count for alike, count in self._states[state] if not alike[1 + wide])

    def count_by_room(self, state: int, kind: int) -> list[tuple[int, int]]:
        """The different rooms of nodes for pods of a kind, and how many nodes have each."""
        return [(alike[1 + kind], count) for alike, count in self._states[state] if alike[1 + kind]]

    def merge_leaves(self, states: Iterable[int]) -> int:
        """The state of one leaf that has the nodes of all these leaves."""
        merged: Counter[NodeState] = Counter()
        for state in states:
            merged.update(dict(self._states[state]))
        return self.number_state(tuple(sorted(merged.items())))

    def fill_leaf(self, state: int, counts: tuple[int, ...], *, tight: bool) -> int | None:
        """The state after placing so many pods of each kind, the largest first; None: no room."""
        key = (state, counts, tight)
        if key not in self._filled:
            self._filled[key] = self._place_largest_first(state, counts, tight=tight)
        return self._filled[key]

    def _place_largest_first(self, state: int, counts: tuple[int, ...], *, tight: bool) -> int | None:
        for kind in self._by_size:
            if self.room[kind][state] < counts[kind]:
                return None
            if counts[kind]:
                state = self.place_pods(state, kind, counts[kind], tight=tight)
        return state

    def number_state(self, state: LeafState) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
            for kind, room in enumerate(self.room, 1):
                room.append(sum(alike[kind] * count for alike, count in state))
        return found

    def place_pods(self, state: int, kind: int, pods: int, *, tight: bool) -> int:
        """The state after placing pods on the fewest nodes; `tight`: on the nodes with the least room first."""
        key = (state, kind, pods, tight)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._find_state_after(state, kind, pods, tight=tight)
        return found

    def _find_state_after(self, state: int, kind: int, pods: int, *, tight: bool) -> int:
        left = dict(self._states[state])
        own = 1 + kind
        while pods:
            most = 1 if tight else min(pods, max(alike[own] for alike in left))
            node = min((alike for alike in left if alike[own] >= most), key=lambda alike: (alike[own], alike))
            taken = min(pods, node[own])
            # Equal nodes that are filled completely are filled in one step.
            nodes = min(left[node], pods // taken) if taken == node[own] else 1
            pods -= taken * nodes
            left[node] -= nodes
            if not left[node]:
                del left[node]
            free = node[0] - taken * self.gpus_per_pod[kind]
            rooms = [room - taken * (number == kind) for number, room in enumerate(node[1:])]
            rest = (free, *(min(room, free // gpus) for room, gpus in zip(rooms, self.gpus_per_pod, strict=True)))
            if any(rest[1:]):
                left[rest] = left.get(rest, 0) + nodes
        return self.number_state(tuple(sorted(left.items())))


class DisplacementTable(dict[int, int]):
    """State -> pods of a larger kind that so many pods displace, times `STEP`, plus the room; `NEVER`: no room.

    Entries are computed on first use.
    """

    def __init__(self, leaf_states: LeafStates, kind: int, pods: int, wide: int) -> None:
        self._leaf_states, self._kind, self._pods, self._wide = leaf_states, kind, pods, wide

    def __missing__(self, state: int) -> int:
        room = self._leaf_states.room[self._kind][state]
        fits = room >= self._pods
        self[state] = (
            self._leaf_states.count_displaced(state, self._kind, self._pods, self._wide) * STEP + room
            if fits
            else NEVER
        )
        return self[state]


class SmallNodeTable(dict[int, int]):
    """State -> room on the nodes that hold no pod of a larger kind; computed on first use."""

    def __init__(self, leaf_states: LeafStates, kind: int, wide: int) -> None:
        self._leaf_states, self._kind, self._wide = leaf_states, kind, wide

    def __missing__(self, state: int) -> int:
        self[state] = self._leaf_states.count_on_small_nodes(state, self._kind, self._wide)
        return self[state]


class FreeCapacity:
    """The state of every leaf, and its room for every kind of pod."""

    __slots__ = ("leaf_states", "room", "states")

    def __init__(self, leaf_states: LeafStates, states: list[int], room: list[list[int]]) -> None:
        self.leaf_states = leaf_states
        self.states = states
        self.room = room

    @classmethod
    def from_leaves(cls, leaf_states: LeafStates, leaves: Iterable[LeafState]) -> FreeCapacity:
        states = [leaf_states.number_state(leaf) for leaf in leaves]
        return cls(leaf_states, states, [[room[state] for state in states] for room in leaf_states.room])

    def copy(self) -> FreeCapacity:
        return FreeCapacity(self.leaf_states, self.states[:], [room[:] for room in self.room])

    def merge_leaves(self) -> int:
        """The state of one leaf that has the nodes of all leaves."""
        return self.leaf_states.merge_leaves(self.states)

    def copy_with_pods(self, kind: int, parts: Parts, *, tight: bool) -> FreeCapacity:
        """A copy with these pods placed."""
        capacity = self.copy()
        capacity.place_pods(kind, parts, tight=tight)
        return capacity

    def restrict_to(self, wanted: Sequence[bool]) -> FreeCapacity:
        """The capacity as if all other leaves were full."""
        if all(wanted):
            return self
        full = self.leaf_states.number_state(())
        states = [state if fine else full for state, fine in zip(self.states, wanted, strict=True)]
        return FreeCapacity(
            self.leaf_states, states, [[room[state] for state in states] for room in self.leaf_states.room]
        )

    def place_pods(self, kind: int, parts: Parts, *, tight: bool) -> None:
        leaf_states, states = self.leaf_states, self.states
        known = leaf_states.known
        for leaf, pods in parts:
            # Called 100,000 times a second: the cache is read without a function call.
            state = known.get((states[leaf], kind, pods, tight))
            if state is None:
                state = leaf_states.place_pods(states[leaf], kind, pods, tight=tight)
            states[leaf] = state
            for room, of_state in zip(self.room, leaf_states.room):  # noqa: B905 -- likewise
                room[leaf] = of_state[state]


def read_leaf_states(leaves: Level, free: Ints, rooms: Sequence[Ints]) -> list[LeafState]:
    """The state of every leaf; `free` and `rooms` are per place."""
    leaf = np.repeat(np.arange(len(leaves)), np.diff(leaves.starts))
    useful = np.logical_or.reduce([room > 0 for room in rooms])
    columns = [column[useful] for column in (leaf, free, *rooms)]
    # Each combination is encoded as one number, which sorts much faster than columns.
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    found, counts = np.unique(np.ravel_multi_index(columns, sizes), return_counts=True)
    states: list[list[tuple[NodeState, int]]] = [[] for _ in range(len(leaves))]
    rows = zip(*(column.tolist() for column in np.unravel_index(found, sizes)), strict=True)
    for (at, *alike), count in zip(rows, counts.tolist(), strict=True):
        states[at].append((tuple(alike), count))
    return [tuple(state) for state in states]


# --- splits ---------------------------------------------------------------------------------------------


def count_fewest_leaves(room: Sequence[int], leaves: Iterable[int], pods: int) -> int | None:
    """The fewest of the leaves that hold the pods; None: all of them together do not."""
    held = 0
    for number, each in enumerate(sorted((room[leaf] for leaf in leaves), reverse=True), 1):
        held += each
        if held >= pods:
            return number
    return None


def split_over_leaves(room: Sequence[int], leaves: Iterable[int], pods: int) -> Parts | None:
    """Divide pods over the fewest leaves: the largest first, the last two with the least room left over.

    None: no room.
    """
    order = sorted([leaf for leaf in leaves if room[leaf]], key=room.__getitem__, reverse=True)
    parts: list[tuple[int, int]] = []
    first, last = 0, len(order) - 1
    while first < last and room[order[first]] + room[order[first + 1]] < pods:
        parts.append((order[first], room[order[first]]))
        pods -= room[order[first]]
        first += 1
    if first > last or (first == last and room[order[first]] < pods):
        return None
    if room[order[first]] >= pods:
        while room[order[last]] < pods:
            last -= 1
        return (*parts, (order[last], pods))
    one, other = _closest_pair(room, order, first, pods)
    return (*parts, (one, room[one]), (other, pods - room[one]))


def _closest_pair(room: Sequence[int], order: Sequence[int], first: int, pods: int) -> tuple[int, int]:
    """Two leaves that hold the pods with the least room left over, one of them as large as possible."""
    last = len(order) - 1
    best, found = -1, (order[first], order[first + 1])
    while first < last:
        over = room[order[first]] + room[order[last]] - pods
        if over < 0:
            last -= 1
            continue
        if best < 0 or over < best:
            best, found = over, (order[first], order[last])
            if not over:
                break
        first += 1
    return found


def find_leaf_sets(room: Sequence[int], leaves: Iterable[int], pods: int, number: int, most: int) -> list[list[int]]:
    """Sets of `number` leaves that hold the pods, the largest leaves first; at most `most` sets.

    Of sets with equal rooms only the first is listed.
    """
    order = sorted((leaf for leaf in leaves if room[leaf]), key=room.__getitem__, reverse=True)
    sums = [0]
    for leaf in order:
        sums.append(sums[-1] + room[leaf])
    found: list[list[int]] = []

    def extend(start: int, chosen: list[int], held: int) -> None:
        missing = number - len(chosen)
        if not missing:
            found.append(chosen)
            return
        last = -1
        for at in range(start, len(order) - missing + 1):
            if len(found) >= most or held + sums[at + missing] - sums[at] < pods:
                return
            each = room[order[at]]
            if each != last:
                last = each
                extend(at + 1, [*chosen, order[at]], held + each)

    extend(0, [], 0)
    return found


def split_over_set(room: Sequence[int], leaves: Sequence[int], pods: int) -> list[Parts]:
    """The ways to divide pods over all these leaves so that only one leaf has room left over."""
    over = sum(room[leaf] for leaf in leaves) - pods
    options: dict[int, Parts] = {}
    for kept in leaves:
        if room[kept] > over and room[kept] not in options:
            options[room[kept]] = tuple((leaf, room[leaf] - over * (leaf == kept)) for leaf in leaves)
    return list(options.values())[:1] if not over else list(options.values())

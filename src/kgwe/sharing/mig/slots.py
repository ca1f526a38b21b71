"""The GPU and the place for the next slice.

Slices never move, so a bad place has a cost until its workload ends. The cost of a place is what it takes away:
`room[state, p]` is how many more slices of profile p alone a GPU could hold, and a new slice lowers some of these
numbers.

    cost of a place = sum over p of  share(p) * units(p) * (room of p lost) / (1 + room of p in the whole fleet)
                      + (expected waste gained) / (3 * GPUs)

`share(p)` is the forecast share of requests. Without the divisor the first term is the growth of the expected number of
memory units that are free but cannot serve the next request: the measure of FGD, applied to slices. The divisor adds
scarcity: the last place for a 3g in a fleet is worth more than one of fifty. The second term looks further ahead:
`waste[state]` is the expected number of units that stay empty if requests of the mix keep coming, each in its best
place, until none fits. It mostly breaks ties: of two places with equal cost, the one that completes a good layout wins.
Remaining ties go to the GPU with the lowest number, which keeps the others empty for workloads that need whole GPUs.

Both tables are exact (dynamic programming over all layouts) and are built once per mix. A decision counts the states of
the fleet and multiplies a small matrix for the states that occur; its time does not depend on the number of GPUs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.sharing.mig import layout_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu import mig

# Weight of the look-ahead, per GPU: on random streams all from 1/6 to 1/2 are alike (docs/mig.md).
_LOOK_AHEAD: Final = 1 / 3
# Costs are sums of a few products of small numbers; closer than this they are equal.
_SAME: Final = 1e-12


class Shortage(enum.StrEnum):
    """Why no GPU has a place for a slice."""

    FULL = "InsufficientMIGSlices"
    """No GPU has enough free memory units for the profile."""
    HOLE = "MIGHole"
    """A GPU has enough free units, but slices in use block every start of the profile."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A decision: a place on a GPU."""

    gpu: int
    placement: mig.Placement
    state: int
    """The state of the GPU with the slice."""
    cost: float
    lost: Mapping[str, int]
    """For each profile of the mix, how many fewer slices of it the GPU can hold."""


@dataclass(frozen=True, slots=True)
class SlotRefusal:
    """No GPU has a place."""

    profile: str
    reason: Shortage
    most_free: int
    """Free memory units of the emptiest GPU."""
    free: int
    """Free memory units of all GPUs."""

    @property
    def detail(self) -> str:
        if self.reason is Shortage.FULL:
            return (
                f"no GPU has enough free memory units for a {self.profile}:"
                f" {self.free} free in all, at most {self.most_free} on one"
            )
        return (
            f"a GPU has {self.most_free} free memory units, but slices in use block every start of a {self.profile}"
            f" ({self.free} units free in all)"
        )


class SlotTable:
    """Costs of places for one geometry and one forecast mix; immutable."""

    def __init__(self, graph: layout_graph.LayoutGraph, mix: Mapping[str, float] | None = None) -> None:
        """`mix`: profile -> share of requests, on any positive scale; None: all plain profiles are equally likely."""
        self.graph = graph
        self.shares = _request_shares(graph, mix)
        self._units = np.array([profile.units for profile in graph.profiles], np.int64)
        self.room = graph.room
        self.free = graph.geometry.units - np.array([int(mask).bit_count() for mask in graph.occupied], np.int64)
        self.waste = _expected_waste(graph, self.shares, self.free)
        self.unusable: NDArray[np.float64] = self.free - (self.room * self._units) @ self.shares
        """state -> expected free units that cannot serve the next request of the mix."""
        self._weights = self.shares * self._units
        self._places = [np.array(graph.places_of(profile.name)) for profile in graph.profiles]

    def choose_slot(
        self, states: NDArray[np.integer], profile: str, allowed: NDArray[np.bool_] | None = None
    ) -> Slot | SlotRefusal:
        """The best place on any GPU, or on an allowed one; scarcity always counts all GPUs."""
        number = self.graph.find_profile(profile)
        counts = np.bincount(states, minlength=len(self.graph))
        present = np.flatnonzero(counts) if allowed is None else np.unique(states[allowed])
        costs, places = self._rate_states(present, number, counts)
        lowest = costs.min(initial=np.inf)
        if lowest == np.inf:
            return self._refuse(states if allowed is None else states[allowed], number)
        is_best = np.zeros(len(self.graph), np.bool_)
        is_best[present[costs <= lowest + _SAME]] = True
        candidates = is_best[states] if allowed is None else is_best[states] & allowed
        gpu = int(candidates.argmax())
        return self._slot(gpu, int(states[gpu]), int(places[np.searchsorted(present, states[gpu])]), float(lowest))

    def choose_slots(
        self, states: NDArray[np.integer], profiles: Sequence[str], allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Slot, ...] | SlotRefusal:
        """A place for every slice of one pod, in the requested order, or a refusal.

        Wide profiles are placed first. If that fails, all combinations are tried.
        """
        wide_first = sorted(range(len(profiles)), key=lambda i: -self._units[self.graph.find_profile(profiles[i])])
        after = np.array(states, np.int64)
        found: dict[int, Slot] = {}
        for i in wide_first:
            slot = self.choose_slot(after, profiles[i], allowed)
            if isinstance(slot, SlotRefusal):
                return self._search(states, profiles, wide_first, allowed) or slot
            found[i] = slot
            after[slot.gpu] = slot.state
        return tuple(found[i] for i in range(len(profiles)))

    def state_worth(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        """state -> worth of a GPU in it, for a fleet with `counts` GPUs in each state; a cost is a difference."""
        weights = self._weights / (1 + counts @ self.room)
        return np.asarray(self.room @ weights - self.waste * (_LOOK_AHEAD / max(1, counts.sum())))

    def _rate_states(
        self, present: NDArray[np.int64], number: int, counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """For each state in `present`, the cost of its best place (inf: none) and that place."""
        places = self._places[number]
        after = self.graph.with_place[np.ix_(present, places)]
        worth = self.state_worth(counts)
        costs = np.where(after == layout_graph.NONE, np.inf, worth[present][:, None] - worth[after])
        # Rounded: places that differ in the last bit only are equal, and their order decides.
        best = np.round(costs, 13).argmin(axis=1)
        return costs[np.arange(len(present)), best], places[best]

    def _slot(self, gpu: int, state: int, place: int, cost: float) -> Slot:
        after = int(self.graph.with_place[state, place])
        lost = self.room[state] - self.room[after]
        named = {
            profile.name: int(count)
            for profile, count, share in zip(self.graph.profiles, lost, self.shares, strict=True)
            if count and share
        }
        return Slot(gpu, self.graph.places[place], after, cost, named)

    def _refuse(self, states: NDArray[np.integer], number: int) -> SlotRefusal:
        free = self.free[states]
        most = int(free.max(initial=0))
        profile = self.graph.profiles[number]
        reason = Shortage.HOLE if most >= profile.units else Shortage.FULL
        return SlotRefusal(profile.name, reason, most, int(free.sum()))

    def _search(
        self,
        states: NDArray[np.integer],
        profiles: Sequence[str],
        order: Sequence[int],
        allowed: NDArray[np.bool_] | None,
    ) -> tuple[Slot, ...] | None:
        """Try every combination; GPUs in the same state are interchangeable."""
        current = np.array(states, np.int64)
        gpus = np.arange(len(current)) if allowed is None else np.flatnonzero(allowed)
        hopeless: set[tuple[int, tuple[int, ...]]] = set()
        found: dict[int, Slot] = {}

        def place(depth: int) -> bool:
            if depth == len(order):
                return True
            key = (depth, tuple(sorted(current[gpus].tolist())))
            if key in hopeless:
                return False
            for state in dict.fromkeys(current[gpus].tolist()):
                gpu = int(gpus[(current[gpus] == state).argmax()])
                for number in self.graph.places_of(profiles[order[depth]]):
                    if self.graph.with_place[state, number] == layout_graph.NONE:
                        continue
                    slot = self._slot(gpu, state, number, 0.0)
                    current[gpu], found[order[depth]] = slot.state, slot
                    if place(depth + 1):
                        return True
                    current[gpu] = state
            hopeless.add(key)
            return False

        return tuple(found[i] for i in range(len(order))) if place(0) else None


def _request_shares(graph: layout_graph.LayoutGraph, mix: Mapping[str, float] | None) -> NDArray[np.float64]:
    shares = np.zeros(len(graph.profiles))
    if mix is None:
        plain = layout_graph.plain_profiles(graph.geometry)
        mix = {profile.name: 1.0 for profile in graph.profiles if profile.name in plain}
    for name, share in mix.items():
        if not share >= 0:
            raise errors.Permanent(f"the forecast share of {name} is {share}: it must be 0 or more")
        shares[graph.find_profile(name)] = share
    total = shares.sum()
    if not 0 < total < np.inf:
        raise errors.Permanent("the forecast mix is empty: give at least one profile a share above 0")
    return np.asarray(shares / total)


def _expected_waste(
    graph: layout_graph.LayoutGraph, shares: NDArray[np.float64], free: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Expected free units after requests of the mix have filled the GPU, each in its best place, until none fits."""
    waste = np.zeros(len(graph))
    known = [
        (share, graph.places_of(profile.name)) for share, profile in zip(shares, graph.profiles, strict=True) if share
    ]
    # A layout with one more slice has a larger state number.
    for state in range(len(graph) - 1, -1, -1):
        outcome = weight = 0.0
        for share, places in known:
            after = graph.with_place[state, places.start : places.stop]
            if (after := after[after != layout_graph.NONE]).size:
                outcome += share * waste[after].min()
                weight += share
        waste[state] = outcome / weight if weight else free[state]
    return waste

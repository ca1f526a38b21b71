"""MIG policies of other systems, by name, for comparison.

    kgwe          the rule of `slots`
    first-fit     NVIDIA's DRA driver: devices are tried in the order they are advertised, card by card, start by start
    most-free     InstaSlice (now Dynamic Accelerator Slicer): the card with most free slices, first start that fits
    count-based   nos: GPUs are partitioned in advance into one of the known full geometries. If no slice of the
    profile is
             free, the first GPU gets a geometry that has one and keeps as many of each profile as are in use

Each policy gets requests one by one, never moves a running slice and serves each request it finds a slot for. These
are the rules from the sources, not the programs. Where a program does worse than its rule, the rule here tries the
next GPU: nos plans by counts alone, and the driver may refuse that geometry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe.sharing.mig import layout_graph, slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


class Policy(Protocol):
    """A policy that chooses slots for one fleet and gets each release."""

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        """Return (GPU, placement in the graph) for a profile number, or None if there is no free slot."""
        ...

    def on_release(self, card: int, place: int) -> None:
        """Record that a slice ended; the `states` of the next call show it too."""
        ...


class Kgwe:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del cards
        self._atlas = atlas
        self._table = slots.SlotTable(atlas, mix)
        self._numbers = {placement: number for number, placement in enumerate(atlas.places)}

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        slot = self._table.choose_slot(states, self._atlas.profiles[profile].name)
        return None if isinstance(slot, slots.SlotRefusal) else (slot.gpu, self._numbers[slot.placement])

    def on_release(self, card: int, place: int) -> None:
        pass


class FirstFit:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del mix, cards
        self._first = _first_places(atlas)

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        places = self._first[profile][states]
        card = int((places != layout_graph.NONE).argmax())
        return None if places[card] == layout_graph.NONE else (card, int(places[card]))

    def on_release(self, card: int, place: int) -> None:
        pass


class MostFree:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del mix, cards
        self._first = _first_places(atlas)
        self._free = atlas.geometry.units - np.array([int(mask).bit_count() for mask in atlas.occupied])

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        places = self._first[profile][states]
        free = np.where(places == layout_graph.NONE, -1, self._free[states])
        card = int(free.argmax())
        return None if free[card] < 0 else (card, int(places[card]))

    def on_release(self, card: int, place: int) -> None:
        pass


class CountBased:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del mix
        self._atlas = atlas
        # Current slices of each GPU, in use or not.
        self._cuts = np.zeros(cards, np.int64)
        # Geometries with most slices come first.
        self._full = sorted(np.flatnonzero(atlas.maximal).tolist(), key=lambda state: -len(atlas.list_places(state)))
        self._recuts: dict[tuple[int, int], int] = {}

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        for card, place in self._has_spare(states, profile):
            return card, place
        for card, state in enumerate(states.tolist()):
            if (cut := self._choose_geometry(state, profile)) != layout_graph.NONE:
                self._cuts[card] = cut
                return card, next(place for _, place in self._has_spare(states[card : card + 1], profile, card))
        return None

    def on_release(self, card: int, place: int) -> None:
        pass

    def _has_spare(self, states: NDArray[np.int64], profile: int, first: int = 0) -> list[tuple[int, int]]:
        """Return whether the GPU has a free slice of the profile."""
        cuts = self._atlas.layouts[self._cuts[first : first + len(states)]]
        places = np.flatnonzero(self._atlas.profile_of == profile)
        mask = sum(1 << int(place) for place in places)
        spare = cuts & ~self._atlas.layouts[states] & mask
        if not (spare != 0).any():
            return []
        card = int((spare != 0).argmax())
        return [(first + card, int(spare[card] & -spare[card]).bit_length() - 1)]

    def _choose_geometry(self, state: int, profile: int) -> int:
        """Return the first known geometry that has the profile besides all slices in use."""
        key = (state, profile)
        if key not in self._recuts:
            used = int(self._atlas.layouts[state])
            places = [int(place) for place in np.flatnonzero(self._atlas.profile_of == profile)]
            self._recuts[key] = next(
                (
                    full
                    for full in self._full
                    if (mask := int(self._atlas.layouts[full])) & used == used
                    and any((mask & ~used) >> place & 1 for place in places)
                ),
                layout_graph.NONE,
            )
        return self._recuts[key]


def _first_places(atlas: layout_graph.LayoutGraph) -> list[NDArray[np.int64]]:
    """Return for each profile: state -> the lowest free placement, or NONE."""
    first = []
    for profile in atlas.profiles:
        places = np.array(atlas.places_of(profile.name))
        fits = atlas.with_place[:, places] != layout_graph.NONE
        first.append(np.where(fits.any(axis=1), places[fits.argmax(axis=1)], layout_graph.NONE))
    return first


POLICIES: Final[Mapping[str, Callable[[layout_graph.LayoutGraph, Mapping[str, float], int], Policy]]] = {
    "kgwe": Kgwe,
    "first-fit": FirstFit,
    "most-free": MostFree,
    "count-based": CountBased,
}

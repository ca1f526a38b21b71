"""How others choose slots, by name, to be compared with.

    kgwe          the rule of `slots`
    first-fit     NVIDIA's DRA driver: devices are tried in the order they are advertised, card by card, start by start
    most-free     InstaSlice (now Dynamic Accelerator Slicer): the card with most free slices, first start that fits
    count-based   nos: cards are cut ahead into one of the known full geometries; when no slice of the profile is free,
                  the first card gets a geometry that has one and still as many of each profile as are in use

Each sees requests one by one, keeps what runs where it is and never refuses what it has found a place for.
They are the rules as read in the sources, not the programs; where a program would do worse than its rule (nos
plans by counts alone and may find that the card cannot be cut so), the rule here tries the next card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe.sharing.mig import layout_graph, slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


class Policy(Protocol):
    """Chooses for one fleet; told of every end."""

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        """(card, place) of the atlas for a profile by number; None when no place was found."""
        ...

    def released(self, card: int, place: int) -> None:
        """An instance ended; `states` of the next call say so, too."""
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

    def released(self, card: int, place: int) -> None:
        pass


class FirstFit:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del mix, cards
        self._first = _first_places(atlas)

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        places = self._first[profile][states]
        card = int((places != layout_graph.NONE).argmax())
        return None if places[card] == layout_graph.NONE else (card, int(places[card]))

    def released(self, card: int, place: int) -> None:
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

    def released(self, card: int, place: int) -> None:
        pass


class CountBased:
    def __init__(self, atlas: layout_graph.LayoutGraph, mix: Mapping[str, float], cards: int) -> None:
        del mix
        self._atlas = atlas
        # What each card is cut into, in use or not.
        self._cuts = np.zeros(cards, np.int64)
        # Known geometries are listed with the most slices first.
        self._full = sorted(np.flatnonzero(atlas.maximal).tolist(), key=lambda state: -len(atlas.list_places(state)))
        self._recuts: dict[tuple[int, int], int] = {}

    def place(self, states: NDArray[np.int64], profile: int) -> tuple[int, int] | None:
        for card, place in self._spare(states, profile):
            return card, place
        for card, state in enumerate(states.tolist()):
            if (cut := self._recut(state, profile)) != layout_graph.NONE:
                self._cuts[card] = cut
                return card, next(place for _, place in self._spare(states[card : card + 1], profile, card))
        return None

    def released(self, card: int, place: int) -> None:
        pass

    def _spare(self, states: NDArray[np.int64], profile: int, first: int = 0) -> list[tuple[int, int]]:
        """Slices of the profile that are cut and not in use; at most one."""
        cuts = self._atlas.layouts[self._cuts[first : first + len(states)]]
        places = np.flatnonzero(self._atlas.profile_of == profile)
        mask = sum(1 << int(place) for place in places)
        spare = cuts & ~self._atlas.layouts[states] & mask
        if not (spare != 0).any():
            return []
        card = int((spare != 0).argmax())
        return [(first + card, int(spare[card] & -spare[card]).bit_length() - 1)]

    def _recut(self, state: int, profile: int) -> int:
        """The first known geometry that has the profile besides all that is in use."""
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
    """For each profile: state -> the lowest place that is free, or NONE."""
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

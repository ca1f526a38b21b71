"""The graph of all MIG layouts of a geometry, numbered, with every step between two of them.

A *place* is a profile at one of its starts; a *layout* is a set of places that fit on one GPU together. There are few
of them (298 on a seven-slice GPU with the five plain profiles), so all questions about cutting are answered from tables
that are built once per geometry:

    graph = layout_graph.get_layout_graph(mig.GEOMETRIES["A100-80GB"])
    graph.layouts[state]                the layout as a bit mask over graph.places
    graph.with_place[state, place]      the layout with that instance more, or NONE
    graph.without_place[state, place]   the layout with that instance less, or NONE

`state` is the layout's number; 0 is the uncut GPU. States are ordered by their masks, so they mean the same in every
process.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

NONE: Final = -1
"""In a table of states: there is no such step."""


@dataclass(frozen=True, slots=True, eq=False)
class LayoutGraph:
    """All layouts of one geometry, or of some of its profiles."""

    geometry: mig.Geometry
    profiles: tuple[mig.Profile, ...]
    places: tuple[mig.Placement, ...]
    """Bit i of a layout is places[i]; ordered by profile, then start."""
    profile_of: NDArray[np.int64]
    """place -> index into profiles."""
    layouts: NDArray[np.int64]
    """state -> the set of places, as bits."""
    occupied: NDArray[np.int64]
    """state -> the memory units taken, as bits."""
    with_place: NDArray[np.int32]
    """[state, place] -> state with that instance created, or NONE."""
    without_place: NDArray[np.int32]
    """[state, place] -> state with that instance destroyed, or NONE."""

    def __len__(self) -> int:
        return len(self.layouts)

    @property
    def maximal(self) -> NDArray[np.bool_]:
        """state -> nothing more can be created."""
        return np.asarray((self.with_place == NONE).all(axis=1))

    def find_profile(self, profile: str) -> int:
        """The number of a profile by its name."""
        for number, known in enumerate(self.profiles):
            if known.name == profile:
                return number
        known_names = ", ".join(known.name for known in self.profiles)
        raise errors.Permanent(f"a {self.geometry.name} cut into {known_names} has no {profile!r}")

    def places_of(self, profile: str) -> range:
        """The places of a profile: they lie side by side."""
        found = np.flatnonzero(self.profile_of == self.find_profile(profile))
        return range(int(found[0]), int(found[-1]) + 1)

    def find_place(self, placement: mig.Placement) -> int:
        """The number of a place."""
        try:
            return self.places.index(placement)
        except ValueError:
            name = f"{placement.profile.name}@{placement.start}"
            raise errors.Permanent(f"{name} is no place on a {self.geometry.name}") from None

    def find_state(self, layout: Iterable[mig.Placement]) -> int:
        """The number of a layout; Permanent with the reason when it is not legal."""
        found = list(layout)
        if wrong := mig.find_problems(self.geometry, found):
            raise errors.Permanent(f"a {self.geometry.name} cannot be cut like this: {'; '.join(wrong)}")
        return self.find_mask(sum(1 << self.find_place(placement) for placement in found))

    def find_mask(self, mask: int) -> int:
        """The number of a layout given as bits."""
        if not self.is_layout(mask):
            raise errors.Permanent(f"{mask:#x} is no layout of a {self.geometry.name}")
        return int(np.searchsorted(self.layouts, mask))

    def is_layout(self, mask: int) -> bool:
        """Whether these places, as bits, are a layout."""
        state = int(np.searchsorted(self.layouts, mask))
        return state < len(self) and int(self.layouts[state]) == mask

    def layout(self, state: int) -> tuple[mig.Placement, ...]:
        """The instances of a state, by where they start."""
        return tuple(sorted((self.places[place] for place in self.list_places(state)), key=lambda each: each.start))

    def list_places(self, state: int) -> tuple[int, ...]:
        """The places of a state."""
        mask = int(self.layouts[state])
        return tuple(place for place in range(len(self.places)) if mask >> place & 1)

    def count_profiles(self, state: int) -> Mapping[str, int]:
        """How many of each profile a state has; profiles it has none of are left out."""
        return Counter(self.places[place].profile.name for place in self.list_places(state))

    @property
    def room(self) -> NDArray[np.int64]:
        """[state, profile] -> how many more of the profile alone could be created."""
        room = np.zeros((len(self), len(self.profiles)), np.int64)
        # States with an instance more have larger masks, so the last come first.
        for state in range(len(self) - 1, -1, -1):
            for place in np.flatnonzero(self.with_place[state] != NONE):
                profile = self.profile_of[place]
                room[state, profile] = max(room[state, profile], 1 + room[self.with_place[state, place], profile])
        return room


@functools.cache
def _cached_graph(name: str, profiles: tuple[str, ...]) -> LayoutGraph:
    return _build_graph(mig.GEOMETRIES[name], profiles)


def get_layout_graph(geometry: mig.Geometry, profiles: Sequence[str] | None = None) -> LayoutGraph:
    """The layouts of a geometry, of all its profiles or of those named (in the geometry's order)."""
    wanted = set(geometry.profiles if profiles is None else (geometry.profile(name).name for name in profiles))
    chosen = tuple(name for name in geometry.profiles if name in wanted)
    if mig.GEOMETRIES.get(geometry.name) is geometry:
        return _cached_graph(geometry.name, chosen)
    return _build_graph(geometry, chosen)


def plain_profiles(geometry: mig.Geometry) -> tuple[str, ...]:
    """One profile per number of compute slices: those without suffix and with the usual memory."""
    plain: dict[int, mig.Profile] = {}
    for profile in geometry.profiles.values():
        if profile.is_plain and (profile.compute not in plain or profile.units < plain[profile.compute].units):
            plain[profile.compute] = profile
    return tuple(profile.name for profile in plain.values())


def _build_graph(geometry: mig.Geometry, names: Sequence[str]) -> LayoutGraph:
    profiles = tuple(geometry.profiles[name] for name in names)
    places = tuple(mig.Placement(profile, start) for profile in profiles for start in profile.starts)
    units = [sum(1 << unit for unit in placement.occupied) for placement in places]
    masks = _legal_masks(geometry, places, units)
    number = {mask: state for state, mask in enumerate(masks)}
    steps = np.full((2, len(masks), len(places)), NONE, np.int32)
    for mask, state in number.items():
        for place in range(len(places)):
            steps[mask >> place & 1, state, place] = number.get(mask ^ 1 << place, NONE)
    return LayoutGraph(
        geometry=geometry,
        profiles=profiles,
        places=places,
        profile_of=np.array([profiles.index(placement.profile) for placement in places], np.int64),
        layouts=np.array(masks, np.int64),
        occupied=np.array([sum(u for i, u in enumerate(units) if mask >> i & 1) for mask in masks], np.int64),
        with_place=steps[0],
        without_place=steps[1],
    )


def _legal_masks(geometry: mig.Geometry, places: Sequence[mig.Placement], units: Sequence[int]) -> list[int]:
    """Grow the uncut GPU by one instance at a time; every part of a legal layout is legal, so none is missed."""
    found = {0}
    edge: list[tuple[int, int, tuple[mig.Placement, ...]]] = [(0, 0, ())]
    while edge:
        grown = []
        for mask, taken, layout in edge:
            # Upwards only: each set is reached along one path.
            for place in range(mask.bit_length(), len(places)):
                # An overlap is the most frequent problem, and found at once.
                if taken & units[place]:
                    continue
                wider = (*layout, places[place])
                if not mig.find_problems(geometry, wider):
                    grown.append((mask | 1 << place, taken | units[place], wider))
        found.update(mask for mask, _, _ in grown)
        edge = grown
    return sorted(found)

"""How the price of a GPU is divided among its MIG slices.

A slice weighs the mean of its part of the compute slices and its part of the memory slices. While another slice could
still be cut, the rest of the GPU is unallocated. Once no more slice fits, the slices bear the whole price: two 3g.40gb
fill an A100, so they pay all of it, although one compute slice is unused.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kgwe.model.gpu.mig import Geometry


class SlicePlace(NamedTuple):
    """A slice of a GPU: its profile and its first memory slice."""

    profile: str
    start: int


class SliceWeights(NamedTuple):
    """The weights of the slices of one GPU, in the order of its layout, and of what is not cut."""

    slices: tuple[int, ...]
    rest: int


def weigh_slices(geometry: Geometry, layout: tuple[SlicePlace, ...]) -> SliceWeights:
    """Return the weights of a layout. A profile that the GPU does not have weighs as much as nothing: it pays 0."""
    return _weigh(_Shape.of(geometry), layout)


class _Shape(NamedTuple):
    """A geometry that can be remembered by value."""

    compute: int
    units: int
    profiles: tuple[tuple[str, int, int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, geometry: Geometry) -> _Shape:
        found = tuple((each.name, each.compute, each.units, each.starts) for each in geometry.profiles.values())
        return cls(geometry.compute, geometry.units, found)


@functools.lru_cache(maxsize=4096)
def _weigh(shape: _Shape, layout: tuple[SlicePlace, ...]) -> SliceWeights:
    sizes = {name: (compute, units) for name, compute, units, _ in shape.profiles}
    known = [sizes.get(place.profile, (0, 0)) for place in layout]
    weights = tuple(compute * shape.units + units * shape.compute for compute, units in known)
    if _is_full(shape, layout, known):
        return SliceWeights(weights, 0)
    return SliceWeights(weights, max(2 * shape.compute * shape.units - sum(weights), 0))


def _is_full(shape: _Shape, layout: tuple[SlicePlace, ...], known: list[tuple[int, int]]) -> bool:
    """Whether no further slice can be cut."""
    if not any(units for _, units in known):
        return False
    left = shape.compute - sum(compute for compute, _ in known)
    taken = {
        unit
        for place, (_, units) in zip(layout, known, strict=True)
        for unit in range(place.start, place.start + units)
    }
    return not any(
        compute <= left and taken.isdisjoint(range(start, start + units))
        for _, compute, units, starts in shape.profiles
        for start in starts
    )

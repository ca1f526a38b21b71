"""Legal MIG layouts for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from kgwe.model.gpu import mig


@st.composite
def layouts(draw: st.DrawFn, geometry: mig.Geometry) -> tuple[mig.Placement, ...]:
    """A legal layout, grown from random places."""
    every = [mig.Placement(profile, start) for profile in geometry.profiles.values() for start in profile.starts]
    found: list[mig.Placement] = []
    for place in draw(st.lists(st.sampled_from(every), max_size=10)):
        if not mig.find_problems(geometry, [*found, place]):
            found.append(place)
    return tuple(sorted(found, key=lambda place: place.start))

"""What Multi-Instance GPU can cut a GPU into.

A GPU's memory is divided into units (8 on the big GPUs, 4 on an A30, 12 on an RTX PRO 6000) and its compute
into slices (7 or 4). An instance takes a run of units that may begin only at certain places, so whether a
profile still fits depends on where the others lie, not on how much is free:

    unit      0   1   2   3   4   5   6   7
    1g        .   .   .   .   .   .   .            one unit, starts 0..6: unit 7 has no compute slice of its own
    2g        [   ]   [   ]   [   ]                starts 0 2 4
    3g        [           ]   [           ]        starts 0 4
    4g        [           ]                        start 0
    7g        [                           ]        start 0

Names carry compute and memory (`3g.40gb`), so the same geometry has other names on a GPU of another size.
`+me` marks the one instance per GPU that also gets the media engines, `+me.all` the one that gets all of them,
`-me` one that has none, `+gfx` one that can draw.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_ALL_MEDIA: Final = "+me.all"


@dataclass(frozen=True, slots=True)
class Profile:
    """A size an instance may have on one kind of GPU."""

    name: str
    compute: int
    """Compute slices."""
    units: int
    """Memory units."""
    starts: tuple[int, ...]
    """Where it may begin."""
    limit: int
    """How many a GPU can hold at once."""
    memory_mib: int

    @property
    def resource(self) -> str:
        """The extended resource the device plugin offers it under (strategy mixed)."""
        return resource_of(self.name)

    @property
    def has_media(self) -> bool:
        """Whether it takes the media engines that only one instance can have."""
        return self.name.endswith(("+me", _ALL_MEDIA))

    @property
    def is_plain(self) -> bool:
        """Whether its name has no suffix."""
        return not {"+", "-"} & set(self.name)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How one kind of GPU can be cut."""

    name: str
    units: int
    compute: int
    profiles: Mapping[str, Profile]

    def profile(self, name: str) -> Profile:
        try:
            return self.profiles[name]
        except KeyError:
            known = ", ".join(self.profiles)
            raise errors.Permanent(f"a {self.name} has no MIG profile {name!r}; it has {known}") from None


@dataclass(frozen=True, slots=True)
class Placement:
    """One instance on a GPU."""

    profile: Profile
    start: int

    @property
    def occupied(self) -> range:
        return range(self.start, self.start + self.profile.units)

    def instance_id(self, geometry: Geometry) -> int:
        """The GPU instance id the driver gives it: halves of halves, counted as in a heap (7g is 0, 1g are 7..13)."""
        return geometry.units // self.profile.units - 1 + self.start // self.profile.units


def resource_of(profile: str) -> str:
    """`nvidia.com/mig-1g.10gb.me` of `1g.10gb+me`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def profile_of(resource: str) -> str:
    """`1g.10gb+me` of `nvidia.com/mig-1g.10gb.me`; empty for a resource that is no slice."""
    if not resource.startswith(amounts.MIG_PREFIX):
        return ""
    size, unit, extra = resource.removeprefix(amounts.MIG_PREFIX).partition("gb")
    return size + unit + extra.replace(".", "+", 1)


def parse_placement(geometry: Geometry, text: str) -> Placement:
    """`3g.40gb@4`: a profile and the unit it starts at."""
    name, at, start = text.partition("@")
    profile = geometry.profile(name)
    if not at or not start.isascii() or not start.isdigit() or int(start) not in profile.starts:
        starts = ", ".join(f"{name}@{s}" for s in profile.starts)
        raise errors.Permanent(f"{text!r} is no place on a {geometry.name}; {name} can be one of {starts}")
    return Placement(profile, int(start))


def find_problems(geometry: Geometry, layout: Sequence[Placement]) -> list[str]:
    """Why a GPU cannot be cut like this; empty when it can."""
    found: list[str] = []
    taken: dict[int, str] = {}
    for placement in layout:
        name = f"{placement.profile.name}@{placement.start}"
        if placement.start not in placement.profile.starts:
            found.append(f"{name} may only start at {_format_numbers(placement.profile.starts)}")
        if clash := sorted({taken[unit] for unit in placement.occupied if unit in taken}):
            found.append(f"{name} overlaps {', '.join(clash)}")
        taken.update(dict.fromkeys(placement.occupied, name))
    used = sum(placement.profile.compute for placement in layout)
    if used > geometry.compute:
        found.append(f"{used} compute slices are asked of {geometry.compute}")
    for profile in {placement.profile.name: placement.profile for placement in layout}.values():
        count = sum(placement.profile.name == profile.name for placement in layout)
        if count > profile.limit:
            found.append(f"{count} x {profile.name} are asked, a GPU holds {profile.limit}")
    if sum(placement.profile.has_media for placement in layout) > 1:
        found.append("only one instance per GPU can have the media engines (+me)")
    # Where all engines are with one instance, a plain neighbour would lack its own.
    if any(placement.profile.name.endswith(_ALL_MEDIA) for placement in layout):
        found += [
            f"{placement.profile.name}@{placement.start} lacks its media engines beside a {_ALL_MEDIA}"
            for placement in layout
            if not placement.profile.name.endswith((_ALL_MEDIA, "-me"))
        ]
    return found


def _format_numbers(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _geometry(name: str, units: int, compute: int, *profiles: Profile) -> Geometry:
    return Geometry(name, units, compute, {profile.name: profile for profile in profiles})


def _geometry_of_eighths(
    name: str, total_mib: int, sizes: tuple[int, int, int, int], memory_mib: Sequence[int] | None = None
) -> Geometry:
    """A GPU of 8 units and 7 slices; `sizes` are the gigabytes in the names for 1, 2, 4 and 8 units.

    `memory_mib` is what the driver reports for those four where that is known; it keeps a little back, so
    the plain share of the GPU that stands in for it elsewhere is slightly too much.
    """
    one, two, four, eight = sizes
    share = tuple(memory_mib or (total_mib * units // 8 for units in (1, 2, 4, 8)))
    return _geometry(
        name,
        8,
        7,
        Profile(f"1g.{one}gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7, share[0]),
        Profile(f"1g.{one}gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1, share[0]),
        Profile(f"1g.{two}gb", 1, 2, (0, 2, 4, 6), 4, share[1]),
        Profile(f"2g.{two}gb", 2, 2, (0, 2, 4), 3, share[1]),
        Profile(f"3g.{four}gb", 3, 4, (0, 4), 2, share[2]),
        Profile(f"4g.{four}gb", 4, 4, (0,), 1, share[2]),
        Profile(f"7g.{eight}gb", 7, 8, (0,), 1, share[3]),
    )


_KNOWN: Final = (
    _geometry_of_eighths("A100-40GB", 40960, (5, 10, 20, 40), (4864, 9856, 19968, 40192)),
    _geometry_of_eighths("A100-80GB", 81920, (10, 20, 40, 80), (9856, 19968, 40192, 80384)),
    _geometry_of_eighths("H100-80GB", 81559, (10, 20, 40, 80), (9984, 20096, 40448, 81152)),
    _geometry_of_eighths("H100-94GB", 95830, (12, 24, 47, 94), (11008, 22144, 47488, 95360)),
    _geometry_of_eighths("H100-96GB", 97871, (12, 24, 48, 96)),
    _geometry_of_eighths("H200-141GB", 143771, (18, 35, 71, 141)),
    _geometry_of_eighths("GH200-144GB", 147456, (18, 36, 72, 144)),
    _geometry_of_eighths("B200-180GB", 183359, (23, 45, 90, 180)),
    _geometry_of_eighths("GB200-186GB", 189471, (23, 47, 93, 186)),
    _geometry_of_eighths("B300-269GB", 275040, (34, 67, 135, 269)),
    _geometry_of_eighths("GB300-278GB", 284208, (35, 70, 139, 278)),
    _geometry(
        "A30-24GB",
        4,
        4,
        Profile("1g.6gb", 1, 1, (0, 1, 2, 3), 4, 5952),
        Profile("1g.6gb+me", 1, 1, (0, 1, 2, 3), 1, 5952),
        Profile("2g.12gb", 2, 2, (0, 2), 2, 12032),
        Profile("2g.12gb+me", 2, 2, (0, 2), 1, 12032),
        Profile("4g.24gb", 4, 4, (0,), 1, 24064),
    ),
    _geometry(
        "RTX-PRO-6000",
        12,
        4,
        Profile("1g.24gb", 1, 3, (0, 3, 6, 9), 4, 24192),
        Profile("1g.24gb+me", 1, 3, (0, 3, 6, 9), 1, 24192),
        Profile("1g.24gb+gfx", 1, 3, (0, 3, 6, 9), 4, 24192),
        Profile("1g.24gb+me.all", 1, 3, (0, 3, 6, 9), 1, 24192),
        Profile("1g.24gb-me", 1, 3, (0, 3, 6, 9), 4, 24192),
        Profile("2g.48gb", 2, 6, (0, 6), 2, 48512),
        Profile("2g.48gb+gfx", 2, 6, (0, 6), 2, 48512),
        Profile("2g.48gb+me.all", 2, 6, (0, 6), 1, 48512),
        Profile("2g.48gb-me", 2, 6, (0, 6), 2, 48512),
        Profile("4g.96gb", 4, 12, (0,), 1, 97152),
        Profile("4g.96gb+gfx", 4, 12, (0,), 1, 97152),
    ),
)

GEOMETRIES: Final[Mapping[str, Geometry]] = {geometry.name: geometry for geometry in _KNOWN}


class Phase(enum.StrEnum):
    """Progress of a GPU towards the layout in its spec; a GPU that has that layout has no phase."""

    CUTTING = "Cutting"
    WAITING = "Waiting"
    """An instance in use prevents the next step."""
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"

"""Which GPUs a pod is charged for where its node does not say which ones it holds.

All GPUs of a node cost the same, so the choice changes no pod's cost. It makes each GPU have one holder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.costing.metering.division import GpuClaim, GpuCut
from kgwe.costing.metering.mig_weights import SlicePlace
from kgwe.costing.segments import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.mig import Geometry


@dataclass(frozen=True, slots=True)
class GpuWish:
    """How many GPUs, shares and slices a pod requests."""

    gpus: int = 0
    shares: int = 0
    slices: tuple[tuple[str, int], ...] = ()
    """(profile, count)."""

    def __bool__(self) -> bool:
        return bool(self.gpus or self.shares or self.slices)


def choose_devices(wish: GpuWish, gpus: Sequence[GpuCut], held: Iterable[GpuClaim]) -> tuple[GpuClaim, ...]:
    """Return what a pod is charged for: the lowest free GPUs, shares and slices, else those that are held already."""
    taken = list(held)
    chosen = _choose_whole(wish.gpus, gpus, taken)
    chosen += _choose_shares(wish.shares, gpus, [*taken, *chosen])
    for profile, count in wish.slices:
        chosen += _choose_slices(profile, count, gpus, [*taken, *chosen])
    return tuple(chosen)


def _choose_whole(count: int, gpus: Sequence[GpuCut], taken: Sequence[GpuClaim]) -> list[GpuClaim]:
    busy = {each.gpu for each in taken}
    # Prefer GPUs that are free, and among these the ones that are not cut.
    order = sorted(range(len(gpus)), key=lambda number: (gpus[number].uuid in busy, bool(gpus[number].slices), number))
    return [GpuClaim(gpus[number].uuid) for number in order[:count]]


def _choose_shares(count: int, gpus: Sequence[GpuCut], taken: Sequence[GpuClaim]) -> list[GpuClaim]:
    if not count or not gpus:
        return []
    free = {each.uuid: each.shares for each in gpus}
    for each in taken:
        if each.gpu in free:
            free[each.gpu] -= each.shares if each.part is Part.SHARE else free[each.gpu]
    chosen: dict[str, int] = {}
    for _ in range(count):
        # A pod with several shares gets them on several GPUs, as device plugins prefer.
        best = max(gpus, key=lambda each: (free[each.uuid] > 0, -chosen.get(each.uuid, 0)))
        free[best.uuid] -= 1
        chosen[best.uuid] = chosen.get(best.uuid, 0) + 1
    return [GpuClaim(uuid, Part.SHARE, -1, shares) for uuid, shares in chosen.items()]


def _choose_slices(profile: str, count: int, gpus: Sequence[GpuCut], taken: Sequence[GpuClaim]) -> list[GpuClaim]:
    busy = {(each.gpu, each.start) for each in taken if each.part is Part.SLICE}
    places = [
        GpuClaim(gpu.uuid, Part.SLICE, place.start)
        for gpu in gpus
        for place in gpu.slices
        if place.profile.partition("+")[0] == profile.partition("+")[0]
    ]
    places.sort(key=lambda each: (each.gpu, each.start) in busy)
    return places[:count]


def guess_layouts(geometry: Geometry, gpus: int, profiles: Mapping[str, int]) -> tuple[tuple[SlicePlace, ...], ...]:
    """Return layouts that have the advertised number of slices of each profile: the largest first, where they fit."""
    layouts: list[list[SlicePlace]] = [[] for _ in range(gpus)]
    wanted = [
        geometry.profiles[name] for name, count in profiles.items() if name in geometry.profiles for _ in range(count)
    ]
    for profile in sorted(wanted, key=lambda each: (-each.units, -each.compute)):
        for layout in layouts:
            used = sum(geometry.profiles[place.profile].compute for place in layout)
            busy = {
                unit
                for place in layout
                for unit in range(place.start, place.start + geometry.profiles[place.profile].units)
            }
            starts = [start for start in profile.starts if busy.isdisjoint(range(start, start + profile.units))]
            if starts and used + profile.compute <= geometry.compute:
                layout.append(SlicePlace(profile.name, starts[0]))
                break
    return tuple(tuple(sorted(layout, key=lambda each: each.start)) for layout in layouts)

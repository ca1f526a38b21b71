"""The cheapest re-cut of GPUs that gives a blocked profile its slices.

Slices in use are never touched and never move. Spare slices (created, but without a pod) may be destroyed, and new ones
created where the geometry allows. Of all re-cuts that give the wanted number of slices, the plan is the one that
destroys the fewest spare slices, then creates the fewest, then costs the forecast requests the least room (`slots`).
A spare slice of the wanted profile is used as it is. Slices in use whose pods consent to move may be passed as
*yielding*: they are destroyed only if there is no other way, and then as few memory units of them as possible.

The search is exact: all combinations on one GPU are tried, and dynamic programming divides the wanted number over the
GPUs. A refusal names the slices that must end first; for one missing slice, the smallest such set.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.sharing.mig.slots import Shortage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu import mig
    from kgwe.sharing.mig import layout_graph
    from kgwe.sharing.mig.slots import SlotTable


@dataclass(frozen=True, slots=True)
class GpuSlices:
    """The slices of one GPU."""

    used: tuple[mig.Placement, ...] = ()
    spare: tuple[mig.Placement, ...] = ()
    yielding: tuple[mig.Placement, ...] = ()
    """In use by pods that consent to move."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one GPU: destroy first, then create."""

    gpu: int
    destroy: tuple[mig.Placement, ...]
    create: tuple[mig.Placement, ...]
    serve: tuple[mig.Placement, ...]
    """The slices that serve the request: created now, or spare before."""
    vacate: tuple[mig.Placement, ...] = ()
    """Slices whose pods must move first; they are destroyed after that."""

    def apply_to(self, gpu: GpuSlices) -> GpuSlices:
        """The GPU after the change, with the served slices in use."""
        gone = {*self.destroy, *self.serve, *self.vacate}
        used = (*gpu.used, *(each for each in gpu.yielding if each not in gone), *self.serve)
        return GpuSlices(used, tuple(each for each in gpu.spare if each not in gone))


@dataclass(frozen=True, slots=True)
class Recut:
    """A plan that serves the whole request."""

    changes: tuple[Change, ...]

    @property
    def destroyed(self) -> int:
        return sum(len(change.destroy) for change in self.changes)

    @property
    def vacated_units(self) -> int:
        """Memory units of slices whose pods must move."""
        return sum(place.profile.units for change in self.changes for place in change.vacate)

    @property
    def created(self) -> int:
        return sum(len(change.create) for change in self.changes)

    @property
    def reason(self) -> str:
        if not self.created:
            return "spare instances serve as they are"
        if vacated := sum(len(change.vacate) for change in self.changes):
            return f"{vacated} in use make way, {self.destroyed} spare destroyed, {self.created} created"
        if not self.destroyed:
            return f"{self.created} created in free units"
        return f"{self.destroyed} spare destroyed, {self.created} created; nothing in use is touched"


@dataclass(frozen=True, slots=True)
class RecutRefusal:
    """No legal re-cut serves the request, and what would have to end."""

    profile: str
    asked: int
    possible: int
    """How many could be served."""
    reason: Shortage
    ends: tuple[tuple[int, mig.Placement], ...]
    """(GPU, slice in use) that must end to serve the request; for one missing slice, the smallest such set."""

    @property
    def detail(self) -> str:
        ends = ", ".join(f"{each.profile.name}@{each.start} on GPU {gpu}" for gpu, each in self.ends)
        served = f"{self.possible} of {self.asked} x {self.profile} can be cut without touching what is in use"
        return f"{served}; the rest needs the end of {ends}" if ends else f"{served}; the GPUs are too few"


class _Cost(NamedTuple):
    vacated: int
    """Memory units."""
    destroyed: int
    created: int
    lost: float

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(
            self.vacated + other.vacated,
            self.destroyed + other.destroyed,
            self.created + other.created,
            self.lost + other.lost,
        )


_NOTHING: Final = _Cost(0, 0, 0, 0.0)


class _Kind(NamedTuple):
    """The slices of a GPU as bit masks over the places."""

    used: int
    spare: int
    yielding: int


class _Option(NamedTuple):
    """One way to serve some slices on one GPU."""

    cost: _Cost
    serve: int
    destroy: int
    """A mask over the places, as is `serve`."""


def plan_recut(table: SlotTable, gpus: Sequence[GpuSlices], profile: str, count: int = 1) -> Recut | RecutRefusal:
    """Plan a re-cut of these GPUs for `count` slices of a profile, or name the slices in the way."""
    graph = table.graph
    wanted = list(graph.places_of(profile))
    masks = [_Kind(*(_to_mask(graph, part) for part in (gpu.used, gpu.spare, gpu.yielding))) for gpu in gpus]
    states = np.array([graph.find_mask(kind.used | kind.yielding) for kind in masks], np.int64)
    worth = table.state_worth(np.bincount(states, minlength=len(graph)))
    ways: dict[_Kind, list[_Option | None]] = {}
    few: dict[_Kind, int] = {}
    chosen: list[tuple[int, list[_Option | None]]] = []
    for number, kind in enumerate(masks):
        # GPUs of a kind are alike: more of them than requested slices cannot help.
        few[kind] = few.get(kind, 0) + 1
        if few[kind] > count:
            continue
        if kind not in ways:
            ways[kind] = _list_options(graph, kind, wanted, count, worth)
        chosen.append((number, ways[kind]))
    shared = _distribute(chosen, count)
    if len(shared) > count:
        return Recut(tuple(_build_change(graph, gpu, masks[gpu], way) for gpu, way in shared[count]))
    return _refuse(table, gpus, profile, count, shared)


def _list_options(
    graph: layout_graph.LayoutGraph, kind: _Kind, wanted: Sequence[int], count: int, worth: NDArray[np.float64]
) -> list[_Option | None]:
    """The cheapest way to serve 0, 1, 2, … slices on a GPU of this kind; None: impossible."""
    used, spare, yielding = kind
    before = worth[graph.find_mask(used | yielding)]
    best: list[_Option | None] = [_Option(_NOTHING, 0, 0)]
    for amount in range(1, min(count, len(wanted)) + 1):
        found = None
        for places in itertools.combinations(wanted, amount):
            serve = sum(1 << place for place in places)
            # Moving a pod so that another pod gets the same slice is not a re-cut.
            if serve & (used | yielding) or not graph.is_layout(used | serve):
                continue
            destroy = _find_fewest_removed(graph, used | serve, spare & ~serve | yielding, yielding)
            vacate = destroy & yielding
            lost = float(before - worth[graph.find_mask(used | serve | yielding & ~vacate)])
            cost = _Cost(
                _count_units(graph, vacate),
                (destroy & ~vacate).bit_count(),
                (serve & ~spare).bit_count(),
                round(lost, 12),
            )
            if found is None or cost < found.cost:
                found = _Option(cost, serve, destroy)
        best.append(found)
        if found is None:
            break
    return best


def _find_fewest_removed(graph: layout_graph.LayoutGraph, kept: int, others: int, dear: int = 0) -> int:
    """The smallest part of `others` to remove so that the rest fits beside `kept`.

    As few memory units of `dear` as possible are removed; among those sets, as few slices as possible.
    """
    bits = [1 << bit for bit in range(others.bit_length()) if others >> bit & 1]
    # A slice that does not fit beside `kept` alone must go; usually that is all.
    gone = sum(bit for bit in bits if not graph.is_layout(kept | bit))
    rest = [bit for bit in bits if not bit & gone]
    ways = (sum(more) for amount in range(len(rest) + 1) for more in itertools.combinations(rest, amount))
    if dear:
        return _find_first_legal(
            graph, kept, others, gone, sorted(ways, key=lambda w: (_count_units(graph, w & dear), w.bit_count()))
        )
    return _find_first_legal(graph, kept, others, gone, ways)


def _find_first_legal(graph: layout_graph.LayoutGraph, kept: int, others: int, gone: int, ways: Iterable[int]) -> int:
    return next((gone | more for more in ways if graph.is_layout(kept | others & ~(gone | more))), others)


def _count_units(graph: layout_graph.LayoutGraph, mask: int) -> int:
    return sum(place.profile.units for place in _from_mask(graph, mask)) if mask else 0


def _distribute(gpus: Sequence[tuple[int, list[_Option | None]]], count: int) -> list[tuple[tuple[int, _Option], ...]]:
    """The cheapest ways to serve 0, 1, 2, … slices over all GPUs, up to the largest possible number."""
    best: list[tuple[_Cost, tuple[tuple[int, _Option], ...]] | None] = [(_NOTHING, ())] + [None] * count
    for number, ways in gpus:
        for total in range(count, 0, -1):
            for amount in range(1, min(total, len(ways) - 1) + 1):
                way, rest = ways[amount], best[total - amount]
                if way is None or rest is None:
                    continue
                cost = rest[0].plus(way.cost)
                present = best[total]
                if present is None or cost < present[0]:
                    best[total] = (cost, (*rest[1], (number, way)))
    return [each[1] for each in itertools.takewhile(lambda each: each is not None, best) if each is not None]


def _refuse(
    table: SlotTable,
    gpus: Sequence[GpuSlices],
    profile: str,
    count: int,
    shared: Sequence[tuple[tuple[int, _Option], ...]],
) -> RecutRefusal:
    """Serve as many slices as possible, then end the fewest slices in use for each missing one."""
    graph = table.graph
    possible = len(shared) - 1
    held = [0] * len(gpus)
    for gpu, way in shared[possible]:
        held[gpu] = way.serve
    used = [_to_mask(graph, (*gpu.used, *gpu.yielding)) for gpu in gpus]
    wanted = list(graph.places_of(profile))
    ends: list[tuple[int, mig.Placement]] = []
    for _ in range(count - possible):
        openings = [
            opening
            for number in range(len(gpus))
            for opening in _list_openings(graph, used[number], held[number], wanted, number)
        ]
        if not openings:
            ends = []
            break
        _, _, number, place, blockers = min(openings)
        ends += [(number, graph.places[bit]) for bit in range(len(graph.places)) if blockers >> bit & 1]
        used[number] &= ~blockers
        held[number] |= 1 << place
    free = [table.free[graph.find_mask(_to_mask(graph, (*gpu.used, *gpu.yielding)))] for gpu in gpus]
    units = graph.profiles[graph.find_profile(profile)].units
    spread = sum(int(each) // units for each in free)
    return RecutRefusal(profile, count, possible, Shortage.HOLE if spread >= count else Shortage.FULL, tuple(ends))


def _list_openings(
    graph: layout_graph.LayoutGraph, used: int, held: int, wanted: Sequence[int], number: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """For each place: (slices, units, GPU, place, mask of slices) that must end to open it."""
    for place in wanted:
        if graph.is_layout(held | 1 << place) and not held >> place & 1:
            # A slice of the same profile in the same place is in the way too.
            blockers = _find_fewest_removed(graph, held | 1 << place, used & ~(1 << place)) | used & 1 << place
            yield blockers.bit_count(), _count_units(graph, blockers), number, place, blockers


def _build_change(graph: layout_graph.LayoutGraph, number: int, kind: _Kind, way: _Option) -> Change:
    parts = way.destroy & ~kind.yielding, way.serve & ~kind.spare, way.serve, way.destroy & kind.yielding
    return Change(number, *(_from_mask(graph, part) for part in parts))


def _to_mask(graph: layout_graph.LayoutGraph, placements: Sequence[mig.Placement]) -> int:
    return sum(1 << graph.find_place(placement) for placement in placements)


def _from_mask(graph: layout_graph.LayoutGraph, mask: int) -> tuple[mig.Placement, ...]:
    return tuple(graph.places[place] for place in range(len(graph.places)) if mask >> place & 1)


def free_instance(gpu: GpuSlices, placement: mig.Placement) -> GpuSlices:
    """The GPU after a slice in use has ended: the slice becomes spare."""
    return replace(
        gpu,
        used=tuple(each for each in gpu.used if each != placement),
        spare=(*gpu.spare, placement),
    )

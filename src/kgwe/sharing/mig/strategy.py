"""Layouts for a MIGStrategy, whose distribution gives each profile a share of the GPU memory.

A share is a fraction of the memory units of all selected GPUs together. The remainder to 1 stays uncut:
`floor(remainder * GPUs)` GPUs are left whole. The rest is rounded over all GPUs at once, by largest remainder:

1. Each profile gets the whole slices in its share, `floor(share * units of all GPUs / units of one slice)`.
2. The units left over give one more slice to each profile, where they suffice, in the order of the fractions cut off in
   step 1: largest first, then the wider profile, then by name.
3. Units that still remain stay free.

Then the slices are laid out, wide profiles and those with few starts first, each where it takes the least room from the
profiles that follow. That is exact for all known geometries, whose places nest in each other. Some rounded numbers are
not possible on any layout, such as eight 1g on one GPU, whose eighth unit only a wider slice can use. They are reported
as short; GPUs that stay whole are never cut for them.

Slices in use stay, and count for their profile even beyond its share. Spare slices stay where the new layout has them.
If keeping them leaves a profile short that a fresh layout has room for, the fresh layout is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.sharing.mig import layout_graph
from kgwe.sharing.mig.recut import GpuSlices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.model.gpu import mig

# Shares in a manifest are decimal or binary fractions; this reads both as intended.
_FINEST_SHARE: Final = 1_000_000
# Three thirds make a little more than one.
_ONE: Final = Fraction(1_000_001, 1_000_000)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The planned layout of one GPU."""

    layout: tuple[mig.Placement, ...]
    """All slices after the change, by start; empty: a whole GPU."""
    destroy: tuple[mig.Placement, ...] = ()
    create: tuple[mig.Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class FittedLayouts:
    """The layouts of all GPUs, in the given order, and how near they come to the distribution."""

    gpus: tuple[GpuPlan, ...]
    wanted: Mapping[str, int]
    """Slices of each profile after rounding."""
    counts: Mapping[str, int]
    """Slices of each profile in these layouts."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Profile -> its share of the memory units in these layouts: status.currentDistribution."""

    @property
    def short(self) -> Mapping[str, int]:
        """Slices that no layout has room for beside those in use."""
        return {name: missing for name, n in self.wanted.items() if (missing := n - self.counts.get(name, 0)) > 0}

    @property
    def over(self) -> Mapping[str, int]:
        """Slices in use beyond the share of their profile; they go when their workloads end."""
        return {name: extra for name, n in self.counts.items() if (extra := n - self.wanted.get(name, 0)) > 0}

    @property
    def whole(self) -> int:
        return sum(not gpu.layout for gpu in self.gpus)


def round_shares(geometry: mig.Geometry, gpus: int, distribution: Mapping[str, float]) -> dict[str, int]:
    """Slices of each profile on that many GPUs, by the rounding above."""
    shares = _parse_distribution(geometry, distribution)
    units = gpus * geometry.units
    exact = {name: share * units / geometry.profile(name).units for name, share in shares.items()}
    counts = {name: int(amount) for name, amount in exact.items()}
    left = int(sum(shares.values()) * units) - sum(n * geometry.profile(name).units for name, n in counts.items())
    for name in sorted(exact, key=lambda each: (counts[each] - exact[each], -geometry.profile(each).units, each)):
        size = geometry.profile(name).units
        if exact[name] > counts[name] and size <= left:
            counts[name] += 1
            left -= size
    return counts


def count_whole_gpus(geometry: mig.Geometry, gpus: int, distribution: Mapping[str, float]) -> int:
    """GPUs that the distribution leaves whole."""
    return int((1 - sum(_parse_distribution(geometry, distribution).values())) * gpus)


def fit_distribution(
    geometry: mig.Geometry, gpus: Sequence[GpuSlices], distribution: Mapping[str, float]
) -> FittedLayouts:
    """The layouts nearest to a distribution that keep all slices in use."""
    wanted = round_shares(geometry, len(gpus), distribution)
    whole = count_whole_gpus(geometry, len(gpus), distribution)
    names = {*wanted, *(each.profile.name for gpu in gpus for each in (*gpu.used, *gpu.spare))}
    graph = layout_graph.get_layout_graph(geometry, tuple(names))
    # GPUs in use first, then those already cut: whole GPUs are best left whole.
    order = sorted(range(len(gpus)), key=lambda i: (not gpus[i].used, not gpus[i].spare, i))
    open_gpus = np.zeros(len(gpus), np.bool_)
    open_gpus[order[: len(gpus) - whole]] = True
    kept = _keep_used(gpus, wanted, open_gpus)
    fresh = _fill_layouts(graph, [gpu.used for gpu in gpus], wanted, open_gpus)
    gentle = _fill_layouts(graph, kept, wanted, open_gpus)
    states = gentle if _count_units(graph, gentle, wanted) >= _count_units(graph, fresh, wanted) else fresh
    return _build_layouts(graph, gpus, states, wanted)


def plan_uncut(geometry: mig.Geometry, gpus: int, distribution: Mapping[str, float]) -> FittedLayouts:
    """Layouts for that many uncut GPUs."""
    return fit_distribution(geometry, [GpuSlices()] * gpus, distribution)


def _parse_distribution(geometry: mig.Geometry, distribution: Mapping[str, float]) -> dict[str, Fraction]:
    shares: dict[str, Fraction] = {}
    for name in sorted(distribution):
        geometry.profile(name)
        if not 0 < distribution[name] <= 1:
            raise errors.Permanent(f"the share of {name} is {distribution[name]}: it must be above 0 and up to 1")
        shares[name] = Fraction(distribution[name]).limit_denominator(_FINEST_SHARE)
    total = sum(shares.values(), Fraction(0))
    if total > _ONE:
        raise errors.Permanent(f"the shares add up to {float(total):.6g}, more than 1: lower some")
    return {name: share / max(total, Fraction(1)) for name, share in shares.items()}


def _keep_used(
    gpus: Sequence[GpuSlices], wanted: Mapping[str, int], open_gpus: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[tuple[mig.Placement, ...]]:
    """The slices in use, and the wanted spare slices; the first of them if there are too many."""
    need = Counter(wanted)
    need.subtract(each.profile.name for gpu in gpus for each in gpu.used)
    kept = []
    for gpu, is_open in zip(gpus, open_gpus.tolist(), strict=True):
        stay = list(gpu.used)
        for each in gpu.spare:
            if is_open and need[each.profile.name] > 0:
                need[each.profile.name] -= 1
                stay.append(each)
        kept.append(tuple(stay))
    return kept


def _fill_layouts(
    graph: layout_graph.LayoutGraph,
    kept: Sequence[Sequence[mig.Placement]],
    wanted: Mapping[str, int],
    open_gpus: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[int]:
    """Add wanted slices, wide profiles first, each where it takes the least room from the profiles that follow."""
    states = np.array([graph.find_state(layout) for layout in kept], np.int64)
    present = Counter(each.profile.name for layout in kept for each in layout)
    room = graph.room
    order = sorted(
        (graph.geometry.profile(name) for name, n in wanted.items() if n > present[name]),
        key=lambda each: (-each.units, len(each.starts), each.limit, -each.compute, each.name),
    )
    for number, profile in enumerate(order):
        # Room for wide profiles outweighs all room for narrow ones: no GPU holds 16 slices.
        worth = np.zeros(len(graph), np.int64)
        for later in order[number + 1 :]:
            worth = worth * 16 + room[:, graph.find_profile(later.name)]
        places = np.array(graph.places_of(profile.name))
        after = graph.with_place[:, places]
        lost = np.where(after == layout_graph.NONE, np.iinfo(np.int64).max, 2 * (worth[:, None] - worth[after]))
        # Of equal places, one on a GPU that is already cut.
        cost = lost.min(axis=1) + ((np.arange(len(graph)) == 0) & (lost.min(axis=1) < np.iinfo(np.int64).max))
        best = after[np.arange(len(graph)), lost.argmin(axis=1)]
        for _ in range(wanted[profile.name] - present[profile.name]):
            costs = np.where(open_gpus, cost[states], np.iinfo(np.int64).max)
            if not len(costs) or (gpu := int(costs.argmin())) < 0 or costs[gpu] == np.iinfo(np.int64).max:
                break
            states[gpu] = best[states[gpu]]
    return [int(state) for state in states]


def _count_units(graph: layout_graph.LayoutGraph, states: Sequence[int], wanted: Mapping[str, int]) -> int:
    """Memory units of the wanted slices in these states."""
    counts = _count_slices(graph, states)
    return sum(min(n, counts[name]) * graph.geometry.profile(name).units for name, n in wanted.items())


def _count_slices(graph: layout_graph.LayoutGraph, states: Sequence[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for state, times in Counter(states).items():
        for name, n in graph.count_profiles(state).items():
            counts[name] += n * times
    return counts


def _build_layouts(
    graph: layout_graph.LayoutGraph, gpus: Sequence[GpuSlices], states: Sequence[int], wanted: Mapping[str, int]
) -> FittedLayouts:
    plans = []
    for gpu, state in zip(gpus, states, strict=True):
        layout = graph.layout(state)
        before = {*gpu.used, *gpu.spare}
        plans.append(
            GpuPlan(
                layout,
                destroy=tuple(each for each in gpu.spare if each not in layout),
                create=tuple(each for each in layout if each not in before),
            )
        )
    counts = dict(sorted(_count_slices(graph, states).items()))
    units = max(1, len(gpus) * graph.geometry.units)
    shares = {name: n * graph.geometry.profile(name).units / units for name, n in counts.items()}
    return FittedLayouts(tuple(plans), wanted, counts, shares)

"""The working copy of a rebalance: GPUs while slices are set aside, laid out, re-cut and drained.

`rebalance` decides the order; nothing here reads a clock.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph, recut, strategy
from kgwe.sharing.mig.recut import GpuSlices, Recut, RecutRefusal
from kgwe.sharing.mig.slots import SlotTable
from kgwe.sharing.mig.types import PartitionedGpu, SliceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.sharing.mig.types import Drain, Gate, Group, MovablePod

#: moving less than this part of the memory units is not worth a cut
DEAD_BAND: Final = 0.1
# Resolution of the forecast mix: a table is built for each mix.
_MIX_STEPS: Final = 10


def known_profiles(geometry: mig.Geometry, distribution: Mapping[str, float]) -> dict[str, float]:
    """The part of a distribution that the geometry supports."""
    return {name: share for name, share in distribution.items() if name in geometry.profiles}


class WorkingSet:
    """The GPUs of a group during a rebalance."""

    def __init__(self, group: Group, gate: Gate) -> None:
        self._group = group
        self.gate = gate
        self._gpus = list(group.gpus)
        # GPUs that stay as they are until the asked pods have left.
        self._frozen = {number for number, gpu in enumerate(group.gpus) if gpu.drain is not None}
        self._put_aside: dict[int, list[mig.Placement]] = {number: [] for number in range(len(group.gpus))}
        self._seen: dict[tuple[int, bool], GpuSlices] = {}
        self._kinds: dict[tuple[int, bool], tuple[frozenset[str], frozenset[str], bool]] = {}
        self._on: dict[str, list[int]] = {}
        for number, gpu in enumerate(group.gpus):
            self._on.setdefault(gpu.node, []).append(number)
        self._distribution = known_profiles(group.geometry, group.distribution)
        self._least_whole = strategy.count_whole_gpus(group.geometry, len(group.gpus), self._distribution)

    @property
    def gpus(self) -> tuple[PartitionedGpu, ...]:
        """The GPUs in their order, as decided so far."""
        return tuple(self._gpus)

    def copy(self) -> WorkingSet:
        """A copy for trials."""
        other = WorkingSet(self._group, self.gate)
        other._gpus, other._frozen = list(self._gpus), set(self._frozen)
        other._put_aside = {number: list(places) for number, places in self._put_aside.items()}
        return other

    def _list_free(self, number: int) -> list[mig.Placement]:
        gpu = self._gpus[number]
        kept = (*self._put_aside[number], *(gpu.drain.places if gpu.drain else ()))
        return [place for place in gpu.spare if place not in kept]

    def _occupied_places(self, number: int, *, and_warm: bool) -> tuple[mig.Placement, ...]:
        gpu = self._gpus[number]
        warm = [place for place in gpu.warm if place in gpu.spare] if and_warm else []
        return tuple(dict.fromkeys((*gpu.used, *self._put_aside[number], *warm)))

    # --- 1. spare slices --------------------------------------------------------------------------------

    def set_aside(self, asks: Iterable[SliceRequest]) -> list[SliceRequest]:
        """Set spare slices aside for waiting requests; returns the remaining requests."""
        spare: dict[tuple[str, str], list[tuple[int, mig.Placement]]] = {}
        for node, numbers in self._on.items():
            for number in numbers:
                for place in self._list_free(number):
                    spare.setdefault((place.profile.name, node), []).append((number, place))
        left = []
        for ask in asks:
            enough = (
                found
                for (profile, node), found in spare.items()
                if profile == ask.profile and len(found) >= ask.count and ask.allows_node(node)
            )
            places = next(enough, None)
            if places is None:
                left.append(ask)
                continue
            for number, place in (places.pop() for _ in range(ask.count)):
                self._put_aside[number].append(place)
                self._invalidate(number)
        return left

    # --- 2. the distribution ----------------------------------------------------------------------------

    def apply_distribution(self) -> Mapping[str, int]:
        """Apply the distribution where that is due; returns the slices it lacks."""
        group = self._group
        everywhere = group.is_due or not group.is_dynamic
        if not everywhere and all(gpu.is_decided for gpu in self._gpus):
            return {}
        if not self._distribution:
            self._mark_decided()
            return {}
        # New GPUs first, then idle ones: the GPUs left whole should be those that pods use undivided.
        order = sorted(range(len(self._gpus)), key=lambda i: (self._gpus[i].is_decided, self._gpus[i].is_taken, i))
        shares = self._wanted_shares()
        cut = strategy.fit_distribution(
            group.geometry, [self._as_is(i, is_open=self._may_change(i, everywhere=everywhere)) for i in order], shares
        )
        if group.is_dynamic and group.is_due and not self._is_worth_it(cut):
            self._mark_decided()
            return {}
        # GPUs that become whole come first, so that no other GPU is cut to replace them.
        for number, plan in sorted(zip(order, cut.gpus, strict=True), key=lambda each: bool(each[1].layout)):
            self._set_layout(number, plan.layout, may_change=self._may_change(number, everywhere=everywhere))
        return cut.short

    def _may_change(self, number: int, *, everywhere: bool) -> bool:
        gpu = self._gpus[number]
        if number in self._frozen:
            return False
        if not gpu.is_decided:
            return gpu.is_open
        return gpu.is_open and everywhere and not (self._group.is_dynamic and gpu.is_taken)

    def _as_is(self, number: int, *, is_open: bool) -> GpuSlices:
        held = self._occupied_places(number, and_warm=self._group.is_dynamic)
        if not is_open:
            return GpuSlices(self._gpus[number].layout)
        return GpuSlices(held, tuple(place for place in self._gpus[number].spare if place not in held))

    def _wanted_shares(self) -> Mapping[str, float]:
        """The distribution; a dynamic one moves halfway to the recent requests."""
        group, given = self._group, self._distribution
        asked = {name: weight for name, weight in group.mix.items() if name in group.geometry.profiles and weight > 0}
        if not group.is_dynamic or not asked:
            return given
        units = {name: weight * group.geometry.profile(name).units for name, weight in asked.items()}
        whole, total = sum(given.values()), sum(units.values())
        # A thousandth of rounding error must not make more than one of the shares.
        return {
            name: round((given.get(name, 0.0) + whole * units.get(name, 0.0) / total) / 2 - 5e-7, 6)
            for name in sorted({*given, *units})
        }

    def _is_worth_it(self, cut: strategy.FittedLayouts) -> bool:
        units = max(1, len(self._gpus) * self._group.geometry.units)
        now: Counter[str] = Counter()
        for gpu in self._gpus:
            for place in gpu.layout:
                now[place.profile.name] += place.profile.units
        names = {*now, *cut.shares}
        moved = sum(abs(cut.shares.get(name, 0.0) - now[name] / units) for name in names) / 2
        return moved >= DEAD_BAND or not all(gpu.is_decided for gpu in self._gpus)

    def _mark_decided(self) -> None:
        """Keep the layout of new GPUs."""
        self._gpus = [replace(gpu, is_decided=True) for gpu in self._gpus]

    def _set_layout(self, number: int, layout: tuple[mig.Placement, ...], *, may_change: bool) -> None:
        gpu = self._gpus[number]
        # A GPU with MIG mode on and nothing on it is not whole; one that stays whole needs no cut.
        is_same = layout == gpu.layout and gpu.is_whole == (not layout)
        if is_same:
            self._gpus[number] = replace(gpu, is_decided=True)
        elif may_change and self.gate.admits_node(gpu.node) and (not gpu.is_whole or self._count_spare_whole() > 0):
            self.gate = self.gate.admit(gpu.node)
            spare = tuple(place for place in layout if place not in gpu.used)
            self._gpus[number] = replace(gpu, spare=spare, is_whole=not layout, is_decided=True)

    def _count_spare_whole(self) -> int:
        """Whole GPUs beyond those that the distribution leaves whole."""
        return sum(gpu.is_whole for gpu in self._gpus) - self._least_whole

    # --- 3. demand --------------------------------------------------------------------------------------

    def recut_for(self, ask: SliceRequest) -> str | None:
        """Re-cut GPUs for one request, or refuse it with the reason."""
        stuck: str | None = None
        for and_warm in (True, False):
            for candidates in self.list_candidates(ask):
                numbers = self._select_distinct(candidates, and_warm=and_warm) if ask.count == 1 else candidates
                plan = self._plan(numbers, ask, and_warm=and_warm)
                if isinstance(plan, Recut):
                    self.apply(numbers, plan)
                    return None
                stuck = plan.detail
        return stuck or "no GPU can be re-cut: each is changing, in use undivided, or kept whole by the distribution"

    def list_candidates(self, ask: SliceRequest) -> Iterator[list[int]]:
        """GPUs to consider together: all of them for a single slice, else node by node."""
        whole = self._count_spare_whole()
        numbers = []
        for number, gpu in enumerate(self._gpus):
            is_open = gpu.is_open and gpu.is_decided and number not in self._frozen
            if not (is_open and self.gate.admits_node(gpu.node) and ask.allows_node(gpu.node)):
                continue
            if gpu.is_whole:
                if whole <= 0 or gpu.is_taken:
                    continue
                whole -= 1
            numbers.append(number)
        if ask.count == 1:
            if numbers:
                yield numbers
            return
        nodes: dict[str, list[int]] = {}
        for number in numbers:
            nodes.setdefault(self._gpus[number].node, []).append(number)
        yield from nodes.values()

    def _plan(self, numbers: Sequence[int], ask: SliceRequest, *, and_warm: bool) -> Recut | RecutRefusal:
        return self._plan_single([self._to_gpu_slices(number, and_warm=and_warm) for number in numbers], ask)

    def _plan_single(self, gpus: Sequence[GpuSlices], ask: SliceRequest) -> Recut | RecutRefusal:
        parts = (part for gpu in gpus for part in (gpu.used, gpu.spare, gpu.yielding))
        names = {ask.profile, *(place.profile.name for part in parts for place in part)}
        return recut.plan_recut(_get_table(self._group, frozenset(names)), gpus, ask.profile, ask.count)

    def _to_gpu_slices(self, number: int, *, and_warm: bool) -> GpuSlices:
        """The slices of a GPU for `recut`; cached, because most GPUs do not change between two requests."""
        key = number, and_warm
        if key not in self._seen:
            held = self._occupied_places(number, and_warm=and_warm)
            self._seen[key] = GpuSlices(held, tuple(place for place in self._gpus[number].spare if place not in held))
        return self._seen[key]

    def _select_distinct(self, numbers: Sequence[int], *, and_warm: bool) -> list[int]:
        """One GPU of each kind: for a single slice, more GPUs of a kind cannot help."""
        kinds: dict[tuple[frozenset[str], frozenset[str], bool], int] = {}
        for number in numbers:
            key = number, and_warm
            if key not in self._kinds:
                gpu = self._to_gpu_slices(number, and_warm=and_warm)
                names = [
                    frozenset(f"{each.profile.name}@{each.start}" for each in part) for part in (gpu.used, gpu.spare)
                ]
                self._kinds[key] = names[0], names[1], self._gpus[number].is_whole
            kinds.setdefault(self._kinds[key], number)
        return list(kinds.values())

    def _invalidate(self, number: int) -> None:
        for and_warm in (True, False):
            self._seen.pop((number, and_warm), None)
            self._kinds.pop((number, and_warm), None)

    def apply(self, numbers: Sequence[int], plan: Recut) -> None:
        """Apply a planned re-cut to these GPUs."""
        for change in plan.changes:
            number = numbers[change.gpu]
            gpu = self._gpus[number]
            if change.create or change.destroy:
                self.gate = self.gate.admit(gpu.node)
            kept = [place for place in gpu.spare if place not in (*change.destroy, *change.vacate)]
            self._gpus[number] = replace(gpu, spare=(*kept, *change.create), is_whole=False)
            self._put_aside[number] += change.serve
            self._invalidate(number)

    # --- 4. ahead of demand -----------------------------------------------------------------------------

    def warm_up(self, profile: str) -> None:
        """Create a spare slice of the profile if there is none and free units allow it."""
        if profile not in self._group.geometry.profiles:
            return
        if any(place.profile.name == profile for number in range(len(self._gpus)) for place in self._list_free(number)):
            return
        ask = SliceRequest("", profile)
        for numbers in self.list_candidates(ask):
            cut = self._select_distinct([n for n in numbers if not self._gpus[n].is_whole], and_warm=True)
            plan = self._plan(cut, ask, and_warm=True) if cut else None
            if isinstance(plan, Recut) and not plan.destroyed:
                self.apply(cut, plan)

    # --- draining ---------------------------------------------------------------------------------------

    def plan_with_yielding(
        self, numbers: Sequence[int], ask: SliceRequest, yielding: Mapping[str, Sequence[mig.Placement]]
    ) -> Recut | RecutRefusal:
        """Plan a cut of these GPUs if the yielding slices (GPU -> slices) were free."""
        gpus = []
        for number in numbers:
            seen = self._to_gpu_slices(number, and_warm=False)
            soft = tuple(place for place in yielding.get(self._gpus[number].uuid, ()) if place in seen.used)
            gpus.append(GpuSlices(tuple(place for place in seen.used if place not in soft), seen.spare, soft))
        return self._plan_single(gpus, ask)

    def remove_pod(self, movable: MovablePod) -> None:
        """Free the slices of a pod."""
        for number, gpu in enumerate(self._gpus):
            gone = tuple(place for uuid, place in movable.slices if uuid == gpu.uuid and place in gpu.used)
            if gone:
                used = tuple(place for place in gpu.used if place not in gone)
                self._gpus[number] = replace(gpu, used=used, spare=(*gpu.spare, *gone))
                self._invalidate(number)

    def try_place(self, ask: SliceRequest) -> bool:
        """Set slices aside for a request, re-cutting GPUs if necessary; False if that is impossible."""
        return not self.set_aside([ask]) or self.recut_for(ask) is None

    def start_drain(self, number: int, drain: Drain) -> None:
        """Withhold the slices of a drain and leave the GPU as it is until the drain ends."""
        gpu = self._gpus[number]
        self.gate = self.gate.admit(gpu.node)
        self._gpus[number] = replace(gpu, drain=drain)
        self.freeze_gpus([number])

    def freeze_gpus(self, numbers: Iterable[int]) -> None:
        """Leave these GPUs as they are for now."""
        self._frozen.update(numbers)

    def end_drains(self, is_over: Callable[[PartitionedGpu, Drain], bool]) -> None:
        """End drains that are over; their GPUs may change again."""
        for number, gpu in enumerate(self._gpus):
            if gpu.drain is not None and is_over(gpu, gpu.drain):
                self._gpus[number] = replace(gpu, drain=None)
                self._frozen.discard(number)
                self._invalidate(number)


def _get_table(group: Group, names: frozenset[str]) -> SlotTable:
    geometry = group.geometry
    profiles = tuple(name for name in geometry.profiles if name in {*layout_graph.plain_profiles(geometry), *names})
    weights = {name: group.mix[name] for name in profiles if group.mix.get(name, 0.0) > 0}
    total = sum(weights.values())
    # Every profile keeps a small weight: one without recent requests may still be requested.
    mix = (
        tuple((name, max(1, round(_MIX_STEPS * weights.get(name, 0.0) / total))) for name in profiles) if total else ()
    )
    return _build_table(geometry.name, profiles, mix)


@functools.lru_cache(maxsize=64)
def _build_table(geometry: str, profiles: tuple[str, ...], mix: tuple[tuple[str, int], ...]) -> SlotTable:
    try:
        found = mig.GEOMETRIES[geometry]
    except KeyError:
        raise errors.Permanent(f"no geometry {geometry!r} is known") from None
    return SlotTable(
        layout_graph.get_layout_graph(found, profiles), {name: float(weight) for name, weight in mix} or None
    )

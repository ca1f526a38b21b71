"""Tables of the best set of GPUs to take, for every mask of free GPUs and every count.

The best set is, in this order, one

1. that meets the preference (SameNUMA, SamePCIeSwitch, NVLinkRequired),
2. with the fastest ring through its GPUs (`kgwe.model.gpu.bandwidth`, data-sheet GB/s),
3. that leaves the free GPUs that are worth most to later workloads (`kgwe.placement.gpuset.leftover`),
4. with the lowest GPU numbers.

So minBandwidthGBps needs no table of its own: either the best set is fast enough, or none is. NVLinkRequired means
NVLink between every two of the GPUs. SamePCIeSwitch means that no path between them passes a host bridge (PIX or PXB).
SameNUMA means that all of them are on one known NUMA node. One GPU alone satisfies each of them.

A table is an array over masks, so one look-up answers for every node of a shape:

    table = gpu_tables.build_table(wiring, Preference.NVLINK_REQUIRED)
    table.best_sets(4)[free]    # mask of the GPUs to take; 0: no such set
    table.gb_per_s(4)[free]     # of that set; NONE_GB_PER_S: no set, UNKNOWN_GB_PER_S: not known

Tables are built on first use, per count, and cached. Nodes whose wiring differs only in bus ids share them.

Tables cover at most 16 GPUs. For wider nodes (`is_wide`) only the number of free GPUs counts: they give the GPUs with
the lowest numbers, and their wiring counts as unknown, which satisfies no requirement and wins no comparison.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kgwe import errors
from kgwe.model.gpu import bandwidth
from kgwe.model.gpu.topology import Relation
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gpuset import bitmask, leftover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.topology import Wiring

#: bandwidth of a set that does not exist: below every real one and below unknown
NONE_GB_PER_S: Final = -1.0

_MB_PER_GB: Final = 1000
_BELOW_ONE_SWITCH: Final = frozenset({Relation.PIX, Relation.PXB})

# Shapes in one cluster: each takes up to 7 MB per preference once all its counts are built.
_KEPT: Final = 256


@dataclass(frozen=True)
class Links:
    """The links of a machine, as far as they matter to the choice of GPUs."""

    mb_per_s: tuple[tuple[int, ...], ...]
    """Per pair, data-sheet figures; 0: not known."""
    bus_mb_per_s: tuple[tuple[int, ...], ...]
    nvlink: tuple[int, ...]
    """Per GPU, the mask of GPUs it has NVLink to."""
    numa: tuple[int, ...]
    """Per GPU, the mask of other GPUs known to be on its NUMA node."""
    switch: tuple[int, ...]
    """Per GPU, the mask of other GPUs below its PCIe switch."""


@functools.lru_cache(maxsize=_KEPT)
def read_links(wiring: Wiring) -> Links:
    """The links of a wiring; equal links have equal tables."""
    n = len(wiring.slots)
    if n > bandwidth.MAX_TABLED_GPUS:
        raise errors.Permanent(f"{n} GPUs in one node: sets are tabled for at most {bandwidth.MAX_TABLED_GPUS}")
    gpus = range(n)
    numas = [slot.numa for slot in wiring.slots]
    return Links(
        mb_per_s=_round_to_mb(bandwidth.build_matrix(wiring)),
        bus_mb_per_s=_round_to_mb(bandwidth.build_matrix(wiring, bandwidth.pair_bus_gb_per_s)),
        nvlink=tuple(bitmask.make_mask([b for b in gpus if wiring.nvlinks(a, b)]) for a in gpus),
        numa=tuple(
            bitmask.make_mask([b for b in gpus if b != a and numas[a] is not None and numas[a] == numas[b]])
            for a in gpus
        ),
        switch=tuple(
            bitmask.make_mask([b for b in gpus if wiring.pcie_relation(a, b) in _BELOW_ONE_SWITCH]) for a in gpus
        ),
    )


def find_islands(known: Links) -> frozenset[int]:
    """Masks of GPUs that are joined by links of one class or better, or share a NUMA node or PCIe switch."""
    groups = {near | 1 << gpu for side in (known.numa, known.switch) for gpu, near in enumerate(side)}
    return leftover.find_islands(known.mb_per_s, groups)


def _round_to_mb(matrix: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
    n = len(matrix)
    return tuple(tuple(0 if a == b else round(matrix[a, b] * _MB_PER_GB) for b in range(n)) for a in range(n))


@dataclass(frozen=True, slots=True)
class GpuSetChoice:
    """The GPUs to take."""

    mask: int
    gb_per_s: float
    """Of the ring through them, data-sheet figures; infinite for one GPU, UNKNOWN_GB_PER_S when not known."""
    preference_met: bool
    """Whether the set meets the preference."""

    @property
    def gpus(self) -> tuple[int, ...]:
        return bitmask.list_gpus(self.mask)


class GpuSets:
    """Properties of every set of GPUs of one kind of node."""

    def __init__(self, known: Links) -> None:
        self.links = known
        self.gpu_count = len(known.mb_per_s)
        self.mb_per_s = _ring_mb_per_s(known.mb_per_s)
        self.sizes = np.bitwise_count(np.arange(1 << self.gpu_count, dtype=np.int64))

    @functools.cached_property
    def bus_mb_per_s(self) -> NDArray[np.int64]:
        return _ring_mb_per_s(self.links.bus_mb_per_s)

    @functools.cached_property
    def leftover_rank(self) -> NDArray[np.int64]:
        """Rank of every set by its worth when left free."""
        return _rank_values(leftover.value_sets(np.where(self.sizes > 1, self.mb_per_s, 0), find_islands(self.links)))

    def match_preference(self, preference: Preference) -> NDArray[np.bool_]:
        """For every set, whether it meets the preference."""
        match preference:
            case Preference.NVLINK_REQUIRED:
                return bitmask.find_cliques(self.links.nvlink)
            case Preference.SAME_NUMA:
                return bitmask.find_cliques(self.links.numa)
            case Preference.SAME_PCIE_SWITCH:
                return bitmask.find_cliques(self.links.switch)
            case Preference.NONE | Preference.NVLINK_OPTIMAL:
                return np.ones(1 << self.gpu_count, np.bool_)


# Stands for "infinite" among integers, for sets of one GPU.
_ONE_GPU: Final = np.iinfo(np.int64).max


def _ring_mb_per_s(pairs: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    table = bandwidth.build_ring_table(np.array(pairs, np.float64).reshape(len(pairs), len(pairs)))
    out = np.full(len(table), _ONE_GPU)
    finite = np.isfinite(table)
    out[finite] = table[finite].astype(np.int64)
    return out


def _rank_values(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _gb_per_s(mb_per_s: NDArray[np.int64], sets: NDArray[np.uint16]) -> NDArray[np.float32]:
    rates = mb_per_s[sets]
    out = np.where(rates == _ONE_GPU, np.inf, rates / _MB_PER_GB).astype(np.float32)
    out[sets == 0] = NONE_GB_PER_S
    return out


class BestSetTable:
    """The best sets of one kind of node under one preference; see `build_table`."""

    def __init__(self, rings: GpuSets, preference: Preference, *, required: bool) -> None:
        self.gpu_count = rings.gpu_count
        self._rings = rings
        self._meets = rings.match_preference(preference)
        self._required = required
        self._best: dict[int, NDArray[np.uint16]] = {}
        self._gb_per_s: dict[int, NDArray[np.float32]] = {}
        self._bus_gb_per_s: dict[int, NDArray[np.float32]] = {}

    def best_sets(self, count: int) -> NDArray[np.uint16]:
        """Free mask -> the set to take; 0 where there is none."""
        if count not in self._best:
            self._best[count] = _freeze(self._build(count))
        return self._best[count]

    def gb_per_s(self, count: int) -> NDArray[np.float32]:
        """Free mask -> data-sheet GB/s of the set to take; NONE_GB_PER_S where there is none."""
        if count not in self._gb_per_s:
            self._gb_per_s[count] = _freeze(_gb_per_s(self._rings.mb_per_s, self.best_sets(count)))
        return self._gb_per_s[count]

    def bus_gb_per_s(self, count: int) -> NDArray[np.float32]:
        """Free mask -> GB/s of the set to take as nccl-tests would measure it, one direction."""
        if count not in self._bus_gb_per_s:
            self._bus_gb_per_s[count] = _freeze(_gb_per_s(self._rings.bus_mb_per_s, self.best_sets(count)))
        return self._bus_gb_per_s[count]

    def match_preference(self, count: int) -> NDArray[np.bool_]:
        """Free mask -> whether there is a set that meets the preference."""
        sets = self.best_sets(count)
        holds: NDArray[np.bool_] = self._meets[sets] & (sets != 0)
        return holds

    def choose(self, free: int, count: int, min_gb_per_s: float = 0.0) -> GpuSetChoice | None:
        """The free GPUs to take; None: no set meets the request."""
        mask = int(self.best_sets(count)[free])
        rate = float(self.gb_per_s(count)[free])
        if not mask or (min_gb_per_s and rate < min_gb_per_s):
            return None
        return GpuSetChoice(mask, rate, bool(self._meets[mask]))

    def _build(self, count: int) -> NDArray[np.uint16]:
        """Combine every set with everything that can be free beside it, and keep the best set for each free mask.

        The merit of a set is one integer: preference, rank of the ring, rank of the GPUs left free, and the set itself
        with its bits reversed, from which it is read back.
        """
        if count < 1:
            raise errors.InvariantBroken(f"requested a set of {count} GPUs")
        n = self.gpu_count
        rings = self._rings
        mirrored = bitmask.mirror_masks(n)
        ring_rank = _rank_values(rings.mb_per_s)
        merit = (((self._meets.astype(np.int64) << 16) + ring_rank << 17) << n) + mirrored
        left_over = rings.leftover_rank << n
        best = np.full(1 << n, -1, np.int64)
        for chosen, left in bitmask.iter_splits(range(n), count):
            if self._required and not self._meets[chosen]:
                continue
            free = left | chosen
            best[free] = np.maximum(best[free], left_over[left] + merit[chosen])
        found = best >= 0
        sets = np.zeros(1 << n, np.uint16)
        sets[found] = mirrored[best[found] & (1 << n) - 1]
        return sets


_Scalar = TypeVar("_Scalar", bound=np.generic)


def _freeze(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False
    return array


# --- tables in use --------------------------------------------------------------------------------------


def build_table(wiring: Wiring, preference: Preference = Preference.NONE, *, required: bool = True) -> BestSetTable:
    """The table for nodes wired like this.

    `required`: whether the preference must be met. If not, the best set that does not meet it is used where no other
    exists (`GpuSetChoice.preference_met`).
    """
    # Both mean the fastest ring and refuse nothing: they share a table.
    kind = Preference.NONE if preference is Preference.NVLINK_OPTIMAL else preference
    return _cached_table(read_links(wiring), kind, required=required)


def build_sets(wiring: Wiring) -> GpuSets:
    """Properties of every set of GPUs of nodes wired like this."""
    return _cached_sets(read_links(wiring))


@functools.lru_cache(maxsize=_KEPT)
def _cached_sets(known: Links) -> GpuSets:
    return GpuSets(known)


@functools.lru_cache(maxsize=_KEPT)
def _cached_table(known: Links, preference: Preference, *, required: bool) -> BestSetTable:
    return BestSetTable(_cached_sets(known), preference, required=required)


def is_wide(wiring: Wiring) -> bool:
    """Whether a node has too many GPUs for tables of sets."""
    return len(wiring.slots) > bandwidth.MAX_TABLED_GPUS


class ShapeTables:
    """The tables of several shapes end to end, so that one look-up answers for a cluster of mixed nodes:

    tables = ShapeTables([wiring, …])
    row = tables.offset[shape_of_node] + free_mask_of_node    # of a wide shape: + number of free GPUs
    tables.best_sets(4, Preference.NONE)[row]
    """

    def __init__(self, wirings: Sequence[Wiring]) -> None:
        self._wirings = tuple(wirings)
        self.wide = np.array([is_wide(wiring) for wiring in wirings], np.bool_)
        """shape -> whether its rows are counts of free GPUs, not masks."""
        gpus = [len(wiring.slots) for wiring in wirings]
        sizes = [n + 1 if wide else 1 << n for n, wide in zip(gpus, self.wide.tolist(), strict=True)]
        self.offset = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))[:-1]
        self._best: dict[tuple[int, Preference, bool], NDArray[np.uint16]] = {}
        self._gb_per_s: dict[tuple[int, Preference, bool], NDArray[np.float32]] = {}
        self.rows_of_shape = [
            slice(start, start + size) for start, size in zip(self.offset.tolist(), sizes, strict=True)
        ]
        """shape -> its rows."""

    def best_sets(self, count: int, preference: Preference, *, required: bool = True) -> NDArray[np.uint16]:
        """Row -> the set to take; 0: none. For wide shapes, 1 if there is a set."""
        key = (count, preference, required)
        if key not in self._best:
            parts = [self._best_of_shape(wiring, count, preference, required=required) for wiring in self._wirings]
            self._best[key] = _freeze(np.concatenate(parts or [np.zeros(0, np.uint16)]))
        return self._best[key]

    def gb_per_s(self, count: int, preference: Preference, *, required: bool = True) -> NDArray[np.float32]:
        """Row -> data-sheet GB/s of that set; NONE_GB_PER_S where there is none."""
        key = (count, preference, required)
        if key not in self._gb_per_s:
            parts = [self._rates_of_shape(wiring, count, preference, required=required) for wiring in self._wirings]
            self._gb_per_s[key] = _freeze(np.concatenate(parts or [np.zeros(0, np.float32)]))
        return self._gb_per_s[key]

    @staticmethod
    def _best_of_shape(wiring: Wiring, count: int, preference: Preference, *, required: bool) -> NDArray[np.uint16]:
        if not is_wide(wiring):
            return build_table(wiring, preference, required=required).best_sets(count)
        refused = required and count > 1 and preference not in (Preference.NONE, Preference.NVLINK_OPTIMAL)
        free = np.arange(len(wiring.slots) + 1)
        return ((free >= count) & (not refused)).astype(np.uint16)

    @classmethod
    def _rates_of_shape(
        cls, wiring: Wiring, count: int, preference: Preference, *, required: bool
    ) -> NDArray[np.float32]:
        if not is_wide(wiring):
            return build_table(wiring, preference, required=required).gb_per_s(count)
        has_set = cls._best_of_shape(wiring, count, preference, required=required) > 0
        rate = np.inf if count == 1 else bandwidth.UNKNOWN_GB_PER_S
        return np.where(has_set, rate, NONE_GB_PER_S).astype(np.float32)

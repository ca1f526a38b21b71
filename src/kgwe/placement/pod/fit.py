"""Whether a pod fits a node, how many such pods fit, and exactly what each would get.

A status is one small integer per node, computed for the whole fleet in a few array operations. It is the first rule
that fails. Static rules, which no finished pod can change, come first: a node that could never hold the pod says so
even while it is full. `check_empty_nodes` checks only those, and so distinguishes "wait" from "never".

    fitter = Fitter(snapshot)
    fitter.check_nodes(request)        # node -> FitStatus
    fitter.count_pods(request)         # node -> how many such pods fit, one after the other
    fitter.find_grant(request, node)   # the GPUs, share or slices it gets there; None: it does not fit

Every preference but None and NVLinkOptimal is a requirement (`kgwe.placement.gpuset.gpu_tables` says what each means),
and so is minBandwidthGBps. Unknown links satisfy neither, and a GPU of unknown memory holds no share of known size.

A pod gets whole GPUs as the tables of best sets say. It gets a share of the fullest GPU that has room, and only then of
a whole GPU, the one whose loss costs least. It gets slices of the GPU with the fewest free slices, so that other GPUs
stay empty enough to be re-cut.
"""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Preference, Request, SpotPolicy, share_milli
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.gpuset import bitmask, gpu_tables
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.request_tables import RequestTables, forget_oldest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.pod.request_tables import Codes

    At = slice | NDArray[np.intp]


# NumPy scalars: converting an enum would take longer than the operation itself.
_FITS: Final = np.uint8(FitStatus.FITS)
_SHARE_TAKEN: Final = np.uint8(FitStatus.SHARE_TAKEN)
_NO_SLICE: Final = np.uint8(FitStatus.NO_SLICE)
_CPU: Final = np.uint8(FitStatus.CPU)
_MEMORY: Final = np.uint8(FitStatus.MEMORY)
_PODS: Final = np.uint8(FitStatus.PODS)

_PAIR: Final = 2
# What a GPU of the node can be divided into, unless it is the milli of its equal shares.
_ANY: Final = -1
_WHOLE: Final = 0
_EVERYWHERE: Final = slice(None)
# Requests remembered, the oldest forgotten first: a fleet of 10,000 nodes takes 10 kB for each.
_KEPT: Final = 2048


class Fitter:
    """Checks requests against the current state of one snapshot. Results that bookings cannot change are cached."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        nodes = snapshot.nodes
        self.tables = gpu_tables.ShapeTables([shape.wiring for shape in snapshot.shapes])
        self._offset: NDArray[np.int64] = self.tables.offset[snapshot.shape]
        self._wide: NDArray[np.bool_] = self.tables.wide[snapshot.shape]
        self._has_wide = bool(self._wide.any())
        self._usable = np.array([node.usable for node in nodes], np.int64)
        self._cpu_milli = np.array([node.cpu_milli for node in nodes], np.int64)
        self._memory_bytes = np.array([node.memory_bytes for node in nodes], np.int64)
        self._pods = np.array([node.pods for node in nodes], np.int32)
        self._share_milli = np.array([_offered_share_milli(node.shares_per_gpu) for node in nodes], np.int32)
        self._when_empty: dict[Request, Codes] = {}
        self._most_by_kind: dict[Request, int] = {}
        most = max((shape.gpu_count for shape in snapshot.shapes), default=0)
        self._sets = RequestTables(self.tables, most_gpus=most)

    def table_rows(self, at: At) -> NDArray[np.int64]:
        """Rows of the tables for these nodes as they are now."""
        return self._rows(self._free_gpus(at), at)

    def _free_gpus(self, at: At) -> NDArray[np.int64]:
        """Free GPUs of these nodes, less those that pods on overcommitted nodes get first."""
        own: NDArray[np.int64] = self.snapshot.free[at]
        if not self.snapshot.has_debts or not (owed := self.snapshot.owed[at]).any():
            return own
        return np.array(
            [_without_lowest(free, most) for free, most in zip(own.tolist(), owed.tolist(), strict=True)], np.int64
        )

    def _rows(self, own: NDArray[np.int64], at: At) -> NDArray[np.int64]:
        if self._has_wide:
            own = np.where(self._wide[at], np.bitwise_count(own), own)
        rows: NDArray[np.int64] = self._offset[at] + own
        return rows

    # --- statuses ---------------------------------------------------------------------------------------

    def check_nodes(self, request: Request, nodes: NDArray[np.intp] | None = None) -> Codes:
        """The status of each node, or of the given nodes."""
        at: At = slice(None) if nodes is None else nodes
        snapshot = self.snapshot
        codes = self._check_amounts(request, snapshot.cpu_milli[at], snapshot.memory_bytes[at], snapshot.pods[at])
        _apply_stronger(codes, self._check_gpus(request, at))
        _apply_stronger(codes, self.check_empty_nodes(request)[at])
        return codes

    def check_empty_nodes(self, request: Request) -> Codes:
        """The status of each node if nothing ran there; shared, do not write to it."""
        known = self._when_empty.get(request)
        if known is None:
            forget_oldest(self._when_empty, _KEPT)
            known = self._when_empty[request] = self._check_empty(request)
            known.flags.writeable = False
        return known

    def _check_empty(self, request: Request) -> Codes:
        snapshot = self.snapshot
        codes = self._check_amounts(request, self._cpu_milli, self._memory_bytes, self._pods)
        _apply_stronger(codes, self._check_gpus_when_empty(request))
        gpus = request.gpus
        by_shape = (
            (FitStatus.GPU_MEMORY, Request(Gpus(), min_memory_gb=request.min_memory_gb)),
            (FitStatus.WRONG_ARCHITECTURE, Request(Gpus(), architecture=request.architecture)),
            (FitStatus.WRONG_MODEL, Request(Gpus(), model=request.model)),
        )
        if gpus.milli:
            memory = np.array([shape.memory_mib or 0 for shape in snapshot.shapes], np.int64)
            codes[memory[snapshot.shape] < gpus.share_mib] = FitStatus.GPU_MEMORY
        for status, property_wanted in by_shape:
            codes[~snapshot.match_shapes(property_wanted)[snapshot.shape]] = status
        codes[~snapshot.labels.find_allowed(request.constraints)] = FitStatus.NOT_ALLOWED
        if request.spot is SpotPolicy.REQUIRE:
            codes[~snapshot.spot] = FitStatus.NOT_ALLOWED
        codes[~snapshot.ready] = FitStatus.NOT_READY
        return codes

    def _check_gpus_when_empty(self, request: Request) -> Codes:
        gpus = request.gpus
        if gpus.count:
            codes: Codes = self._sets.find(request).codes[self._rows(self._usable, _EVERYWHERE)]
            codes[(codes == FitStatus.GPUS_TAKEN) | (self._share_milli > 0)] = FitStatus.TOO_FEW_GPUS
            return codes
        short = np.zeros(len(self.snapshot), np.bool_)
        if gpus.milli:
            short = (self._usable == 0) | ((self._share_milli != gpus.milli) & (self._share_milli != _ANY))
        elif gpus.slices:
            short = self._count_slices_when_empty(gpus.profile) < gpus.slices
        return np.where(short, np.uint8(FitStatus.TOO_FEW_GPUS), _FITS)

    def _count_slices_when_empty(self, profile: str) -> NDArray[np.int32]:
        counts = np.zeros(len(self.snapshot), np.int32)
        for number, node in enumerate(self.snapshot.nodes):
            for gpu, cut in node.cut.items():
                if node.healthy >> gpu & 1:
                    counts[number] += sum(each.profile.name == profile for each in cut)
        return counts

    @staticmethod
    def _check_amounts(
        request: Request, cpu_milli: NDArray[np.int64], memory_bytes: NDArray[np.int64], pods: NDArray[np.int32]
    ) -> Codes:
        codes = np.zeros(len(pods), np.uint8)
        codes[pods < 1] = _PODS
        # A pod that requests nothing fits an overcommitted node.
        if request.memory_bytes:
            codes[memory_bytes < request.memory_bytes] = _MEMORY
        if request.cpu_milli:
            codes[cpu_milli < request.cpu_milli] = _CPU
        return codes

    def _check_gpus(self, request: Request, at: At) -> Codes:
        snapshot, gpus = self.snapshot, request.gpus
        if gpus.count:
            found: Codes = self._sets.find(request).codes[self.table_rows(at)]
            return found
        if gpus.milli:
            holds = (snapshot.milli[at] >= gpus.milli) & (snapshot.share_mib[at] >= gpus.share_mib)
            owed = snapshot.owed_shares[at] if snapshot.has_debts else None
            fits = holds.any(axis=1) if owed is None else _count_shares(snapshot.milli[at], holds, gpus) > owed
            return np.where(fits, _FITS, _SHARE_TAKEN)
        if gpus.slices:
            free: NDArray[np.int32] = self._count_free_slices(gpus.profile)[at]
            return np.where(free < gpus.slices, _NO_SLICE, _FITS)
        return np.zeros(len(snapshot.pods[at]), np.uint8)

    def _count_free_slices(self, profile: str) -> NDArray[np.int32]:
        found, owed = self.snapshot.slices.get(profile), self.snapshot.owed_slices.get(profile)
        if found is None:
            return np.zeros(len(self.snapshot), np.int32)
        return found if owed is None else np.maximum(found - owed, 0)

    @functools.cached_property
    def share_counts(self) -> tuple[int, ...]:
        """Numbers of shares that nodes offer per GPU, the most frequent first, then the fewest."""
        offered = (node.shares_per_gpu for node in self.snapshot.nodes if node.ready)
        counts = collections.Counter(shares for shares in offered if shares)
        return tuple(sorted(counts, key=lambda shares: (-counts[shares], shares)))

    @functools.cached_property
    def most_gpus(self) -> int:
        """Whole GPUs of the largest node, healthy or not."""
        return max((node.whole_gpus for node in self.snapshot.nodes), default=0)

    def most_gpus_of(self, request: Request) -> int:
        """Whole GPUs of the largest node with the GPU model and architecture of the request; of any, if none has."""
        wanted = Request(Gpus(), model=request.model, architecture=request.architecture)
        if wanted not in self._most_by_kind:
            forget_oldest(self._most_by_kind, _KEPT)
            self._most_by_kind[wanted] = self._find_most_gpus(wanted)
        return self._most_by_kind[wanted]

    def _find_most_gpus(self, wanted: Request) -> int:
        if not (wanted.model or wanted.architecture):
            return self.most_gpus
        matching = np.flatnonzero(self.snapshot.match_shapes(wanted)[self.snapshot.shape]).tolist()
        return max((self.snapshot.nodes[number].whole_gpus for number in matching), default=0) or self.most_gpus

    def fastest_gb_per_s(self, request: Request, nodes: Sequence[int]) -> float:
        """The highest ring bandwidth that its GPUs have on these nodes when empty; 0: not known, negative: none."""
        at = np.array(nodes, np.intp)
        rates = self.tables.gb_per_s(request.gpus.count, request.preference)[self._rows(self._usable[at], at)]
        known = rates[np.isfinite(rates)]
        return float(known.max(initial=gpu_tables.NONE_GB_PER_S))

    @property
    def usual_shares(self) -> int:
        """The most common number of shares per GPU; 0: no node shares its GPUs."""
        return self.share_counts[0] if self.share_counts else 0

    def mask_avoided(self, request: Request, nodes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these nodes the pod uses only if no other node fits."""
        if request.spot is SpotPolicy.AVOID:
            spot: NDArray[np.bool_] = self.snapshot.spot[nodes]
            return spot
        return np.zeros(len(nodes), np.bool_)

    # --- room -------------------------------------------------------------------------------------------

    def count_pods(self, request: Request) -> NDArray[np.int32]:
        """How many such pods each node can take now, one after the other, each with its best GPUs."""
        snapshot, gpus = self.snapshot, request.gpus
        room = snapshot.pods.astype(np.int64)
        if request.cpu_milli:
            np.minimum(room, snapshot.cpu_milli // request.cpu_milli, out=room)
        if request.memory_bytes:
            np.minimum(room, snapshot.memory_bytes // request.memory_bytes, out=room)
        if gpus.count:
            np.minimum(room, self._sets.find(request).room[self.table_rows(_EVERYWHERE)], out=room)
        elif gpus.milli:
            on_gpu = snapshot.milli // gpus.milli
            if gpus.share_mib:
                on_gpu = np.minimum(on_gpu, snapshot.share_mib // gpus.share_mib)
            np.minimum(room, on_gpu.sum(axis=1) - snapshot.owed_shares, out=room)
        elif gpus.slices:
            np.minimum(room, self._count_free_slices(gpus.profile) // gpus.slices, out=room)
        room[self.check_empty_nodes(request) != FitStatus.FITS] = 0
        return np.maximum(room, 0).astype(np.int32)

    # --- grants -----------------------------------------------------------------------------------------

    def find_grant(self, request: Request, node: int) -> Grant | None:
        """What the pod gets on the node; None when it does not fit there now."""
        if self.check_nodes(request, np.array([node]))[0] != _FITS:
            return None
        return self.build_grant(request, node)

    def build_grant(self, request: Request, node: int) -> Grant:
        """What the pod gets on a node whose status is known to be FITS."""
        gpus = request.gpus
        cpu, memory = request.cpu_milli, request.memory_bytes
        if gpus.milli:
            return Grant(node, cpu, memory, share=(self._choose_shared_gpu(gpus, node), gpus.milli, gpus.share_mib))
        if gpus.slices:
            return Grant(node, cpu, memory, slices=self._choose_slices(gpus, node))
        return Grant(node, cpu, memory, gpus=self.choose_gpus(request, node) if gpus.count else 0)

    def choose_gpus(self, request: Request, node: int) -> int:
        """Mask of the free whole GPUs of the node that the request would get; 0: no set fits."""
        best = self._sets.find(request).best
        if self._wide[node]:
            return self._choose_lowest(best, request.gpus.count, node)
        return int(best[self._offset[node] + self._free_gpus_of(node)])

    def _free_gpus_of(self, node: int) -> int:
        return _without_lowest(int(self.snapshot.free[node]), int(self.snapshot.owed[node]))

    def choose_masks(self, count: int, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """The best set of `count` free GPUs of each node, whatever their wiring; 0: too few are free."""
        best = self.tables.best_sets(count, Preference.NONE)
        found: NDArray[np.int64] = best[self.table_rows(nodes)].astype(np.int64)
        for place in np.flatnonzero(self._wide[nodes]).tolist():
            found[place] = self._choose_lowest(best, count, int(nodes[place]))
        return found

    def _choose_lowest(self, best: NDArray[np.uint16], count: int, node: int) -> int:
        """The lowest free GPUs of a wide node, whose tables say only whether there is a set."""
        free = self._free_gpus_of(node)
        return bitmask.take_lowest(free, count) if best[self._offset[node] + free.bit_count()] else 0

    def predict_gb_per_s(self, request: Request, node: int) -> float | None:
        """Ring bandwidth of the GPUs it would get, data-sheet figures; None for fewer than two, 0: not known."""
        if request.gpus.count < _PAIR:
            return None
        rates = self.tables.gb_per_s(request.gpus.count, request.preference)
        return float(rates[self.table_rows(np.array([node]))][0])

    def _choose_shared_gpu(self, gpus: Gpus, node: int) -> int:
        milli, mib = self.snapshot.milli[node], self.snapshot.share_mib[node]
        left = np.where((milli >= gpus.milli) & (mib >= gpus.share_mib), milli, GPU_MILLI + 1)
        gpu = int(left.argmin())
        if left[gpu] < GPU_MILLI:
            return gpu
        # A whole GPU must be divided: take the one whose loss costs least.
        return self.choose_gpus(_ONE_GPU, node).bit_length() - 1

    def _choose_slices(self, gpus: Gpus, node: int) -> tuple[tuple[int, Placement], ...]:
        cut = {gpu: self.snapshot.free_slices.get((node, gpu), []) for gpu in self.snapshot.nodes[node].cut}
        fullest_first = sorted(cut, key=lambda gpu: (len(cut[gpu]), gpu))
        found = [
            (gpu, each)
            for gpu in fullest_first
            for each in sorted(cut[gpu], key=lambda placed: placed.start)
            if each.profile.name == gpus.profile
        ]
        return tuple(found[: gpus.slices])


def _without_lowest(free: int, owed: int) -> int:
    """The mask without its lowest GPUs, as many as are owed."""
    while free and owed > 0:
        free &= free - 1
        owed -= 1
    return free


def _count_shares(milli: NDArray[np.int32], holds: NDArray[np.bool_], gpus: Gpus) -> NDArray[np.int64]:
    """Node -> shares of this size that its GPUs have left."""
    left: NDArray[np.int64] = np.where(holds, milli // gpus.milli, 0).sum(axis=1)
    return left


def _offered_share_milli(shares_per_gpu: int | None) -> int:
    if shares_per_gpu is None:
        return _ANY
    return share_milli(shares_per_gpu) if shares_per_gpu else _WHOLE


_ONE_GPU: Final = Request(Gpus(count=1))


def _apply_stronger(codes: Codes, stronger: Codes) -> None:
    np.copyto(codes, stronger, where=stronger != _FITS)

"""Whether a pod fits a node, how many like it would, and exactly what it would get: one answer for every caller.

A verdict is one small integer per node, worked out for the whole fleet in a few array operations. The first rule
that fails names it, and rules that no departure can change come first: a node that could never hold the pod
says so even while it is full. `when_empty` gives only those, so "wait" and "never" are told apart.

    fitter = Fitter(snapshot)
    fitter.verdicts(request)       # node -> Verdict
    fitter.room(request)           # node -> how many such pods, one after the other
    fitter.grant(request, node)    # the cards, share or slices it gets there; None where the verdict is not FITS

Every preference but None and NVLinkOptimal is a requirement (`kgwe.placement.gpuset.gpu_tables` says what each means),
and so is minBandwidthGBps. Links that are not known satisfy neither, and memory that is not known holds no share of
known size.

What a pod gets of a node: whole cards as the tables of best sets say; a share of the fullest card that still holds it,
and only then of a whole one, that whose loss costs least; slices of the card with the fewest left, so that other
cards stay empty enough to be cut anew.
"""

from __future__ import annotations

import collections
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kgwe.placement.fleet.node import CARD_MILLI, Gpus, Preference, Request, SpotPolicy, piece_milli
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.gpuset import bitmask
from kgwe.placement.gpuset import gpu_tables as subset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.fleet.snapshot import Snapshot

    Codes = NDArray[np.uint8]
    At = slice | NDArray[np.intp]


class Verdict(enum.IntEnum):
    """What a node says to a pod; of several that hold, the first that no departure can change, else the first."""

    FITS = 0
    NOT_READY = 1
    NOT_ALLOWED = 2
    """Selector, affinity or taints, or the node is to be avoided."""
    WRONG_MODEL = 3
    WRONG_ARCHITECTURE = 4
    GPU_MEMORY = 5
    """Its cards have too little memory, or it is not known how much."""
    TOO_FEW_CARDS = 6
    """Even when nothing runs there: cards, shares of that size, or slices of the profile."""
    CARDS_TAKEN = 7
    WIRING = 8
    """Cards enough, but no set of them that meets the preference and the bandwidth."""
    SHARE_TAKEN = 9
    """No card has that much left."""
    NO_SLICE = 10
    CPU = 11
    MEMORY = 12
    PODS = 13

    @property
    def reason(self) -> str:
        """As conditions and events name it."""
        return _REASONS[self]


_REASONS: Final = {
    Verdict.FITS: "Fits",
    Verdict.NOT_READY: "NodeNotReady",
    Verdict.NOT_ALLOWED: "NodeNotAllowed",
    Verdict.WRONG_MODEL: "WrongGPUModel",
    Verdict.WRONG_ARCHITECTURE: "WrongGPUArchitecture",
    Verdict.GPU_MEMORY: "InsufficientGPUMemory",
    Verdict.TOO_FEW_CARDS: "TooFewGPUs",
    Verdict.CARDS_TAKEN: "GPUsTaken",
    Verdict.WIRING: "WiringNotMet",
    Verdict.SHARE_TAKEN: "GPUShareTaken",
    Verdict.NO_SLICE: "MIGSlicesTaken",
    Verdict.CPU: "InsufficientCPU",
    Verdict.MEMORY: "InsufficientMemory",
    Verdict.PODS: "TooManyPods",
}

#: verdicts that mean too few free GPUs
SHORT_OF_GPUS: Final = frozenset({Verdict.CARDS_TAKEN, Verdict.SHARE_TAKEN, Verdict.NO_SLICE, Verdict.WIRING})

# As NumPy scalars: it takes longer to see through an enum than to do what is done with it.
_FITS: Final = np.uint8(Verdict.FITS)
_SHARE_TAKEN: Final = np.uint8(Verdict.SHARE_TAKEN)
_NO_SLICE: Final = np.uint8(Verdict.NO_SLICE)
_CPU: Final = np.uint8(Verdict.CPU)
_MEMORY: Final = np.uint8(Verdict.MEMORY)
_PODS: Final = np.uint8(Verdict.PODS)

_PAIR: Final = 2
# What a card of the node can be divided into, beside the milli of its equal shares.
_ANY: Final = -1
_WHOLE: Final = 0
_EVERYWHERE: Final = slice(None)
# Requests remembered, the oldest forgotten first: a fleet of 10,000 nodes takes 10 kB for each.
_KEPT: Final = 2048
# Faster than any link, and no more than the tables' 32-bit floats can be compared with.
_FASTEST_GB_PER_S: Final = 1e30
# Bandwidths may be anything; a shape of 16 cards takes half a megabyte for each.
_KEPT_SETS: Final = 128


@dataclass(frozen=True, slots=True)
class _Sets:
    """Tables of one kind of request for whole cards, over the rows of `subset.ShapeTables`."""

    codes: Codes
    """FITS, CARDS_TAKEN or WIRING."""
    best: NDArray[np.uint16]
    room: NDArray[np.int32]


class Fitter:
    """Answers over one snapshot as it is at the moment of asking; what does not change with bookings is kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        nodes = snapshot.nodes
        self.tables = subset.ShapeTables([shape.wiring for shape in snapshot.shapes])
        self._offset: NDArray[np.int64] = self.tables.offset[snapshot.shape]
        self._wide: NDArray[np.bool_] = self.tables.wide[snapshot.shape]
        self._has_wide = bool(self._wide.any())
        # Requests for more cards than the largest node has are refused alike: one table serves them all.
        self._too_many = max((shape.cards for shape in snapshot.shapes), default=0) + 1
        self._usable = np.array([node.usable for node in nodes], np.int64)
        self._cpu_milli = np.array([node.cpu_milli for node in nodes], np.int64)
        self._memory_bytes = np.array([node.memory_bytes for node in nodes], np.int64)
        self._pods = np.array([node.pods for node in nodes], np.int32)
        self._piece_milli = np.array([_piece(node.pieces) for node in nodes], np.int32)
        self._when_empty: dict[Request, Codes] = {}
        self._sets: dict[tuple[int, Preference, float], _Sets] = {}

    def rows(self, at: At) -> NDArray[np.int64]:
        """Where the tables speak of these nodes as they are now."""
        return self._rows(self._free(at), at)

    def _free(self, at: At) -> NDArray[np.int64]:
        """Free cards of these nodes, less those that pods on overcommitted nodes get first."""
        own, owed = self.snapshot.free[at], self.snapshot.owed[at]
        if not owed.any():
            return own
        return np.array([_less(free, most) for free, most in zip(own.tolist(), owed.tolist(), strict=True)], np.int64)

    def _rows(self, own: NDArray[np.int64], at: At) -> NDArray[np.int64]:
        if self._has_wide:
            own = np.where(self._wide[at], np.bitwise_count(own), own)
        rows: NDArray[np.int64] = self._offset[at] + own
        return rows

    # --- verdicts ---------------------------------------------------------------------------------------

    def verdicts(self, request: Request, nodes: NDArray[np.intp] | None = None) -> Codes:
        """The verdict of each node, or of each of those named."""
        at: At = slice(None) if nodes is None else nodes
        snapshot = self.snapshot
        codes = self._by_amounts(request, snapshot.cpu_milli[at], snapshot.memory_bytes[at], snapshot.pods[at])
        _overrule(codes, self._by_cards(request, at))
        _overrule(codes, self.when_empty(request)[at])
        return codes

    def when_empty(self, request: Request) -> Codes:
        """The verdict each node would give if nothing ran there; shared, do not write to it."""
        known = self._when_empty.get(request)
        if known is None:
            _forget_oldest(self._when_empty, _KEPT)
            known = self._when_empty[request] = self._judge_empty(request)
            known.flags.writeable = False
        return known

    def _judge_empty(self, request: Request) -> Codes:
        snapshot = self.snapshot
        codes = self._by_amounts(request, self._cpu_milli, self._memory_bytes, self._pods)
        _overrule(codes, self._cards_when_empty(request))
        gpus = request.gpus
        by_shape = (
            (Verdict.GPU_MEMORY, Request(Gpus(), min_memory_gb=request.min_memory_gb)),
            (Verdict.WRONG_ARCHITECTURE, Request(Gpus(), architecture=request.architecture)),
            (Verdict.WRONG_MODEL, Request(Gpus(), model=request.model)),
        )
        if gpus.milli:
            memory = np.array([shape.memory_mib or 0 for shape in snapshot.shapes], np.int64)
            codes[memory[snapshot.shape] < gpus.share_mib] = Verdict.GPU_MEMORY
        for verdict, property_wanted in by_shape:
            codes[~snapshot.shape_meets(property_wanted)[snapshot.shape]] = verdict
        codes[~snapshot.labels.allowed(request.constraints)] = Verdict.NOT_ALLOWED
        if request.spot is SpotPolicy.REQUIRE:
            codes[~snapshot.spot] = Verdict.NOT_ALLOWED
        codes[~snapshot.ready] = Verdict.NOT_READY
        return codes

    def _cards_when_empty(self, request: Request) -> Codes:
        gpus = request.gpus
        if gpus.count:
            codes: Codes = self._sets_of(request).codes[self._rows(self._usable, _EVERYWHERE)]
            codes[(codes == Verdict.CARDS_TAKEN) | (self._piece_milli > 0)] = Verdict.TOO_FEW_CARDS
            return codes
        short = np.zeros(len(self.snapshot), np.bool_)
        if gpus.milli:
            short = (self._usable == 0) | ((self._piece_milli != gpus.milli) & (self._piece_milli != _ANY))
        elif gpus.slices:
            short = self._slices_when_empty(gpus.profile) < gpus.slices
        return np.where(short, np.uint8(Verdict.TOO_FEW_CARDS), _FITS)

    def _slices_when_empty(self, profile: str) -> NDArray[np.int32]:
        counts = np.zeros(len(self.snapshot), np.int32)
        for number, node in enumerate(self.snapshot.nodes):
            for card, cut in node.cut.items():
                if node.healthy >> card & 1:
                    counts[number] += sum(each.profile.name == profile for each in cut)
        return counts

    @staticmethod
    def _by_amounts(
        request: Request, cpu_milli: NDArray[np.int64], memory_bytes: NDArray[np.int64], pods: NDArray[np.int32]
    ) -> Codes:
        codes = np.zeros(len(pods), np.uint8)
        codes[pods < 1] = _PODS
        # Who asks for nothing is not kept away by a node that is overbooked.
        if request.memory_bytes:
            codes[memory_bytes < request.memory_bytes] = _MEMORY
        if request.cpu_milli:
            codes[cpu_milli < request.cpu_milli] = _CPU
        return codes

    def _by_cards(self, request: Request, at: At) -> Codes:
        snapshot, gpus = self.snapshot, request.gpus
        if gpus.count:
            found: Codes = self._sets_of(request).codes[self.rows(at)]
            return found
        if gpus.milli:
            holds = (snapshot.milli[at] >= gpus.milli) & (snapshot.share_mib[at] >= gpus.share_mib)
            owed = snapshot.owed_shares[at]
            fits = holds.any(axis=1) if not owed.any() else _shares_of(snapshot.milli[at], holds, gpus) > owed
            return np.where(fits, _FITS, _SHARE_TAKEN)
        if gpus.slices:
            free: NDArray[np.int32] = self._free_slices(gpus.profile)[at]
            return np.where(free < gpus.slices, _NO_SLICE, _FITS)
        return np.zeros(len(snapshot.pods[at]), np.uint8)

    def _free_slices(self, profile: str) -> NDArray[np.int32]:
        found, owed = self.snapshot.slices.get(profile), self.snapshot.owed_slices.get(profile)
        if found is None:
            return np.zeros(len(self.snapshot), np.int32)
        return found if owed is None else np.maximum(found - owed, 0)

    @functools.cached_property
    def divisions(self) -> tuple[int, ...]:
        """Into how many pieces nodes divide their cards, as most do first; of equally many the larger share."""
        found = collections.Counter(node.pieces for node in self.snapshot.nodes if node.pieces and node.ready)
        return tuple(sorted(found, key=lambda pieces: (-found[pieces], pieces)))

    @property
    def usual_pieces(self) -> int:
        """How most nodes that share their cards divide them; 0 when none does."""
        return self.divisions[0] if self.divisions else 0

    def avoided(self, request: Request, nodes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these nodes the pod uses only where no other will do."""
        if request.spot is SpotPolicy.AVOID:
            spot: NDArray[np.bool_] = self.snapshot.spot[nodes]
            return spot
        return np.zeros(len(nodes), np.bool_)

    # --- room -------------------------------------------------------------------------------------------

    def room(self, request: Request) -> NDArray[np.int32]:
        """How many such pods each node takes now, one after the other, each given its best cards."""
        snapshot, gpus = self.snapshot, request.gpus
        room = snapshot.pods.astype(np.int64)
        if request.cpu_milli:
            np.minimum(room, snapshot.cpu_milli // request.cpu_milli, out=room)
        if request.memory_bytes:
            np.minimum(room, snapshot.memory_bytes // request.memory_bytes, out=room)
        if gpus.count:
            np.minimum(room, self._sets_of(request).room[self.rows(_EVERYWHERE)], out=room)
        elif gpus.milli:
            on_card = snapshot.milli // gpus.milli
            if gpus.share_mib:
                on_card = np.minimum(on_card, snapshot.share_mib // gpus.share_mib)
            np.minimum(room, on_card.sum(axis=1) - snapshot.owed_shares, out=room)
        elif gpus.slices:
            np.minimum(room, self._free_slices(gpus.profile) // gpus.slices, out=room)
        room[self.when_empty(request) != Verdict.FITS] = 0
        return np.maximum(room, 0).astype(np.int32)

    # --- grants -----------------------------------------------------------------------------------------

    def grant(self, request: Request, node: int) -> Grant | None:
        """What the pod gets on the node; None when it does not fit there now."""
        if self.verdicts(request, np.array([node]))[0] != _FITS:
            return None
        return self.allot(request, node)

    def allot(self, request: Request, node: int) -> Grant:
        """What the pod gets on a node whose verdict is known to be FITS."""
        gpus = request.gpus
        cpu, memory = request.cpu_milli, request.memory_bytes
        if gpus.milli:
            return Grant(node, cpu, memory, share=(self._shared_card(gpus, node), gpus.milli, gpus.share_mib))
        if gpus.slices:
            return Grant(node, cpu, memory, slices=self._slices(gpus, node))
        return Grant(node, cpu, memory, cards=self.cards(request, node) if gpus.count else 0)

    def cards(self, request: Request, node: int) -> int:
        """Mask of the whole cards the request would get of the node's free ones; 0 when no set will do."""
        best = self._sets_of(request).best
        if self._wide[node]:
            return self._lowest(best, request.gpus.count, node)
        return int(best[self._offset[node] + self._free_of(node)])

    def _free_of(self, node: int) -> int:
        return _less(int(self.snapshot.free[node]), int(self.snapshot.owed[node]))

    def masks(self, count: int, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """The best set of so many of each node's free cards, whatever their wiring; 0 where there are too few."""
        best = self.tables.best(count, Preference.NONE)
        found: NDArray[np.int64] = best[self.rows(nodes)].astype(np.int64)
        for place in np.flatnonzero(self._wide[nodes]).tolist():
            found[place] = self._lowest(best, count, int(nodes[place]))
        return found

    def _lowest(self, best: NDArray[np.uint16], count: int, node: int) -> int:
        """Of a wide node, whose tables tell only whether there is a set."""
        free = self._free_of(node)
        return bitmask.lowest(free, count) if best[self._offset[node] + free.bit_count()] else 0

    def gb_per_s(self, request: Request, node: int) -> float | None:
        """Ring bandwidth of the cards it would get, data-sheet figures; None for less than two, 0 when not known."""
        if request.gpus.count < _PAIR:
            return None
        rates = self.tables.gb_per_s(request.gpus.count, request.preference)
        return float(rates[self.rows(np.array([node]))][0])

    def _shared_card(self, gpus: Gpus, node: int) -> int:
        milli, mib = self.snapshot.milli[node], self.snapshot.share_mib[node]
        left = np.where((milli >= gpus.milli) & (mib >= gpus.share_mib), milli, CARD_MILLI + 1)
        card = int(left.argmin())
        if left[card] < CARD_MILLI:
            return card
        # A whole card has to be broken into: the one whose loss costs least.
        return self.cards(_ONE_CARD, node).bit_length() - 1

    def _slices(self, gpus: Gpus, node: int) -> tuple[tuple[int, Placement], ...]:
        cut = {card: self.snapshot.free_slices.get((node, card), []) for card in self.snapshot.nodes[node].cut}
        fullest_first = sorted(cut, key=lambda card: (len(cut[card]), card))
        found = [
            (card, each)
            for card in fullest_first
            for each in sorted(cut[card], key=lambda placed: placed.start)
            if each.profile.name == gpus.profile
        ]
        return tuple(found[: gpus.slices])

    # --- tables -----------------------------------------------------------------------------------------

    def _sets_of(self, request: Request) -> _Sets:
        count = min(request.gpus.count, self._too_many)
        preference, least = request.preference, min(request.min_bandwidth_gbps, _FASTEST_GB_PER_S)
        key = (count, preference, least)
        known = self._sets.get(key)
        if known is None:
            _forget_oldest(self._sets, _KEPT_SETS)
            known = self._sets[key] = self._build_sets(count, preference, least)
        return known

    def _build_sets(self, count: int, preference: Preference, least_gb_per_s: float) -> _Sets:
        tables = self.tables
        best = tables.best(count, preference).copy()
        if least_gb_per_s:
            # The best set is the fastest: where it is too slow, all are.
            best[~(tables.gb_per_s(count, preference) >= least_gb_per_s)] = 0
        codes = np.where(best > 0, Verdict.FITS, Verdict.WIRING).astype(np.uint8)
        room = np.zeros(len(best), np.int32)
        for part, wide in zip(tables.parts, tables.wide.tolist(), strict=True):
            rows = np.arange(part.stop - part.start)
            free = rows if wide else np.bitwise_count(rows)
            codes[part][free < count] = Verdict.CARDS_TAKEN
            room[part] = np.where(best[part] > 0, free // count, 0) if wide else _pods_of(best[part], rows)
        return _Sets(codes, best, room)


def _pods_of(best: NDArray[np.uint16], masks: NDArray[np.int64]) -> NDArray[np.int32]:
    """Mask -> how many sets can be taken one after the other."""
    room = np.zeros(len(best), np.int32)
    left, taken = masks, best
    while taken.any():
        room += taken > 0
        left = left ^ taken
        taken = best[left]
    return room


def _less(free: int, owed: int) -> int:
    """The mask without its lowest cards, as many as are owed."""
    while free and owed > 0:
        free &= free - 1
        owed -= 1
    return free


def _shares_of(milli: NDArray[np.int32], holds: NDArray[np.bool_], gpus: Gpus) -> NDArray[np.int64]:
    """Node -> shares of this size that its cards have left."""
    left: NDArray[np.int64] = np.where(holds, milli // gpus.milli, 0).sum(axis=1)
    return left


def _piece(pieces: int | None) -> int:
    if pieces is None:
        return _ANY
    return piece_milli(pieces) if pieces else _WHOLE


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_ONE_CARD: Final = Request(Gpus(count=1))


def _forget_oldest(remembered: dict[_Key, _Value], most: int) -> None:
    if len(remembered) >= most:
        del remembered[next(iter(remembered))]


def _overrule(codes: Codes, stronger: Codes) -> None:
    np.copyto(codes, stronger, where=stronger != _FITS)

"""Free capacity per node as rows that can be written, compared, and restored bit for bit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Snapshot

_HASH_BYTES: Final = 8
_WHOLE: Final = 1 << (8 * _HASH_BYTES)
_FLAT: Final = ("free", "cpu_milli", "memory_bytes", "pods")
_PER_CARD: Final = ("milli", "share_mib")
# Number of fleet copies that are tracked: the live one, the planner's, and some later ones.
_COPIES: Final = 16


class Row(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The free capacity of one node."""

    node: int
    """Its number among the current nodes, by name."""
    cards: int
    """Mask of whole free GPUs."""
    cpu_milli: int
    memory_bytes: int
    pods: int
    shares: tuple[tuple[int, int, int], ...] = ()
    """(GPU, milli, MiB) of partly used GPUs."""
    slices: tuple[tuple[int, str, int], ...] = ()
    """(GPU, profile, start), in the order of allocation."""


class Free(Protocol):
    """A Snapshot, or a copy of its free capacity."""

    @property
    def nodes(self) -> Sequence[Node]: ...
    @property
    def free(self) -> NDArray[np.integer[Any]]: ...
    @property
    def cpu_milli(self) -> NDArray[np.integer[Any]]: ...
    @property
    def memory_bytes(self) -> NDArray[np.integer[Any]]: ...
    @property
    def pods(self) -> NDArray[np.integer[Any]]: ...
    @property
    def milli(self) -> NDArray[np.integer[Any]]: ...
    @property
    def share_mib(self) -> NDArray[np.integer[Any]]: ...
    @property
    def free_slices(self) -> Mapping[tuple[int, int], Sequence[Placement]]: ...


@dataclass
class FreeCopy:
    """A copy of the free capacity, independent of its snapshot."""

    nodes: Sequence[Node]
    free: NDArray[np.integer[Any]]
    cpu_milli: NDArray[np.integer[Any]]
    memory_bytes: NDArray[np.integer[Any]]
    pods: NDArray[np.integer[Any]]
    milli: NDArray[np.integer[Any]]
    share_mib: NDArray[np.integer[Any]]
    free_slices: dict[tuple[int, int], Sequence[Placement]]

    @classmethod
    def copy_from(cls, source: Free) -> FreeCopy:
        arrays = {name: getattr(source, name).copy() for name in (*_FLAT, *_PER_CARD)}
        return cls(source.nodes, free_slices={key: tuple(left) for key, left in source.free_slices.items()}, **arrays)

    def rows(self) -> list[Row]:
        return [row_of(self, number) for number in range(len(self.nodes))]

    def take(self, source: Free, numbers: Mapping[int, int]) -> None:
        """Copy nodes from `source`; `numbers` maps their numbers there to those here."""
        old, new = list(numbers), list(numbers.values())
        for name in _FLAT:
            getattr(self, name)[new] = getattr(source, name)[old]
        width = min(source.milli.shape[1], self.milli.shape[1])
        for name in _PER_CARD:
            getattr(self, name)[new, :width] = getattr(source, name)[old, :width]
        for there, here in numbers.items():
            for card in self.nodes[here].cut:
                if (there, card) in source.free_slices:
                    self.free_slices[here, card] = tuple(source.free_slices[there, card])

    def find_differing(self, source: Free) -> list[int]:
        """Return the nodes whose row differs in `source`, which has the same nodes."""
        found = np.zeros(len(self.nodes), np.bool_)
        for name in _FLAT:
            found |= getattr(self, name) != getattr(source, name)
        for name in _PER_CARD:
            found |= (getattr(self, name) != getattr(source, name)).any(axis=1)
        for (number, card), left in source.free_slices.items():
            if self.free_slices[number, card] != tuple(left):
                found[number] = True
        numbers: list[int] = np.flatnonzero(found).tolist()
        return numbers


def row_of(source: Free, number: int) -> Row:
    free = int(source.free[number])
    return Row(
        number,
        free,
        int(source.cpu_milli[number]),
        int(source.memory_bytes[number]),
        int(source.pods[number]),
        _shares(source, number, free),
        tuple(
            (card, each.profile.name, each.start)
            for card in source.nodes[number].cut
            for each in source.free_slices.get((number, card), ())
        ),
    )


def _shares(source: Free, number: int, free: int) -> tuple[tuple[int, int, int], ...]:
    milli = source.milli[number].tolist()
    return tuple(
        (card, left, int(source.share_mib[number, card]))
        for card, left in enumerate(milli)
        if left and not free >> card & 1
    )


def moved_row(row: Row, number: int) -> Row:
    """Return the row with another node number."""
    return msgspec.structs.replace(row, node=number)


def put_row(snapshot: Snapshot, row: Row) -> None:
    """Set the free capacity of the node."""
    number, node = row.node, snapshot.nodes[row.node]
    snapshot.free[number], snapshot.pods[number] = row.cards, row.pods
    snapshot.cpu_milli[number], snapshot.memory_bytes[number] = row.cpu_milli, row.memory_bytes
    snapshot.milli[number] = snapshot.share_mib[number] = 0
    for card in list_gpus(row.cards):
        snapshot.milli[number, card], snapshot.share_mib[number, card] = GPU_MILLI, node.shape.memory_mib or 0
    for card, milli, mib in row.shares:
        snapshot.milli[number, card], snapshot.share_mib[number, card] = milli, mib
    _put_slices(snapshot, row, node)
    snapshot.version += 1
    snapshot.changed[number] = snapshot.version


def _put_slices(snapshot: Snapshot, row: Row, node: Node) -> None:
    for counts in snapshot.slices.values():
        counts[row.node] = 0
    for card, cut in node.cut.items():
        if (row.node, card) not in snapshot.free_slices:
            continue
        placed = {(each.profile.name, each.start): each for each in cut}
        left = [placed[name, start] for at, name, start in row.slices if at == card]
        snapshot.free_slices[row.node, card] = left
        for each in left:
            snapshot.slices[each.profile.name][row.node] += 1


# --- hashes ----------------------------------------------------------------------------------------------


def hash_of(source: Free, number: int) -> int:
    """Return the hash of a node's name and its free capacity."""
    row = moved_row(row_of(source, number), 0)
    text = source.nodes[number].name.encode() + msgspec.json.encode(row)
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")


class Digest:
    """A hash of all free capacity, updated node by node and independent of their order."""

    def __init__(self, source: Free, hashes: Sequence[int] | None = None) -> None:
        """`hashes` are those of its nodes, if known."""
        self._source = source
        known = hashes if hashes is not None else [hash_of(source, number) for number in range(len(source.nodes))]
        self.hashes = list(known)
        self._sum = sum(self.hashes)

    def __str__(self) -> str:
        return f"{self._sum % _WHOLE:0{2 * _HASH_BYTES}x}"

    def update_node(self, number: int, source: Free | None = None) -> bool:
        """Update the hash of a node, from `source` if given; return whether it changed."""
        new = hash_of(source or self._source, number)
        self._sum += new - self.hashes[number]
        is_other, self.hashes[number] = new != self.hashes[number], new
        return is_other


def digest(source: Free) -> str:
    """Return the hash of all free capacity."""
    return str(Digest(source))


class Mirror:
    """The last written state, by which changes are found in any copy of the fleet."""

    def __init__(self, last: FreeCopy, hashes: Sequence[int] | None = None) -> None:
        """`hashes` are those of its nodes, if known."""
        self.last = last
        self._digest = Digest(last, hashes)
        self._step = 0
        self._written = np.zeros(len(last.nodes), np.int64)  # node -> step in which it was written
        self._seen: dict[int, tuple[Any, int, int]] = {}  # id -> snapshot, its version and our step, at its last use

    @property
    def digest(self) -> str:
        return str(self._digest)

    def take_changes(self, snapshot: Snapshot) -> tuple[Row, ...]:
        """Return the rows of `snapshot`, which has the same nodes, that differ from the written state, and mark them
        as written.
        """
        found = self._candidates(snapshot)
        self._step += 1
        changed = [number for number in found if self._put(snapshot, number)]
        if len(self._seen) >= _COPIES:
            self._seen.clear()
        self._seen[id(snapshot)] = (snapshot, snapshot.version, self._step)
        return tuple(row_of(snapshot, number) for number in changed)

    def follow_nodes(self, snapshot: Snapshot, fresh: Container[int]) -> Mirror:
        """Return a mirror for other nodes: those of `fresh` with their current state, all others, by name, as
        written.
        """
        last = FreeCopy.copy_from(snapshot)
        before = {node.name: number for number, node in enumerate(self.last.nodes)}
        kept = {before[node.name]: number for number, node in enumerate(snapshot.nodes) if number not in fresh}
        last.take(self.last, kept)
        hashes = {new: self._digest.hashes[old] for old, new in kept.items()}
        return Mirror(last, [hashes.get(n) or hash_of(snapshot, n) for n in range(len(snapshot))])

    def _candidates(self, snapshot: Snapshot) -> list[int]:
        known = self._seen.get(id(snapshot))
        if known is None or known[0] is not snapshot:
            return self.last.find_differing(snapshot)
        _, version, step = known
        found: list[int] = np.flatnonzero((snapshot.changed > version) | (self._written > step)).tolist()
        return found

    def _put(self, snapshot: Snapshot, number: int) -> bool:
        if not self._digest.update_node(number, snapshot):
            return False
        self._written[number] = self._step
        self.last.take(snapshot, {number: number})
        return True

"""The fleet at one moment, as flat arrays that a simulation can change and restore.

Per node: free whole GPUs as a bit mask, free milli and memory per GPU, free CPU, memory and pod slots; slices
per partitioned GPU. Everything a pod holds is one Grant; `commit` books it and returns the function that undoes it.
Undone in reverse order, the snapshot is bit for bit what it was. A simulation therefore needs no copy:

    with snapshot.trial() as trial:
        trial.release(running)
        trial.commit(wanted)

`version` rises with every change and is stamped on the changed node. Caches of per-node results use it to find the
nodes that changed since they last looked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from kgwe import errors
from kgwe.model.gpu import catalog
from kgwe.placement.fleet.constraints import LabelIndex
from kgwe.placement.fleet.hardware_kinds import HardwareKinds
from kgwe.placement.fleet.node import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.fleet.node import Node, Request, Shape

_GB_IN_MIB = 1e9 / 2**20


@dataclass(frozen=True, slots=True)
class Debt:
    """GPUs, shares and slices (by profile) that a pod on an overcommitted node has beyond what could be booked."""

    gpus: int = 0
    shares: int = 0
    slices: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gpus or self.shares or self.slices)


NO_DEBT: Final = Debt()


@dataclass(frozen=True, slots=True)
class Grant:
    """What one pod holds of one node: whole GPUs, a share of one, or slices, never a mixture."""

    node: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    #: mask of whole GPUs
    gpus: int = 0
    #: (GPU, milli, MiB) of a shared GPU
    share: tuple[int, int, int] | None = None
    #: (GPU, slice) pairs
    slices: tuple[tuple[int, Placement], ...] = ()
    #: pod slots; 0 for all but the first grant of a pod that holds several kinds
    pods: int = 1
    #: what its pod has beyond what its node could give: it gets that before others when something comes free there
    owed: Debt = NO_DEBT

    def __post_init__(self) -> None:
        kinds = bool(self.gpus) + (self.share is not None) + bool(self.slices)
        if kinds > 1 or len({(gpu, placed.start) for gpu, placed in self.slices}) != len(self.slices):
            raise errors.InvariantBroken(f"a grant is of one kind and names a slice once: {self}")

    @property
    def gpu_mask(self) -> int:
        """Mask of the GPUs it holds anything of."""
        mask = self.whole_or_shared
        for gpu, _ in self.slices:
            mask |= 1 << gpu
        return mask

    @property
    def whole_or_shared(self) -> int:
        """Mask of the GPUs it has whole, or a share of."""
        return self.gpus if self.share is None else 1 << self.share[0]


@dataclass
class Snapshot:
    """Build with `Snapshot.from_nodes(nodes)`; read the arrays freely, change them only by `commit`."""

    nodes: tuple[Node, ...]
    shapes: tuple[Shape, ...]
    index: dict[str, int]
    labels: LabelIndex
    #: node -> index into `shapes`
    shape: NDArray[np.int32]
    ready: NDArray[np.bool_]
    #: node -> mask of GPUs that are whole, healthy and free
    free: NDArray[np.int64]
    cpu_milli: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    pods: NDArray[np.int32]
    #: node, GPU -> free milli and MiB; 0 for GPUs that are sick, cut or not there
    milli: NDArray[np.int32]
    share_mib: NDArray[np.int32]
    #: profile -> node -> free slices
    slices: dict[str, NDArray[np.int32]]
    #: (node, GPU) -> its free slices
    free_slices: dict[tuple[int, int], list[Placement]]
    #: node -> how far it can be relied on, 0..1
    reliability: NDArray[np.float64]
    #: node -> how well work has fared there, 0..1: its reliability and what became of workloads in its domain
    history: NDArray[np.float64]
    #: node -> whether its provider may take it back at any time
    spot: NDArray[np.bool_]
    #: node -> GPUs and shares that overcommitted pods have coming; profile -> node -> slices
    owed: NDArray[np.int32]
    owed_shares: NDArray[np.int32]
    owed_slices: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    #: False: no pod has anything coming, so these three need not be read
    has_debts: bool = False
    version: int = 0
    changed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def from_nodes(cls, nodes: Iterable[Node]) -> Snapshot:
        listed = tuple(nodes)
        index = {node.name: number for number, node in enumerate(listed)}
        if len(index) != len(listed):
            raise errors.Permanent("duplicate node name in snapshot")
        shapes = tuple(dict.fromkeys(node.shape for node in listed))
        numbers = {shape: number for number, shape in enumerate(shapes)}
        widest = max((shape.gpu_count for shape in shapes), default=0)
        milli = np.zeros((len(listed), widest), dtype=np.int32)
        share_mib = np.zeros((len(listed), widest), dtype=np.int32)
        free_slices: dict[tuple[int, int], list[Placement]] = {}
        slices: dict[str, NDArray[np.int32]] = {}
        for number, node in enumerate(listed):
            for gpu in range(node.shape.gpu_count):
                if node.usable >> gpu & 1:
                    milli[number, gpu] = GPU_MILLI
                    share_mib[number, gpu] = node.shape.memory_mib or 0
            for gpu, cut in node.cut.items():
                if node.healthy >> gpu & 1:
                    free_slices[number, gpu] = list(cut)
                    for each in cut:
                        counts = slices.setdefault(each.profile.name, np.zeros(len(listed), dtype=np.int32))
                        counts[number] += 1
        return cls(
            nodes=listed,
            shapes=shapes,
            index=index,
            labels=LabelIndex([n.name for n in listed], [n.labels for n in listed], [n.taints for n in listed]),
            shape=np.array([numbers[node.shape] for node in listed], dtype=np.int32),
            ready=np.array([node.ready for node in listed], dtype=np.bool_),
            free=np.array([node.usable for node in listed], dtype=np.int64),
            cpu_milli=np.array([node.cpu_milli for node in listed], dtype=np.int64),
            memory_bytes=np.array([node.memory_bytes for node in listed], dtype=np.int64),
            pods=np.array([node.pods for node in listed], dtype=np.int32),
            milli=milli,
            share_mib=share_mib,
            slices=slices,
            free_slices=free_slices,
            reliability=np.array([node.reliability for node in listed], dtype=np.float64),
            history=np.array([node.reliability * node.history for node in listed], dtype=np.float64),
            spot=np.array([node.spot for node in listed], dtype=np.bool_),
            owed=np.zeros(len(listed), dtype=np.int32),
            owed_shares=np.zeros(len(listed), dtype=np.int32),
            changed=np.zeros(len(listed), dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.nodes)

    @functools.cached_property
    def kinds(self) -> HardwareKinds:
        """Nodes by CPU architecture and GPU model."""
        return HardwareKinds(self.nodes)

    def changed_since(self, version: int) -> NDArray[np.intp]:
        """Nodes changed since `version`."""
        found: NDArray[np.intp] = (self.changed > version).nonzero()[0]
        return found

    # --- booking ----------------------------------------------------------------------------------------

    def commit(self, grant: Grant) -> Callable[[], None]:
        """Book `grant`; returns its undo. InvariantBroken, with nothing changed, when it does not fit."""
        self._check(grant)
        self._book(grant, 1)
        return lambda: self._book(grant, -1)

    def book(self, grant: Grant) -> Callable[[], None]:
        """Book what a pod holds already, even without enough CPU, memory or pod slots: free may go below 0.

        GPUs, shares and slices still have to be free: two holders of one are never recorded. Returns its undo.
        """
        self._check_gpus(grant)
        self._book(grant, 1)
        return lambda: self._book(grant, -1)

    def commit_all(self, grants: Sequence[Grant]) -> Callable[[], None]:
        """Book all or none; returns the undo of all."""
        trial = self.trial()
        try:
            trial.commit_all(grants)
        except errors.InvariantBroken:
            trial.rollback()
            raise
        return trial.rollback

    def trial(self) -> Trial:
        """Start changes that are rolled back when the `with` block ends."""
        return Trial(self)

    def release(self, grant: Grant) -> Callable[[], None]:
        """Free what is booked, as an eviction would; returns the function that books it again."""
        if not self.is_booked(grant):
            raise errors.InvariantBroken(f"releasing on {self.nodes[grant.node].name}: it is not booked")
        self._book(grant, -1)
        return lambda: self._book(grant, 1)

    def is_booked(self, grant: Grant) -> bool:
        """Whether the GPUs, share and slices are taken, by any pod."""
        node, cut = grant.node, self.nodes[grant.node].cut
        # A cut GPU is neither free nor held: only its slices are.
        if grant.gpus & int(self.free[node]) or any(grant.gpus >> gpu & 1 for gpu in cut):
            return False
        if grant.share is not None:
            gpu, milli, _ = grant.share
            return gpu not in cut and bool(self.milli[node, gpu] + milli <= GPU_MILLI)
        return not any(placed in self.free_slices.get((node, gpu), (placed,)) for gpu, placed in grant.slices)

    def _check(self, grant: Grant) -> None:
        self._check_gpus(grant)
        node = grant.node
        if 0 < grant.cpu_milli > self.cpu_milli[node] or 0 < grant.memory_bytes > self.memory_bytes[node]:
            raise self._booking_error(node, "too little CPU or memory")
        if self.pods[node] < grant.pods:
            raise self._booking_error(node, "no pod slot")

    def _check_gpus(self, grant: Grant) -> None:
        node = grant.node
        if grant.gpus & ~int(self.free[node]):
            raise self._booking_error(node, f"GPUs {grant.gpus & ~int(self.free[node]):#x} are not free")
        if grant.share is not None and self._lacks_share(node, *grant.share):
            raise self._booking_error(node, f"GPU {grant.share[0]} has too little left")
        if any(placed not in self.free_slices.get((node, gpu), ()) for gpu, placed in grant.slices):
            raise self._booking_error(node, "a slice is not free")

    def _booking_error(self, node: int, problem: str) -> errors.InvariantBroken:
        return errors.InvariantBroken(f"booking on {self.nodes[node].name}: {problem}")

    def _lacks_share(self, node: int, gpu: int, milli: int, mib: int) -> bool:
        return bool(self.milli[node, gpu] < milli or self.share_mib[node, gpu] < mib)

    def _book(self, grant: Grant, sign: int) -> None:
        node = grant.node
        self.cpu_milli[node] -= sign * grant.cpu_milli
        self.memory_bytes[node] -= sign * grant.memory_bytes
        self.pods[node] -= sign * grant.pods
        if grant.gpus:
            self._book_whole_gpus(node, grant.gpus, sign)
        if grant.share is not None:
            gpu, milli, mib = grant.share
            self.milli[node, gpu] -= sign * milli
            self.share_mib[node, gpu] -= sign * mib
            self._refresh_gpu(node, gpu)
        for gpu, placed in grant.slices:
            held = self.free_slices[node, gpu]
            if sign > 0:
                held.remove(placed)
            else:
                held.append(placed)
                held.sort(key=lambda each: each.start)
            self.slices[placed.profile.name][node] -= sign
        if grant.owed:
            self._book_debt(node, grant.owed, sign)
        self.version += 1
        self.changed[node] = self.version

    def _book_debt(self, node: int, owed: Debt, sign: int) -> None:
        self.has_debts = True
        self.owed[node] += sign * owed.gpus
        self.owed_shares[node] += sign * owed.shares
        for profile, count in owed.slices:
            if profile not in self.owed_slices:
                self.owed_slices[profile] = np.zeros(len(self), dtype=np.int32)
            self.owed_slices[profile][node] += sign * count

    def _book_whole_gpus(self, node: int, gpus: int, sign: int) -> None:
        full = self.nodes[node].shape.memory_mib or 0
        self.free[node] ^= np.int64(gpus)
        for gpu in list_gpus(gpus):
            self.milli[node, gpu] = 0 if sign > 0 else GPU_MILLI
            self.share_mib[node, gpu] = 0 if sign > 0 else full

    def _refresh_gpu(self, node: int, gpu: int) -> None:
        """A GPU is free as a whole exactly while no share of it is taken."""
        bit = np.int64(1 << gpu)
        if self.milli[node, gpu] == GPU_MILLI:
            self.free[node] |= bit
        else:
            self.free[node] &= ~bit

    # --- reading ----------------------------------------------------------------------------------------

    def match_shapes(self, request: Request) -> NDArray[np.bool_]:
        """Per shape whether its GPUs have the required properties; what is not known is not met."""
        return np.array([_shape_matches(shape, request) for shape in self.shapes], dtype=np.bool_)


class Trial:
    """Changes to a snapshot that are rolled back, the last one first, when the `with` block ends.

    `len(trial)` is a mark: `trial.rollback(mark)` takes back only what came after it.
    """

    __slots__ = ("_snapshot", "_undos")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._undos: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.rollback()

    def __len__(self) -> int:
        """Changes that were made and not taken back."""
        return len(self._undos)

    def commit(self, grant: Grant) -> None:
        self._undos.append(self._snapshot.commit(grant))

    def commit_all(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self.commit(grant)

    def book(self, grant: Grant) -> None:
        self._undos.append(self._snapshot.book(grant))

    def release(self, grant: Grant) -> None:
        self._undos.append(self._snapshot.release(grant))

    def release_all(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self.release(grant)

    def rollback(self, mark: int = 0) -> None:
        """Take back all changes but the first `mark`."""
        undos = self._undos
        while len(undos) > mark:
            undos.pop()()


def _shape_matches(shape: Shape, request: Request) -> bool:
    if request.min_memory_gb and (shape.memory_mib or 0) < request.min_memory_gb * _GB_IN_MIB:
        return False
    if request.model and not catalog.name_matches(request.model, shape.model):
        return False
    return not request.architecture or request.architecture.lower() == (shape.architecture or "").lower()


def list_gpus(mask: int) -> list[int]:
    """The GPUs of a mask, lowest first."""
    return [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]

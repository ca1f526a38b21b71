"""The simulated fleet: a snapshot, its capacities and costs, and the parts that are down.

GPUs are counted in thousandths. The slices of a partitioned GPU are weighted by memory and sum to 1000 as well. At
each moment, exactly:

    allocated + idle + out = capacity

Parts that are down are booked in the snapshot by a pseudo tenant, so each policy sees them as in use, even with cached
data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.model.network import domain_labels, domains
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.pod.fit import Fitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.fleet.node import Node, Request

#: leaf of a node without a known position
NO_LEAF = -1


@dataclass
class World:
    """A simulated fleet; build it with `World.from_nodes(nodes)`."""

    snapshot: Snapshot
    fitter: Fitter
    tree: domains.Tree
    #: milli per node
    capacity: NDArray[np.int64]
    #: micro-dollars per node and hour; 0 if unknown
    price_micro: NDArray[np.int64]
    #: node -> leaf of the network, or NO_LEAF
    leaf: NDArray[np.int64]
    #: node -> its NVLink domain if it has one, else itself: within it, GPUs are connected by NVLink or PCIe
    box: NDArray[np.int64]
    slice_milli: dict[tuple[int, int, int], int]
    #: node -> its position in the tree
    place: NDArray[np.int64]
    #: per level of the tree, nearest first: bandwidth inside a domain over bandwidth out of it
    oversubscription: tuple[float, ...]
    #: milli that jobs hold, milli that is down
    allocated: int = 0
    out: int = 0
    _node_holds: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    _card_holds: dict[tuple[int, int], Callable[[], None]] = field(default_factory=dict)
    _out_by_node: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_nodes(cls, nodes: Iterable[Node], oversubscription: Sequence[float] = ()) -> World:
        """Build a fleet. `oversubscription` has a ratio per network level, nearest first; 1 for missing levels."""
        snapshot = Snapshot.from_nodes(nodes)
        slice_milli = {}
        for number, node in enumerate(snapshot.nodes):
            for card in node.cut:
                slice_milli.update(_slices_of(number, card, snapshot))
        capacity = snapshot.milli.sum(axis=1, dtype=np.int64)
        for (number, _, _), milli in slice_milli.items():
            capacity[number] += milli
        tree = _network(snapshot.nodes, oversubscription)
        leaf, box = _places(snapshot.nodes, tree)
        return cls(
            snapshot=snapshot,
            fitter=Fitter(snapshot),
            tree=tree,
            capacity=capacity,
            price_micro=np.array([node.price_micro_per_hour or 0 for node in snapshot.nodes], dtype=np.int64),
            leaf=leaf,
            box=box,
            slice_milli=slice_milli,
            place=np.argsort(tree.order),
            oversubscription=tuple(float(level.oversubscription.max(initial=1.0)) for level in tree.levels),
        )

    # --- amounts ----------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        return int(self.capacity.sum())

    @property
    def idle(self) -> int:
        """Return the free milli, by the counters of this class."""
        return self.total - self.allocated - self.out

    def counted_idle(self) -> int:
        """Return the free milli, by the snapshot."""
        slices = sum(
            self.slice_milli[node, card, each.start]
            for (node, card), free in self.snapshot.free_slices.items()
            for each in free
        )
        return int(self.snapshot.milli.sum()) + slices

    def milli(self, grant: Grant) -> int:
        slices = sum(self.slice_milli[grant.node, card, each.start] for card, each in grant.slices)
        return grant.gpus.bit_count() * GPU_MILLI + (grant.share[1] if grant.share else 0) + slices

    # --- work -------------------------------------------------------------------------------------------

    def grants(self, request: Request, counts: Sequence[tuple[int, int]]) -> tuple[Grant, ...] | None:
        """Return the grants of `count` such pods on each node, for (node, count) pairs; None if one does not fit."""
        found: list[Grant] = []
        with self.snapshot.trial() as trial:
            for node, count in counts:
                for _ in range(count):
                    grant = self.fitter.find_grant(request, node)
                    if grant is None:
                        return None
                    found.append(grant)
                    trial.commit(grant)
        return tuple(found)

    def book(self, grants: Sequence[Grant]) -> Callable[[], None]:
        """Book the grants for a job; return a function that releases them."""
        undo = self.snapshot.commit_all(grants)
        milli = sum(map(self.milli, grants))
        self.allocated += milli

        def release() -> None:
            undo()
            self.allocated -= milli

        return release

    # --- faults -----------------------------------------------------------------------------------------

    def is_down(self, node: int) -> bool:
        return node in self._node_holds

    def is_card_down(self, node: int, card: int) -> bool:
        return (node, card) in self._card_holds

    def take_node_down(self, node: int) -> None:
        """Take an empty node down."""
        self._node_holds[node] = []
        self._hold_rest(node)

    def bring_node_up(self, node: int) -> None:
        for undo in reversed(self._node_holds.pop(node)):
            undo()
        self.out -= self._out_by_node.pop(node)

    def take_card_down(self, node: int, card: int) -> None:
        """Take an unused GPU of a running node down."""
        undo, milli = self._hold_card(node, card)
        self._card_holds[node, card] = undo
        self.out += milli

    def bring_card_up(self, node: int, card: int) -> None:
        self._card_holds.pop((node, card))()
        self.out -= self._card_milli(node, card)
        if self.is_down(node):
            self._hold_rest(node)

    def _hold_rest(self, node: int) -> None:
        """Book all free capacity of a node: GPUs, slices, CPU, memory."""
        snapshot = self.snapshot
        grants = [
            Grant(
                node,
                cpu_milli=int(snapshot.cpu_milli[node]),
                memory_bytes=int(snapshot.memory_bytes[node]),
                gpus=int(snapshot.free[node]),
            )
        ]
        slices = tuple((card, each) for card in snapshot.nodes[node].cut for each in self._free_slices(node, card))
        if slices:
            grants.append(Grant(node, slices=slices))
        self._node_holds[node] += [snapshot.commit(grant) for grant in grants]
        milli = sum(map(self.milli, grants))
        self._out_by_node[node] = self._out_by_node.get(node, 0) + milli
        self.out += milli

    def _hold_card(self, node: int, card: int) -> tuple[Callable[[], None], int]:
        cut = self.snapshot.nodes[node].cut
        grant = (
            Grant(node, slices=tuple((card, each) for each in self._free_slices(node, card)))
            if card in cut
            else Grant(node, gpus=1 << card)
        )
        return self.snapshot.commit(grant), self.milli(grant)

    def _free_slices(self, node: int, card: int) -> tuple[Placement, ...]:
        return tuple(self.snapshot.free_slices.get((node, card), ()))

    def _card_milli(self, node: int, card: int) -> int:
        cut = self.snapshot.nodes[node].cut.get(card)
        if cut is None:
            return GPU_MILLI
        return sum(self.slice_milli[node, card, each.start] for each in cut)

    def usable_cards(self, node: int) -> list[int]:
        """Return the GPUs that can be used if nothing is down."""
        here = self.snapshot.nodes[node]
        return [card for card in range(here.shape.gpu_count) if here.healthy >> card & 1]


def _slices_of(node: int, card: int, snapshot: Snapshot) -> dict[tuple[int, int, int], int]:
    """Return the milli of each slice of a partitioned GPU; they sum to 1000."""
    free = snapshot.free_slices.get((node, card), [])
    length = sum(each.profile.units for each in free)
    found, before = {}, 0
    for each in sorted(free, key=lambda placed: placed.start):
        after = before + each.profile.units
        found[node, card, each.start] = after * GPU_MILLI // length - before * GPU_MILLI // length
        before = after
    return found


def _network(nodes: Sequence[Node], oversubscription: Sequence[float]) -> domains.Tree:
    preset = domain_labels.get_preset(domain_labels.detect_preset(node.labels for node in nodes))
    if len(oversubscription) > len(preset.names) or not all(ratio >= 1 for ratio in oversubscription):
        raise errors.Permanent(
            f"oversubscription {', '.join(f'{ratio:g}' for ratio in oversubscription)}: expected ratios of at least 1"
            f" for the levels {', '.join(preset.names)}, nearest first"
        )
    speeds = {
        name: domains.Speed(oversubscription=ratio) for name, ratio in zip(preset.names, oversubscription, strict=False)
    }
    return domains.build_tree([preset.place(node.name, node.labels) for node in nodes], preset.names, speeds=speeds)


def _places(nodes: Sequence[Node], tree: domains.Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    leaf = np.full(len(nodes), NO_LEAF, dtype=np.int64)
    box = np.arange(len(nodes), dtype=np.int64)
    known = tree.levels[0].known[tree.domain_of[0]]
    leaf[tree.order] = np.where(known, tree.domain_of[0], NO_LEAF)
    joined = tree.nvlink_of != domains.NO_DOMAIN
    box[tree.order[joined]] = len(nodes) + tree.nvlink_of[joined]
    return leaf, box

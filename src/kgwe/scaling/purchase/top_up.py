"""A gang on free nodes of the fleet and on new ones: how few new nodes it needs beside what is free already.

Only for gangs without a required level: the place of new nodes in the network is not known. Distances between new and
existing nodes count as unknown, so a gang that needs bandwidth between nodes is not divided like this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgwe.model.network.domains import Place, build_tree
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.live.snapshot_copy import copy_rows
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.scaling.purchase.pools import PromisedSeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.purchase.pools import NodePool


@dataclass(frozen=True, slots=True)
class _Joined:
    """Existing and new nodes with their network."""

    snapshot: Snapshot
    tree: Tree


@dataclass(frozen=True, slots=True)
class TopUp:
    """New nodes of one pool that complete a gang."""

    nodes: int
    seats: tuple[PromisedSeat, ...]


class TopUpSearch:
    """Finds the fewest new nodes. `coming`: nodes in flight or bought before; `promised`: seats, also on them."""

    def __init__(self, existing: Source, coming: Sequence[Node], promised: Iterable[tuple[PromisedSeat, ...]]) -> None:
        self._existing = existing
        self._coming = coming
        self._promised = list(promised)
        tree, names = existing.tree, {node.name for node in existing.snapshot.nodes}
        self._levels = tuple(level.name for level in tree.levels)
        self._places = [
            Place(
                name,
                tuple(level.names[int(tree.domain_of[number, place])] for number, level in enumerate(tree.levels)),
            )
            for place, name in enumerate(tree.nodes)
            if name in names
        ]

    def find(self, ask: Ask, pool: NodePool, first: int, most: int) -> TopUp | None:
        """Return the fewest nodes of the pool, at most so many, with which the gang planner accepts the gang."""
        seats = self._try(ask, pool, first, most)
        if seats is None:
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            fewer = self._try(ask, pool, first, middle)
            if fewer is None:
                low = middle + 1
            else:
                high, seats = middle, fewer
        return TopUp(high, seats)

    def _try(self, ask: Ask, pool: NodePool, first: int, count: int) -> tuple[PromisedSeat, ...] | None:
        fleet = self._build([pool.make_node(first + number) for number in range(count)])
        found = make_plan(fleet, ask, explain=False)
        if not isinstance(found, Plan):
            return None
        return tuple(
            PromisedSeat(seat.node, replace(grant, node=-1))
            for seat, grant in zip(found.seats, found.grants, strict=True)
        )

    def _build(self, new: Sequence[Node]) -> ScratchFleet:
        existing = self._existing.snapshot
        nodes = [*existing.nodes, *self._coming, *new]
        snapshot = Snapshot.from_nodes(nodes)
        copy_rows(existing, snapshot, range(len(existing)))
        fresh = {node.name for node in self._coming}
        for seats in self._promised:
            for seat in seats:
                if seat.node in fresh:
                    snapshot.commit(replace(seat.grant, node=snapshot.index[seat.node]))
        places = [*self._places, *(Place(node.name, ()) for node in (*self._coming, *new))]
        order: Mapping[str, int] = snapshot.index
        places.sort(key=lambda place: order[place.node])
        fleet = ScratchFleet(_Joined(snapshot, build_tree(places, self._levels)))
        fleet.sync()
        return fleet

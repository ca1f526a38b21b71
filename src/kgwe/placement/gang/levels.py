"""The levels a gang climbs, as flat arrays over the nodes of a snapshot: node, NVLink domain, leaf, spine … cluster.

    cluster  ┌───────────────────────────────────────┐   one domain
    spine    ├───────────────────┬───────────────────┤
    leaf     ├─────────┬─────────┼─────────┬─────────┤   a rung: domains side by side, each a slice of the places,
    node     ├─┬─┬─┬─┬─┼─┬─┬─┬─┬─┼─┬─┬─┬─┬─┼─┬─┬─┬─┬─┤   and a slice of the domains of the rung below

A *place* is a node's number in tree order; `node` turns it into the snapshot's number. Sums over all domains of a rung
are one `np.add.reduceat`.

NVLink domains are a dimension of their own in the tree. Where they nest, as an NVL72 in its leaf, they become a rung;
where they cross a level, the gang says by naming one which of the two counts, and when it names both, the domains of
the inner one are cut at the borders of the outer (`GangRequest.named_levels`). A node whose place is not known is a
domain by itself on every level it is silent about: such a domain holds one node, or one known domain of a lower
level, so whatever is inside it is really together.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.network.domains import NO_DOMAIN
from kgwe.placement.gang.request import CLUSTER, NODE, NVLINK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Snapshot

    Ints = NDArray[np.int64]

#: tree position of a node that the tree does not know
NO_PLACE: Final = -1


@dataclass(frozen=True)
class Rung:
    """All domains of one level. Domain d holds the places `starts[d]:starts[d + 1]`."""

    name: str
    names: tuple[str, ...]
    """Name of each domain; empty for one that is not known."""
    starts: Ints
    children: Ints
    """Domain d holds the domains `children[d]:children[d + 1]` of the rung below."""
    known: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    def places(self, domain: int) -> slice:
        return slice(int(self.starts[domain]), int(self.starts[domain + 1]))

    def sums(self, values: NDArray[np.integer] | NDArray[np.bool_]) -> Ints:
        """Per domain, the sum of a value of its places."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.add.reduceat(values, self.starts[:-1], dtype=np.int64)

    def largest(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per domain, the largest value of its places."""
        if not len(self):
            return np.zeros(0)
        return np.maximum.reduceat(values, self.starts[:-1])


@dataclass(frozen=True)
class Ladder:
    """Rungs from the node up to the cluster, over the nodes of one snapshot."""

    tree: Tree
    rungs: tuple[Rung, ...]
    node: NDArray[np.intp]
    """Place -> node of the snapshot."""
    tree_place: Ints
    """Place -> place in the tree, or NO_PLACE."""
    cards: Ints
    """Place -> cards of the node, in use or not."""
    leaf: Ints
    """Place -> its leaf; without levels, everything is one leaf."""

    def index(self, level: str) -> int:
        """Number of the rung of that name; Permanent when the tree has no such level."""
        for number, rung in enumerate(self.rungs):
            if rung.name == level:
                return number
        return self.tree.level(level)

    def leaves_of(self, rung: int) -> tuple[range, ...]:
        """Per domain of a rung from the leaves up, its leaves: domains of `leaf_rung`."""
        return self._leaves[rung]

    @functools.cached_property
    def _leaves(self) -> dict[int, tuple[range, ...]]:
        first = self.leaf_rung
        borders = {
            number: np.searchsorted(self.rungs[first].starts, self.rungs[number].starts).tolist()
            for number in range(first, len(self.rungs))
        }
        return {
            number: tuple(range(begin, end) for begin, end in itertools.pairwise(each))
            for number, each in borders.items()
        }

    @property
    def top(self) -> int:
        return len(self.rungs) - 1

    @property
    def leaf_rung(self) -> int:
        """The first rung of the network."""
        return next((i for i, rung in enumerate(self.rungs) if rung.name not in (NODE, NVLINK)), self.top)

    @functools.cached_property
    def whole_leaf_rung(self) -> int | None:
        """The rung whose domains are the leaves; None where the gang's levels leave out the leaves or cut them."""
        leaves = len(np.unique(self.leaf))
        for number, rung in enumerate(self.rungs):
            ids = np.repeat(np.arange(len(rung)), np.diff(rung.starts))
            if len(rung) == leaves == len(np.unique(ids * (int(self.leaf.max(initial=0)) + 1) + self.leaf)):
                return number
        return None

    def reach_gb_per_s(self, rung: int) -> NDArray[np.float64]:
        """Per place, what the node can expect on its way to the far side of its domain of this rung.

        As `Tree.gb_per_s` counts, with a partner no slower than the node itself. Infinite where no network is used:
        inside a node and inside an NVLink domain.
        """
        name = self.rungs[rung].name
        if name in (NODE, NVLINK):
            return np.full(len(self.node), np.inf)
        levels = self.tree.levels
        top = len(levels) if name == CLUSTER else self.tree.level(name)
        rate: NDArray[np.float64] = np.where(self.tree_place >= 0, self.tree.node_gb_per_s[self.tree_place], 0.0)
        limit = np.full(len(rate), np.inf)
        for number in range(min(top + 1, len(levels))):
            domains = self.tree.domain_of[number, self.tree_place]
            np.minimum(limit, levels[number].gb_per_s[domains], out=limit)
            if number < top:
                rate = rate / levels[number].oversubscription[domains]
        if levels:
            highest = min(top, len(levels) - 1)
            rate[~levels[highest].known[self.tree.domain_of[highest, self.tree_place]]] = 0.0
        else:
            rate[:] = 0.0
        rate[self.tree_place < 0] = 0.0
        np.minimum(rate, limit, out=rate)
        return rate


class Ladders:
    """The ladders of one tree and snapshot, built when first asked for."""

    def __init__(self, tree: Tree, snapshot: Snapshot) -> None:
        self.tree = tree
        self.snapshot = snapshot
        self._built: dict[tuple[str, ...], Ladder] = {}

    def of(self, named: tuple[str, ...] = ()) -> Ladder:
        """The ladder of a gang that names these levels, the outermost first."""
        key = named if NVLINK in named else ()
        if key not in self._built:
            self._built[key] = build(self.tree, self.snapshot, key)
        return self._built[key]


# --- building -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """One level before it is in order: per place the domain it is in."""

    name: str
    ids: Ints
    names: tuple[str, ...]


def build(tree: Tree, snapshot: Snapshot, named: tuple[str, ...] = ()) -> Ladder:
    """The ladder over the nodes of the snapshot; those the tree does not know come last, near nothing."""
    at = np.array([snapshot.index.get(name, -1) for name in tree.nodes], np.int64)
    tree_place = np.flatnonzero(at >= 0)
    missing = np.setdiff1d(np.arange(len(snapshot)), at[tree_place])
    node = np.concatenate((at[tree_place], missing))
    tree_place = np.concatenate((tree_place, np.full(len(missing), NO_PLACE)))
    columns = [_network_column(tree, number, tree_place) for number in range(len(tree.levels))]
    leaf = columns[0].ids if columns else np.zeros(len(node), np.int64)
    columns = _with_nvlink(columns, _nvlink_column(tree, tree_place), named)
    # Stable, so the tree's order stays wherever NVLink domains do not change it.
    order = np.lexsort([column.ids for column in columns]) if columns else np.arange(len(node))
    node, tree_place, leaf = node[order], tree_place[order], leaf[order]
    cards = np.array([shape.cards for shape in snapshot.shapes], np.int64)[snapshot.shape[node]]
    return Ladder(tree, _rungs(columns, order, [snapshot.nodes[i].name for i in node]), node, tree_place, cards, leaf)


def _network_column(tree: Tree, number: int, tree_place: Ints) -> _Column:
    level = tree.levels[number]
    ids = np.where(tree_place >= 0, tree.domain_of[number, tree_place], 0)
    return _Column(level.name, *_own_where(tree_place < 0, ids, level.names))


def _nvlink_column(tree: Tree, tree_place: Ints) -> _Column:
    ids = np.where(tree_place >= 0, tree.nvlink_of[tree_place], NO_DOMAIN)
    return _Column(NVLINK, *_own_where(ids == NO_DOMAIN, ids, tree.nvlink_names))


def _own_where(alone: NDArray[np.bool_], ids: Ints, names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Give each of these places a domain to itself, without a name."""
    count = int(alone.sum())
    out = ids.copy()
    out[alone] = np.arange(len(names), len(names) + count)
    return out, (*names, *[""] * count)


def _with_nvlink(columns: list[_Column], nvlink: _Column, named: tuple[str, ...]) -> list[_Column]:
    """Columns from the lowest up, with the NVLink domains where they nest."""
    if NVLINK not in named:
        crossed = any(not _nests(nvlink, c) and not _nests(c, nvlink) for c in columns)
        if crossed or not any(nvlink.names):
            return columns
    kept = []
    for column in columns:
        if not _nests(nvlink, column) and not _nests(column, nvlink):
            if column.name not in named:
                continue
            if named.index(NVLINK) < named.index(column.name):
                kept.append(_cut(column, nvlink))
                continue
            nvlink = _cut(nvlink, column)
        kept.append(column)
    above = next((i for i, column in enumerate(kept) if _nests(nvlink, column)), len(kept))
    return [*kept[:above], nvlink, *kept[above:]]


def _pairs(one: _Column, other: _Column) -> Ints:
    return one.ids * (len(other.names) + 1) + other.ids


def _nests(inner: _Column, outer: _Column) -> bool:
    """Whether every domain of one lies inside a single domain of the other."""
    return len(np.unique(_pairs(inner, outer))) == len(np.unique(inner.ids))


def _cut(inner: _Column, outer: _Column) -> _Column:
    """Domains of a level cut at the borders of another."""
    keys, ids = np.unique(_pairs(inner, outer), return_inverse=True)
    names = tuple(inner.names[key // (len(outer.names) + 1)] for key in keys)
    return _Column(inner.name, ids.astype(np.int64), names)


def _rungs(columns: list[_Column], order: NDArray[np.intp], node_names: list[str]) -> tuple[Rung, ...]:
    count = len(order)
    whole = np.arange(count + 1, dtype=np.int64)
    rungs = [Rung(NODE, tuple(node_names), whole, whole, np.ones(count, np.bool_))]
    columns = [*columns, _Column(CLUSTER, np.zeros(count, np.int64), (CLUSTER,))]
    for column in columns:
        ids = column.ids[order]
        first = np.flatnonzero(np.concatenate((np.ones(min(count, 1), np.bool_), ids[1:] != ids[:-1])))
        starts = np.append(first, count).astype(np.int64)
        names = tuple(column.names[i] for i in ids[first])
        known = np.array([bool(name) for name in names], np.bool_)
        rungs.append(Rung(column.name, names, starts, np.searchsorted(rungs[-1].starts, starts), known))
    return tuple(rungs)

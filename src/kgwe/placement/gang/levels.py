"""Tables of the topology levels, from the node to the cluster, as flat arrays over the nodes of a snapshot.

    cluster  ┌───────────────────────────────────────┐   one domain
    spine    ├───────────────────┬───────────────────┤
    leaf     ├─────────┬─────────┼─────────┬─────────┤   a level: domains side by side, each a range of places
    node     ├─┬─┬─┬─┬─┼─┬─┬─┬─┬─┼─┬─┬─┬─┬─┼─┬─┬─┬─┬─┤   and a range of domains of the level below

A *place* is a node's number in tree order. `LevelTable.node` maps it to the number in the snapshot. The sums over all
domains of a level are one `np.add.reduceat`.

NVLink domains are separate from the levels of the tree. Where they nest, as an NVL72 in its leaf, they become a level.
Where they cross a level, the level that the gang names counts. If the gang names both, the domains of the inner one are
cut at the borders of the outer one (`GangRequest.named_levels`).

A node whose domain on some level is unknown is a domain by itself there. Such a domain holds one node, or one known
domain of a lower level. So all nodes inside any domain are really near each other.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.network.domains import NO_DOMAIN
from kgwe.placement.gang.request import CLUSTER, NODE, NVLINK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Snapshot

    Ints = NDArray[np.int64]

#: place in the tree of a node that the tree does not contain
NO_PLACE: Final = -1


@dataclass(frozen=True)
class Level:
    """All domains of one level. Domain d holds the places `starts[d]:starts[d + 1]`."""

    name: str
    names: tuple[str, ...]
    """Name of each domain; empty if it is unknown."""
    starts: Ints
    children: Ints
    """Domain d holds the domains `children[d]:children[d + 1]` of the level below."""
    known: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    def place_range(self, domain: int) -> slice:
        return slice(int(self.starts[domain]), int(self.starts[domain + 1]))

    def sum_by_domain(self, values: NDArray[np.integer] | NDArray[np.bool_]) -> Ints:
        """Per domain, the sum of the values of its places."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.add.reduceat(values, self.starts[:-1], dtype=np.int64)

    def max_by_domain(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per domain, the largest value of its places."""
        if not len(self):
            return np.zeros(0)
        return np.maximum.reduceat(values, self.starts[:-1])


@dataclass(frozen=True)
class LevelTable:
    """Levels from the node up to the cluster, over the nodes of one snapshot."""

    tree: Tree
    levels: tuple[Level, ...]
    node: NDArray[np.intp]
    """Place -> node of the snapshot."""
    tree_place: Ints
    """Place -> place in the tree, or NO_PLACE."""
    gpu_counts: Ints
    """Place -> GPUs of the node, in use or not."""
    leaf: Ints
    """Place -> its leaf; without network levels, all nodes are in one leaf."""

    def find_level(self, name: str) -> int:
        """Number of the level with this name; raises `errors.Permanent` if there is none."""
        for number, level in enumerate(self.levels):
            if level.name == name:
                return number
        try:
            return self.tree.level(name)
        except errors.UnknownTopologyLevel as exc:
            allowed = ", ".join((NODE, NVLINK, *(level.name for level in self.tree.levels), CLUSTER))
            raise errors.UnknownTopologyLevel(
                f"No topology level is named {name!r}. Levels of this cluster: {allowed}."
            ) from exc

    def leaf_ranges(self, level: int) -> tuple[range, ...]:
        """The leaves (domains of `leaf_level`) of each domain of a level; the level is `leaf_level` or higher."""
        return self._leaf_ranges[level]

    @functools.cached_property
    def _leaf_ranges(self) -> dict[int, tuple[range, ...]]:
        first = self.leaf_level
        borders = {
            number: np.searchsorted(self.levels[first].starts, self.levels[number].starts).tolist()
            for number in range(first, len(self.levels))
        }
        return {
            number: tuple(range(begin, end) for begin, end in itertools.pairwise(each))
            for number, each in borders.items()
        }

    @property
    def top(self) -> int:
        return len(self.levels) - 1

    @property
    def leaf_level(self) -> int:
        """The lowest level of the network."""
        return next((i for i, level in enumerate(self.levels) if level.name not in (NODE, NVLINK)), self.top)

    @functools.cached_property
    def whole_leaf_level(self) -> int | None:
        """The level whose domains are the leaves; None if the levels of the gang leave them out or cut them."""
        leaves = len(np.unique(self.leaf))
        for number, level in enumerate(self.levels):
            ids = np.repeat(np.arange(len(level)), np.diff(level.starts))
            if len(level) == leaves == len(np.unique(ids * (int(self.leaf.max(initial=0)) + 1) + self.leaf)):
                return number
        return None

    def reach_gb_per_s(self, level: int) -> NDArray[np.float64]:
        """Per place, the GB/s from the node to the farthest node of its domain of this level.

        Computed as in `Tree.gb_per_s`, if the other node is no slower. Infinite inside a node and inside an NVLink
        domain, where no network is used.
        """
        name = self.levels[level].name
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


class LevelTables:
    """The level tables of one tree and snapshot, built on first use."""

    def __init__(self, tree: Tree, snapshot: Snapshot) -> None:
        self.tree = tree
        self.snapshot = snapshot
        self._built: dict[tuple[str, ...], LevelTable] = {}

    def for_levels(self, named: tuple[str, ...] = ()) -> LevelTable:
        """The level table of a gang that names these levels, the outermost first."""
        key = named if NVLINK in named else ()
        if key not in self._built:
            self._built[key] = build_level_table(self.tree, self.snapshot, key)
        return self._built[key]


# --- building -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """One level before sorting: per place, the domain it is in."""

    name: str
    ids: Ints
    names: tuple[str, ...]


def build_level_table(tree: Tree, snapshot: Snapshot, named: tuple[str, ...] = ()) -> LevelTable:
    """The level table of a snapshot; nodes that the tree does not contain come last, each a domain by itself."""
    at = np.array([snapshot.index.get(name, -1) for name in tree.nodes], np.int64)
    tree_place = np.flatnonzero(at >= 0)
    missing = np.setdiff1d(np.arange(len(snapshot)), at[tree_place])
    node = np.concatenate((at[tree_place], missing))
    tree_place = np.concatenate((tree_place, np.full(len(missing), NO_PLACE)))
    columns = [_network_column(tree, number, tree_place) for number in range(len(tree.levels))]
    leaf = columns[0].ids if columns else np.zeros(len(node), np.int64)
    columns = _insert_nvlink(columns, _nvlink_column(tree, tree_place), named)
    # The sort is stable: the order of the tree stays where NVLink domains do not change it.
    order = np.lexsort([column.ids for column in columns]) if columns else np.arange(len(node))
    node, tree_place, leaf = node[order], tree_place[order], leaf[order]
    gpu_counts = np.array([shape.gpu_count for shape in snapshot.shapes], np.int64)[snapshot.shape[node]]
    return LevelTable(
        tree, _build_levels(columns, order, [snapshot.nodes[i].name for i in node]), node, tree_place, gpu_counts, leaf
    )


def _network_column(tree: Tree, number: int, tree_place: Ints) -> _Column:
    level = tree.levels[number]
    ids = np.where(tree_place >= 0, tree.domain_of[number, tree_place], 0)
    return _Column(level.name, *_isolate_places(tree_place < 0, ids, level.names))


def _nvlink_column(tree: Tree, tree_place: Ints) -> _Column:
    ids = np.where(tree_place >= 0, tree.nvlink_of[tree_place], NO_DOMAIN)
    return _Column(NVLINK, *_isolate_places(ids == NO_DOMAIN, ids, tree.nvlink_names))


def _isolate_places(alone: NDArray[np.bool_], ids: Ints, names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Give each of these places its own domain, without a name."""
    count = int(alone.sum())
    out = ids.copy()
    out[alone] = np.arange(len(names), len(names) + count)
    return out, (*names, *[""] * count)


def _insert_nvlink(columns: list[_Column], nvlink: _Column, named: tuple[str, ...]) -> list[_Column]:
    """Columns from the lowest level up, with the NVLink domains inserted where they nest."""
    if NVLINK not in named:
        crossed = any(not _is_nested(nvlink, c) and not _is_nested(c, nvlink) for c in columns)
        if crossed or not any(nvlink.names):
            return columns
    kept = []
    for column in columns:
        if not _is_nested(nvlink, column) and not _is_nested(column, nvlink):
            if column.name not in named:
                continue
            if named.index(NVLINK) < named.index(column.name):
                kept.append(_split_at_borders(column, nvlink))
                continue
            nvlink = _split_at_borders(nvlink, column)
        kept.append(column)
    above = next((i for i, column in enumerate(kept) if _is_nested(nvlink, column)), len(kept))
    return [*kept[:above], nvlink, *kept[above:]]


def _pair_ids(one: _Column, other: _Column) -> Ints:
    return one.ids * (len(other.names) + 1) + other.ids


def _is_nested(inner: _Column, outer: _Column) -> bool:
    """Whether every domain of `inner` lies inside one domain of `outer`."""
    return len(np.unique(_pair_ids(inner, outer))) == len(np.unique(inner.ids))


def _split_at_borders(inner: _Column, outer: _Column) -> _Column:
    """The domains of `inner`, cut at the borders of `outer`."""
    keys, ids = np.unique(_pair_ids(inner, outer), return_inverse=True)
    names = tuple(inner.names[key // (len(outer.names) + 1)] for key in keys)
    return _Column(inner.name, ids.astype(np.int64), names)


def _build_levels(columns: list[_Column], order: NDArray[np.intp], node_names: list[str]) -> tuple[Level, ...]:
    count = len(order)
    whole = np.arange(count + 1, dtype=np.int64)
    levels = [Level(NODE, tuple(node_names), whole, whole, np.ones(count, np.bool_))]
    columns = [*columns, _Column(CLUSTER, np.zeros(count, np.int64), (CLUSTER,))]
    for column in columns:
        ids = column.ids[order]
        first = np.flatnonzero(np.concatenate((np.ones(min(count, 1), np.bool_), ids[1:] != ids[:-1])))
        starts = np.append(first, count).astype(np.int64)
        names = tuple(column.names[i] for i in ids[first])
        known = np.array([bool(name) for name in names], np.bool_)
        levels.append(Level(column.name, names, starts, np.searchsorted(levels[-1].starts, starts), known))
    return tuple(levels)

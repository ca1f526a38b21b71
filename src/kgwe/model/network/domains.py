"""The network as an immutable tree of domains, in flat arrays.

    cluster                          the root, of everything
      core ── spine ── leaf ── node  levels, counted from the node: leaf 0, spine 1, core 2
      NVLink domain ── node          a dimension of its own: NVLink beyond the box (72 GPUs of an NVL72)

Nodes are put in tree order, so that every domain is a slice of it and a sum over all domains of a level is one
`np.add.reduceat`. An array given to the tree's methods is in this order too; `order` brings one there.

A domain is identified by its path from the top, so `rack-1` under two spines is two racks. A node without a known
domain at a level gets a domain of its own there: it is near nothing. If the other nodes of its leaf agree on the
spine, the node is in that spine too.

Distances are counted in switches passed: 1 inside a leaf, 3 inside a spine, and 2 between leaves declared as
connected. An unknown place is farther than every known one.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

UNKNOWN_GB_PER_S: Final = 0.0

#: nvlink_of a node that is in no NVLink domain, or in none that is known
NO_DOMAIN: Final = -1


@dataclass(frozen=True, slots=True)
class Place:
    """The declared place of one node in the network."""

    node: str
    path: tuple[str, ...] = ()
    """Domain per level, the nearest first; empty text: not known. May be shorter than the tree."""
    nvlink: str = ""
    gb_per_s: float = UNKNOWN_GB_PER_S
    """All NICs of the node together, one direction."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The bandwidth of a domain. None: not declared."""

    gb_per_s: float | None = None
    """Bandwidth of one node inside the domain, one direction."""
    oversubscription: float | None = None
    """Bandwidth of the members over bandwidth towards the parent; 1 is non-blocking, and the default."""


@dataclass(frozen=True)
class Level:
    """All domains of one kind. Domain d holds the nodes `starts[d]:starts[d + 1]` of the tree's order."""

    name: str
    names: tuple[str, ...]
    """Name of each domain; empty for one that is not known."""
    starts: NDArray[np.int64]
    parent: NDArray[np.int64]
    """Domain of the next level that holds each domain; 0, the root, at the last level."""
    known: NDArray[np.bool_]
    gb_per_s: NDArray[np.float64]
    """Bandwidth of one node inside each domain; infinite: not declared."""
    oversubscription: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.names)

    def nodes(self, domain: int) -> slice:
        return slice(int(self.starts[domain]), int(self.starts[domain + 1]))

    def sums(self, values: NDArray[np.integer]) -> NDArray[np.int64]:
        """Per domain, the sum of a value of the nodes (in tree order)."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.add.reduceat(values, self.starts[:-1], dtype=np.int64)


@dataclass(frozen=True)
class Tree:
    """The network of a cluster. Compared by identity: it is built once per change of nodes."""

    nodes: tuple[str, ...]
    """Names in tree order."""
    order: NDArray[np.int64]
    """For each node in tree order, its number in the list the tree was built from."""
    levels: tuple[Level, ...]
    """The nearest first."""
    domain_of: NDArray[np.int64]
    """[level, node] -> domain."""
    nvlink_names: tuple[str, ...]
    nvlink_of: NDArray[np.int64]
    """node -> NVLink domain, or NO_DOMAIN."""
    node_gb_per_s: NDArray[np.float64]
    connected: frozenset[tuple[int, int, int]] = field(default_factory=frozenset)
    """(level, domain, domain): declared to be nearer than their common parent; in both directions."""

    @functools.cached_property
    def position(self) -> Mapping[str, int]:
        """Name of a node -> its place in tree order."""
        return {name: i for i, name in enumerate(self.nodes)}

    @property
    def unknown_hops(self) -> int:
        """The number for an unknown distance: larger than any known one."""
        return 2 * len(self.levels) + 3

    def level(self, name: str) -> int:
        """Number of the level of this name."""
        for number, level in enumerate(self.levels):
            if level.name == name:
                return number
        known = ", ".join(level.name for level in self.levels)
        raise errors.UnknownTopologyLevel(f"No topology level is named {name!r}. Levels of this cluster: {known}.")

    def sum_by_nvlink_domain(self, values: NDArray[np.integer]) -> NDArray[np.int64]:
        """Per NVLink domain, the sum of a value of its nodes."""
        inside = self.nvlink_of >= 0
        out = np.zeros(len(self.nvlink_names), np.int64)
        np.add.at(out, self.nvlink_of[inside], values[inside])
        return out

    def hops_from(self, node: int) -> NDArray[np.int64]:
        """Switches between a node and every node: 0 itself, 1 in its leaf, 3 in its spine …"""
        hops = np.full(len(self.nodes), self.unknown_hops)
        if self.levels:
            last = self.levels[-1].known[self.domain_of[-1]]
            if last[node]:
                hops[last] = 2 * len(self.levels) + 1
        for number in reversed(range(len(self.levels))):
            level, domains = self.levels[number], self.domain_of[number]
            near = [b for n, a, b in self.connected if n == number and a == domains[node]]
            touching = np.isin(domains, near)
            hops[touching] = np.minimum(hops[touching], 2 * number + 2)
            if level.known[domains[node]]:
                hops[level.nodes(domains[node])] = 2 * number + 1
        hops[node] = 0
        return hops

    def hops(self, a: int, b: int) -> int:
        """Switches between two nodes, as in `hops_from`."""
        if a == b:
            return 0
        for number, level in enumerate(self.levels):
            one, other = int(self.domain_of[number, a]), int(self.domain_of[number, b])
            if one == other and level.known[one]:
                return 2 * number + 1
            if (number, one, other) in self.connected:
                return 2 * number + 2
        tops = self.levels[-1].known[self.domain_of[-1, [a, b]]] if self.levels else np.zeros(1, np.bool_)
        return 2 * len(self.levels) + 1 if tops.all() else self.unknown_hops

    def shares_nvlink(self, a: int, b: int) -> bool:
        return a == b or self.nvlink_of[a] == self.nvlink_of[b] != NO_DOMAIN

    def gb_per_s_from(self, node: int) -> NDArray[np.float64]:
        """Network bandwidth a node can expect to every node, one direction; infinite to itself.

        The slower of the two nodes' own NICs, divided on the way up by the oversubscription of every
        domain that is left, and never more than a domain on the way gives to one node. UNKNOWN_GB_PER_S where a
        rate or the way is not known. NVLink domains are not counted here: see `shares_nvlink`.
        """
        own = self.node_gb_per_s
        out: NDArray[np.float64] = np.where(own > 0, np.minimum(own, own[node]), UNKNOWN_GB_PER_S)
        hops = self.hops_from(node)
        limit = np.full(len(self.nodes), np.inf)
        for number, level in enumerate(self.levels):
            domains = self.domain_of[number]
            here = domains[node]
            passed = hops > 2 * number
            limit[passed] = np.minimum(limit[passed], np.minimum(level.gb_per_s[domains], level.gb_per_s[here])[passed])
            # Left upwards, or sideways through a link that is no less oversubscribed than the way up.
            left = hops > 2 * number + 1
            slower = np.maximum(level.oversubscription[domains], level.oversubscription[here])
            out[left] /= slower[left]
        np.minimum(out, limit, out=out)
        out[hops >= self.unknown_hops] = UNKNOWN_GB_PER_S
        out[node] = np.inf
        return out

    def gb_per_s(self, a: int, b: int) -> float:
        return float(self.gb_per_s_from(a)[b])


# --- building -------------------------------------------------------------------------------------------


def build_tree(
    places: Sequence[Place],
    levels: Sequence[str],
    *,
    speeds: Mapping[str, Speed] | None = None,
    domain_speeds: Mapping[tuple[str, str], Speed] | None = None,
    connected: Collection[tuple[str, str, str]] = (),
) -> Tree:
    """The tree of these nodes; `levels` names the levels, the nearest first.

    `speeds` says per level, `domain_speeds` per (level, domain) how fast it is; `connected` are (level, domain,
    domain) that are nearer to each other than their common parent.
    """
    if len({place.node for place in places}) != len(places):
        raise errors.InvariantBroken("a node has two places in the network")
    paths = _complete_paths(places, len(levels))
    # From the top: known domains by name, then those that are not known, one each.
    keys = [_sort_key(place, path) for place, path in zip(places, paths, strict=True)]
    order = sorted(range(len(places)), key=keys.__getitem__)
    sorted_paths = [paths[i] for i in order]
    domain_of, built = _number_domains(sorted_paths, levels, speeds or {}, domain_speeds or {})
    nvlink_names = tuple(dict.fromkeys(places[i].nvlink for i in order if places[i].nvlink))
    numbers = {name: i for i, name in enumerate(nvlink_names)}
    return Tree(
        nodes=tuple(places[i].node for i in order),
        order=np.array(order, np.int64),
        levels=built,
        domain_of=domain_of,
        nvlink_names=nvlink_names,
        nvlink_of=np.array([numbers.get(places[i].nvlink, NO_DOMAIN) for i in order], np.int64),
        node_gb_per_s=np.array([places[i].gb_per_s for i in order], np.float64),
        connected=_list_connections(built, connected),
    )


def _complete_paths(places: Sequence[Place], levels: int) -> list[tuple[str, ...]]:
    """Paths of full length, completed from other nodes of the same domain."""
    paths = [[*place.path, *[""] * levels][:levels] for place in places]
    for level in range(levels - 1):
        for upper in range(level + 1, levels):
            told: dict[str, set[str]] = {}
            for path in paths:
                if path[level] and path[upper]:
                    told.setdefault(path[level], set()).add(path[upper])
            for path in paths:
                if path[level] and not path[upper] and len(told.get(path[level], ())) == 1:
                    path[upper] = next(iter(told[path[level]]))
    return [tuple(path) for path in paths]


_DIGITS: Final = re.compile(r"(\d+)")


@functools.lru_cache(maxsize=1 << 16)
def _natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """node-2 before node-10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name) if part)


_SortKey = tuple[tuple[bool, tuple[tuple[int, str], ...], str], ...]


def _sort_key(place: Place, path: tuple[str, ...]) -> _SortKey:
    """Top level first; an unknown domain sorts by the nearest known one below, so that a known leaf stays together."""
    parts = []
    for level in reversed(range(len(path))):
        name = path[level] or _stand_in_name(path, level)
        parts.append((not path[level], _natural_key(name), name))
    parts += [(not text, _natural_key(text), text) for text in (place.nvlink, place.node)]
    return tuple(parts)


def _stand_in_name(path: tuple[str, ...], level: int) -> str:
    """The name that distinguishes unknown domains: the nearest known domain below; empty: there is none."""
    return next((path[below] for below in reversed(range(level)) if path[below]), "")


def _number_domains(
    paths: Sequence[tuple[str, ...]],
    names: Sequence[str],
    speeds: Mapping[str, Speed],
    domain_speeds: Mapping[tuple[str, str], Speed],
) -> tuple[NDArray[np.int64], tuple[Level, ...]]:
    """Give every domain of every level its number, from the top down, in the order of the nodes."""
    count = len(paths)
    domain_of = np.zeros((len(names), count), np.int64)
    built: list[Level] = []
    above = np.zeros(count, np.int64)
    for number in reversed(range(len(names))):
        starts, last = [], None
        for node, path in enumerate(paths):
            stand_in = path[number] or _stand_in_name(path, number)
            # Without a name and without a known domain below, a node has a domain of its own.
            identity = (int(above[node]), bool(path[number]), stand_in or node)
            if identity != last:
                starts.append(node)
                last = identity
            domain_of[number, node] = len(starts) - 1
        labels = tuple(paths[start][number] for start in starts)
        usual = speeds.get(names[number], Speed())
        each = [_override_speed(domain_speeds.get((names[number], label), usual), usual) for label in labels]
        built.append(
            Level(
                name=names[number],
                names=labels,
                starts=np.array([*starts, count], np.int64),
                parent=above[starts] if starts else np.zeros(0, np.int64),
                known=np.array([bool(label) for label in labels], np.bool_),
                gb_per_s=np.array([np.inf if s.gb_per_s is None else s.gb_per_s for s in each], np.float64),
                oversubscription=np.array([s.oversubscription or 1.0 for s in each], np.float64),
            )
        )
        above = domain_of[number]
    return domain_of, tuple(reversed(built))


def _override_speed(speed: Speed, usual: Speed) -> Speed:
    """The bandwidth of a domain, with that of its level where it declares none."""
    return Speed(speed.gb_per_s or usual.gb_per_s, speed.oversubscription or usual.oversubscription)


def _list_connections(
    levels: Sequence[Level], named: Collection[tuple[str, str, str]]
) -> frozenset[tuple[int, int, int]]:
    numbers = {level.name: i for i, level in enumerate(levels)}
    found = set()
    for level, one, other in named:
        number = numbers.get(level)
        if number is None or one == other:
            continue
        for a, name_a in enumerate(levels[number].names):
            for b, name_b in enumerate(levels[number].names):
                if (name_a, name_b) == (one, other):
                    found |= {(number, a, b), (number, b, a)}
    return frozenset(found)


def nearest_domain(tree: Tree, node: str) -> str:
    """Name of the nearest known domain of a node; empty: its place in the network is not known."""
    place = tree.position.get(node)
    if place is None:
        return ""
    for level, domains in zip(tree.levels, tree.domain_of, strict=True):
        domain = int(domains[place])
        if level.known[domain]:
            return level.names[domain]
    return ""

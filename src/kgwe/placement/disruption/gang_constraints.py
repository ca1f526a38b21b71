"""Constraints that a running gang must keep when members move: its domains and its limits.

A `SameDomain` constraint is a set of members and a level: they are in one domain of it. The whole gang has one for its
required level, each segment one of its own. Members that stay fix the domain of every constraint they are in. The nodes
left for a moving member are those inside all these domains.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.model.network import domains
from kgwe.placement.fleet.hardware_kinds import names_arch, names_model
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang import capacity
from kgwe.placement.gang.request import CLUSTER, Hardware, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Shape
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.gang.levels import LevelTable, LevelTables
    from kgwe.placement.gang.request import GangRequest


def build_flat_tree(snapshot: Snapshot) -> Tree:
    """A network without any levels."""
    return domains.build_tree([domains.Place(node.name) for node in snapshot.nodes], ())


@dataclass(frozen=True, slots=True)
class SameDomain:
    """Members that must be in one domain of a level."""

    members: frozenset[int]
    level: int


class NodeDomains:
    """Node -> domain, level by level."""

    def __init__(self, table: LevelTable) -> None:
        self.names = tuple(level.name for level in table.levels)
        self.domain = np.zeros((len(table.levels), len(table.node)), np.int64)
        self.known = np.ones((len(table.levels), len(table.node)), np.bool_)
        for number, level in enumerate(table.levels):
            ids = np.repeat(np.arange(len(level)), np.diff(level.starts))
            self.domain[number, table.node] = ids
            # A node is near itself; an unnamed domain is not known to be one domain.
            self.known[number, table.node] = level.known[ids]

    def level_distances(self, node: int) -> NDArray[np.int64]:
        """Per node, the lowest level with a known domain that contains both it and `node`."""
        steps = np.full(self.domain.shape[1], len(self.names) - 1)
        for number in reversed(range(len(self.names) - 1)):
            if self.known[number, node]:
                steps[self.domain[number] == self.domain[number, node]] = number
        return steps


class GangConstraints:
    """The domain constraints and limits of one gang."""

    def __init__(self, tables: LevelTables, gang: GangRequest | None, members: int) -> None:
        table = tables.for_levels(gang.named_levels if gang is not None else ())
        self.node_domains = NodeDomains(table)
        self._gang = gang
        self._tree = table.tree
        self._names = [node.name for node in tables.snapshot.nodes]
        self._leaf = np.zeros(len(table.node), np.int64)
        self._leaf[table.node] = table.leaf
        self.same_domain = list(_list_same_domain(table, gang, members)) if gang is not None else []
        self._milli = _milli_by_member(tables.snapshot.shapes, gang, members) if gang is not None else []
        kinds = tables.snapshot.kinds
        self._kind, self._arch = kinds.of_node, kinds.arch_of_node
        self._alike = _members_of_one_kind(gang, members) if gang is not None and len(kinds.all) > 1 else frozenset()
        self._of_one_arch = _members_of_one_arch(gang, members) if gang is not None and len(kinds.archs) > 1 else []

    @property
    def covers_whole_gang_only(self) -> bool:
        """Whether all constraints cover the whole gang, so that moving a member that can stay gains nothing."""
        return (
            not self._alike and not self._of_one_arch and all(rule == self.same_domain[0] for rule in self.same_domain)
        )

    def allowed_nodes(self, member: int, placed: Mapping[int, int]) -> NDArray[np.bool_]:
        """Nodes that keep the member's constraints; `placed`: member -> node."""
        domain = self.node_domains.domain
        allowed = np.ones(domain.shape[1], np.bool_)
        for rule in self.same_domain:
            if member in rule.members:
                for other in rule.members:
                    if other != member and other in placed:
                        allowed &= domain[rule.level] == domain[rule.level, placed[other]]
                        break
        return allowed & self._nodes_within_limits(member, placed)

    def nodes_with_room(
        self, member: int, placed: Mapping[int, int], alike: frozenset[int], room: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Nodes in domains with room for the member and all equal members that must join it there."""
        roomy = np.ones(len(room), np.bool_)
        for rule in self.same_domain:
            if member in rule.members:
                inside = self.node_domains.domain[rule.level]
                sums = np.bincount(inside, weights=room)
                waiting = sum(each not in placed for each in rule.members & alike)
                roomy &= sums[inside] >= waiting
        return roomy

    def rank_leaves(self, placed: Mapping[int, int], waiting: int, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per node, the rank of its leaf if the gang is to span few leaves; the lowest is best.

        Leaves the gang is in come first, then those with room for most waiting members, of these the tightest.
        """
        if self._gang is None or self._gang.strategy is not Strategy.CONSOLIDATED:
            return np.zeros(len(room), np.int64)
        sums = np.bincount(self._leaf, weights=room).astype(np.int64)
        short = waiting - np.minimum(sums, waiting)
        rank = 1 + short * (int(sums.max(initial=0)) + 1) + sums
        rank[self._leaf[list(placed.values())]] = 0
        of_node: NDArray[np.int64] = rank[self._leaf]
        return of_node

    def _nodes_within_limits(self, member: int, placed: Mapping[int, int]) -> NDArray[np.bool_]:
        """Nodes where one more pod keeps the limits of the gang."""
        gang, nodes = self._gang, len(self._leaf)
        allowed = np.ones(nodes, np.bool_)
        if gang is None:
            return allowed
        if member in self._alike:
            mates = [node for other, node in placed.items() if other in self._alike]
            allowed &= self._kind == self._kind[mates[0]] if mates else True
        for together in self._of_one_arch:
            mates = [node for other, node in placed.items() if other in together] if member in together else []
            allowed &= self._arch == self._arch[mates[0]] if mates else True
        if gang.max_pods_per_node:
            full = [node for node, pods in Counter(placed.values()).items() if pods >= gang.max_pods_per_node]
            allowed[full] = False
        if gang.max_nodes_per_leaf:
            used = list(set(placed.values()))
            per_leaf = np.bincount(self._leaf[used], minlength=int(self._leaf.max(initial=0)) + 1)
            fresh = np.ones(nodes, np.bool_)
            fresh[used] = False
            allowed &= ~fresh | (per_leaf[self._leaf] < gang.max_nodes_per_leaf)
        if gang.max_gpus_per_leaf and self._milli[member]:
            held = np.zeros(int(self._leaf.max(initial=0)) + 1, np.int64)
            for other, node in placed.items():
                held[self._leaf[node]] += self._milli[other]
            allowed &= held[self._leaf] + self._milli[member] <= gang.max_gpus_per_leaf * GPU_MILLI
        if gang.min_network_gb_per_s:
            allowed &= self._nodes_with_bandwidth(placed, gang.min_network_gb_per_s)
        return allowed

    def _nodes_with_bandwidth(self, placed: Mapping[int, int], least_gb_per_s: float) -> NDArray[np.bool_]:
        """Nodes with enough bandwidth to all placed members, or NVLink; unknown counts as too little."""
        tree = self._tree
        at = np.array([tree.position.get(name, -1) for name in self._names])
        nvlink = np.where(at >= 0, tree.nvlink_of[at], domains.NO_DOMAIN)
        slowest = np.full(len(at), np.inf)
        for node in set(placed.values()):
            rate = tree.gb_per_s_from(int(at[node]))[at] if at[node] >= 0 else np.zeros(len(at))
            joined = (nvlink == nvlink[node]) & (nvlink != domains.NO_DOMAIN)
            # A node outside the known network is near itself.
            joined[node] = True
            np.minimum(slowest, np.where(joined, np.inf, np.where(at >= 0, rate, 0.0)), out=slowest)
        return slowest >= least_gb_per_s


def _members_of_one_kind(gang: GangRequest, members: int) -> frozenset[int]:
    """Members whose nodes must be of one hardware kind."""
    found: set[int] = set()
    first = 0
    for role in gang.roles if gang.hardware is Hardware.SAME else ():
        count = min(role.replicas, members - first)
        if not names_model(role.request):
            found.update(range(first, first + count))
        first += count
    return frozenset(found)


def _members_of_one_arch(gang: GangRequest, members: int) -> list[frozenset[int]]:
    """Per role, members that must stay on one CPU architecture."""
    found: list[frozenset[int]] = []
    first = 0
    for role in gang.roles if gang.hardware is not Hardware.ANY else ():
        count = min(role.replicas, members - first)
        if not names_arch(role.request.constraints):
            found.append(frozenset(range(first, first + count)))
        first += count
    return found


def _milli_by_member(shapes: Sequence[Shape], gang: GangRequest, members: int) -> list[int]:
    """Milli-GPUs of each member, by rank."""
    found: list[int] = []
    for role in gang.roles:
        found += [capacity.max_pod_milli(role.request, shapes)] * min(role.replicas, members - len(found))
    # Members beyond the request are like the last one.
    return found + found[-1:] * (members - len(found))


def _list_same_domain(table: LevelTable, gang: GangRequest, members: int) -> list[SameDomain]:
    found = []
    if gang.required not in ("", CLUSTER):
        found.append(SameDomain(frozenset(range(members)), table.find_level(gang.required)))
    first = 0
    for role in gang.roles:
        # An elastic gang may have fewer members than its last role asks for at most.
        count = min(role.replicas, members - first)
        for segment in role.segments:
            level = table.find_level(segment.level)
            starts = range(first, first + count, segment.size)
            found += [SameDomain(frozenset(range(at, min(at + segment.size, first + count))), level) for at in starts]
        first += count
    return found

"""What a gang that runs must keep when some of its members get new places: its domains and its limits.

A bond is a set of members and a level: they are in one domain of it. The gang as a whole is bound to its required
level, each segment to its own. Members that stay fix the domain of every bond they are in; the nodes left for a
member that moves are those inside all domains so fixed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.model.network import domains
from kgwe.placement.fleet.hardware_kinds import names_arch, names_model
from kgwe.placement.fleet.node import CARD_MILLI
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


def flat(snapshot: Snapshot) -> Tree:
    """The network when nothing is known of it."""
    return domains.build([domains.Place(node.name) for node in snapshot.nodes], ())


@dataclass(frozen=True, slots=True)
class Bond:
    """Members that are in one domain of a rung."""

    members: frozenset[int]
    rung: int


class Rungs:
    """Node -> domain, rung by rung."""

    def __init__(self, ladder: LevelTable) -> None:
        self.names = tuple(rung.name for rung in ladder.levels)
        self.domain = np.zeros((len(ladder.levels), len(ladder.node)), np.int64)
        self.known = np.ones((len(ladder.levels), len(ladder.node)), np.bool_)
        for number, rung in enumerate(ladder.levels):
            ids = np.repeat(np.arange(len(rung)), np.diff(rung.starts))
            self.domain[number, ladder.node] = ids
            # A node alone is near itself; of a domain without a name nobody knows whether it is one.
            self.known[number, ladder.node] = rung.known[ids]

    def steps_from(self, node: int) -> NDArray[np.int64]:
        """Per node, the lowest rung with a known domain that holds it and `node` too."""
        steps = np.full(self.domain.shape[1], len(self.names) - 1)
        for number in reversed(range(len(self.names) - 1)):
            if self.known[number, node]:
                steps[self.domain[number] == self.domain[number, node]] = number
        return steps


class Bonds:
    """The bonds and limits of one gang."""

    def __init__(self, ladders: LevelTables, gang: GangRequest | None, members: int) -> None:
        ladder = ladders.for_levels(gang.named_levels if gang is not None else ())
        self.rungs = Rungs(ladder)
        self._gang = gang
        self._tree = ladder.tree
        self._names = [node.name for node in ladders.snapshot.nodes]
        self._leaf = np.zeros(len(ladder.node), np.int64)
        self._leaf[ladder.node] = ladder.leaf
        self.bonds = list(_bonds(ladder, gang, members)) if gang is not None else []
        self._milli = _milli(ladders.snapshot.shapes, gang, members) if gang is not None else []
        kinds = ladders.snapshot.kinds
        self._kind, self._arch = kinds.of_node, kinds.arch_of_node
        self._alike = _alike(gang, members) if gang is not None and len(kinds.all) > 1 else frozenset()
        self._of_one_arch = _of_one_arch(gang, members) if gang is not None and len(kinds.archs) > 1 else []

    @property
    def is_simple(self) -> bool:
        """Whether the gang is bound as a whole only, so that nothing is gained by moving a member that could stay."""
        return not self._alike and not self._of_one_arch and all(bond == self.bonds[0] for bond in self.bonds)

    def allowed(self, member: int, placed: Mapping[int, int]) -> NDArray[np.bool_]:
        """Nodes where the member would be with those it is bound to; `placed`: member -> node."""
        domain = self.rungs.domain
        allowed = np.ones(domain.shape[1], np.bool_)
        for bond in self.bonds:
            if member in bond.members:
                for other in bond.members:
                    if other != member and other in placed:
                        allowed &= domain[bond.rung] == domain[bond.rung, placed[other]]
                        break
        return allowed & self._within_limits(member, placed)

    def roomy(
        self, member: int, placed: Mapping[int, int], alike: frozenset[int], room: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Nodes in domains with room for the member and all like it that still wait and must be in the same domain."""
        roomy = np.ones(len(room), np.bool_)
        for bond in self.bonds:
            if member in bond.members:
                inside = self.rungs.domain[bond.rung]
                sums = np.bincount(inside, weights=room)
                waiting = sum(each not in placed for each in bond.members & alike)
                roomy &= sums[inside] >= waiting
        return roomy

    def rank_leaves(self, placed: Mapping[int, int], waiting: int, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per node, how good its leaf is for the fewest leaves, the least first; as `gang_split` fills leaves.

        Leaves the gang is in already, then those with room for most of those that wait, of these the tightest.
        """
        if self._gang is None or self._gang.strategy is not Strategy.CONSOLIDATED:
            return np.zeros(len(room), np.int64)
        sums = np.bincount(self._leaf, weights=room).astype(np.int64)
        short = waiting - np.minimum(sums, waiting)
        rank = 1 + short * (int(sums.max(initial=0)) + 1) + sums
        rank[self._leaf[list(placed.values())]] = 0
        of_node: NDArray[np.int64] = rank[self._leaf]
        return of_node

    def _within_limits(self, member: int, placed: Mapping[int, int]) -> NDArray[np.bool_]:
        """Nodes that the member may go to as one more pod."""
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
            allowed &= held[self._leaf] + self._milli[member] <= gang.max_gpus_per_leaf * CARD_MILLI
        if gang.min_network_gb_per_s:
            allowed &= self._reaches(placed, gang.min_network_gb_per_s)
        return allowed

    def _reaches(self, placed: Mapping[int, int], least_gb_per_s: float) -> NDArray[np.bool_]:
        """Nodes with enough network to everybody placed, or NVLink; unknown is too little."""
        tree = self._tree
        at = np.array([tree.position.get(name, -1) for name in self._names])
        nvlink = np.where(at >= 0, tree.nvlink_of[at], domains.NO_DOMAIN)
        slowest = np.full(len(at), np.inf)
        for node in set(placed.values()):
            rate = tree.gb_per_s_from(int(at[node]))[at] if at[node] >= 0 else np.zeros(len(at))
            joined = (nvlink == nvlink[node]) & (nvlink != domains.NO_DOMAIN)
            # A node without a place in the network is near itself.
            joined[node] = True
            np.minimum(slowest, np.where(joined, np.inf, np.where(at >= 0, rate, 0.0)), out=slowest)
        return slowest >= least_gb_per_s


def _alike(gang: GangRequest, members: int) -> frozenset[int]:
    """Members whose nodes are of one kind."""
    found: set[int] = set()
    first = 0
    for role in gang.roles if gang.hardware is Hardware.SAME else ():
        count = min(role.replicas, members - first)
        if not names_model(role.request):
            found.update(range(first, first + count))
        first += count
    return frozenset(found)


def _of_one_arch(gang: GangRequest, members: int) -> list[frozenset[int]]:
    """Role by role, members that stay on one CPU architecture."""
    found: list[frozenset[int]] = []
    first = 0
    for role in gang.roles if gang.hardware is not Hardware.ANY else ():
        count = min(role.replicas, members - first)
        if not names_arch(role.request.constraints):
            found.append(frozenset(range(first, first + count)))
        first += count
    return found


def _milli(shapes: Sequence[Shape], gang: GangRequest, members: int) -> list[int]:
    """Member -> its GPU, by rank."""
    found: list[int] = []
    for role in gang.roles:
        found += [capacity.max_pod_milli(role.request, shapes)] * min(role.replicas, members - len(found))
    # Members beyond what was asked for are like the last.
    return found + found[-1:] * (members - len(found))


def _bonds(ladder: LevelTable, gang: GangRequest, members: int) -> list[Bond]:
    found = []
    if gang.required not in ("", CLUSTER):
        found.append(Bond(frozenset(range(members)), ladder.find_level(gang.required)))
    first = 0
    for role in gang.roles:
        # An elastic gang may have fewer members than its last role asks for at most.
        count = min(role.replicas, members - first)
        for segment in role.segments:
            rung = ladder.find_level(segment.level)
            starts = range(first, first + count, segment.size)
            found += [Bond(frozenset(range(at, min(at + segment.size, first + count))), rung) for at in starts]
        first += count
    return found

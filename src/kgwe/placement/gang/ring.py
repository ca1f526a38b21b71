"""Predicts the all-reduce bandwidth of a gang: the slowest step of the ring through its ranks, GB/s in one direction.

    rank 0 ─ rank 1 │ rank 2 ─ rank 3 │ rank 0          a node's ranks, and the network between two nodes

- Inside a node, a step has the bandwidth of the ring through the gang's GPUs there, as nccl-tests would measure it.
- Between nodes of one NVLink domain, it has the bandwidth of a GPU's NVLinks.
- Between other nodes, it has the bandwidth of the network (`kgwe.model.network.domains`). Only the network adapters
  near the GPUs in use count: two GPUs of eight do not use all eight adapters.

One unknown step makes the ring unknown. An unknown ring is worse than any known one and meets no requirement.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.gpu import bandwidth
from kgwe.model.network.domains import NO_DOMAIN, UNKNOWN_GB_PER_S
from kgwe.placement.gpuset import gpu_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.topology import Wiring
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.gang.levels import LevelTable


class Step(enum.StrEnum):
    """The kind of the slowest step."""

    NONE = "None"
    """A single GPU: there is no ring."""
    INSIDE_NODE = "InsideNode"
    NVLINK_DOMAIN = "NVLinkDomain"
    NETWORK = "Network"


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring of a gang. Its GB/s are infinite for a single GPU, and UNKNOWN_GB_PER_S if a step is unknown."""

    gb_per_s: float
    step: Step
    nodes: tuple[str, ...] = ()
    """Where the slowest step is: inside one node, or between two."""

    def describe(self) -> str:
        where = " to ".join(self.nodes)
        if self.step is Step.NONE:
            return "not needed (one GPU)"
        what = _STEPS[self.step]
        if self.gb_per_s == UNKNOWN_GB_PER_S:
            return f"unknown ({what} {where})"
        return f"{self.gb_per_s:.1f} GB/s, limited by {what} {where}"


_STEPS: Final = {
    Step.INSIDE_NODE: "the links inside",
    Step.NVLINK_DOMAIN: "NVLink from",
    Step.NETWORK: "the network from",
}

NO_RING: Final = Ring(np.inf, Step.NONE)


class RingPredictor:
    """Predicts rings over one snapshot; results for a shape and a set of GPUs are cached."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._inside: dict[tuple[int, int], float] = {}
        self._fractions: dict[tuple[int, int], float] = {}
        self.nvlink = np.array([nvlink_gb_per_s(shape.wiring) for shape in snapshot.shapes], np.float64)
        """Shape -> GB/s of a GPU over NVLink to other nodes."""

    def predict_ring(self, table: LevelTable, places: Sequence[int], gpu_masks: Mapping[int, int]) -> Ring:
        """The ring through the places in this order and back to the first; `gpu_masks`: place -> GPUs in use there."""
        order = [place for place in places if gpu_masks.get(place)]
        if not order:
            return NO_RING
        shape = self._snapshot.shape[table.node]
        visited = list(dict.fromkeys(order))
        inside = [self.predict_inside_node(int(shape[place]), gpu_masks[place]) for place in visited]
        worst = int(np.argmin(inside))
        found = Ring(inside[worst], Step.INSIDE_NODE, (table.levels[0].names[visited[worst]],))
        if np.isinf(found.gb_per_s):
            found = NO_RING
        here = np.array(order)
        there = np.roll(here, -1)
        moves = here != there
        if not moves.any():
            return found
        here, there = here[moves], there[moves]
        part = {place: self.network_fraction(int(shape[place]), gpu_masks[place]) for place in visited}
        rates, by_nvlink = self.predict_steps(
            table, here, there, np.array([part[p] for p in here.tolist()]), np.array([part[p] for p in there.tolist()])
        )
        slowest = int(np.argmin(rates))
        if rates[slowest] >= found.gb_per_s:
            return found
        names = table.levels[0].names
        step = Step.NVLINK_DOMAIN if by_nvlink[slowest] else Step.NETWORK
        return Ring(float(rates[slowest]), step, (names[here[slowest]], names[there[slowest]]))

    def predict_steps(
        self,
        table: LevelTable,
        here: NDArray[np.intp],
        there: NDArray[np.intp],
        here_part: NDArray[np.float64],
        there_part: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """GB/s of each step between two nodes, and whether it goes over NVLink."""
        tree = table.tree
        a, b = table.tree_place[here], table.tree_place[there]
        known = (a >= 0) & (b >= 0)
        rates = np.where(known, network_gb_per_s(tree, a, b) * np.minimum(here_part, there_part), UNKNOWN_GB_PER_S)
        shape = self._snapshot.shape[table.node]
        nvlink = np.minimum(self.nvlink[shape[here]], self.nvlink[shape[there]])
        joined = known & (tree.nvlink_of[a] == tree.nvlink_of[b]) & (tree.nvlink_of[a] != NO_DOMAIN) & (nvlink > 0)
        return np.where(joined, nvlink, rates), joined

    def bound_steps(self, table: LevelTable) -> NDArray[np.float64]:
        """Per place, an upper bound of the GB/s of any step from there to another node."""
        tree, places = table.tree, table.tree_place
        if any((level.oversubscription < 1).any() for level in tree.levels):
            return np.full(len(places), np.inf)
        rates = np.where(places >= 0, tree.node_gb_per_s[places], UNKNOWN_GB_PER_S)
        if tree.levels:
            rates = np.minimum(rates, tree.levels[0].gb_per_s[tree.domain_of[0, places]])
        joined = (places >= 0) & (tree.nvlink_of[places] != NO_DOMAIN)
        nvlink = np.where(joined, self.nvlink[self._snapshot.shape[table.node]], UNKNOWN_GB_PER_S)
        fastest: NDArray[np.float64] = np.maximum(rates, nvlink)
        return fastest

    def predict_inside_node(self, shape: int, mask: int) -> float:
        """GB/s of the ring through a set of GPUs of one node, one direction."""
        key = (shape, mask)
        if key not in self._inside:
            self._inside[key] = _inside_gb_per_s(self._snapshot.shapes[shape].wiring, mask)
        return self._inside[key]

    def network_fraction(self, shape: int, mask: int) -> float:
        """Fraction of the node's network that the GPUs can use."""
        key = (shape, mask)
        if key not in self._fractions:
            wiring = self._snapshot.shapes[shape].wiring
            count = len(wiring.slots)
            whole = bandwidth.network_gb_per_s(wiring, range(count))
            own = bandwidth.network_gb_per_s(wiring, [gpu for gpu in range(count) if mask >> gpu & 1])
            self._fractions[key] = own / whole if whole > 0 and own > 0 else mask.bit_count() / count
        return self._fractions[key]


def _inside_gb_per_s(wiring: Wiring, mask: int) -> float:
    if gpu_tables.is_wide(wiring):
        return np.inf if mask.bit_count() == 1 else UNKNOWN_GB_PER_S
    return float(gpu_tables.build_table(wiring).bus_gb_per_s(mask.bit_count())[mask])


def nvlink_gb_per_s(wiring: Wiring) -> float:
    """GB/s of a GPU's NVLinks to a switch, one direction, as nccl-tests would measure it; 0 without a switch."""
    if not wiring.switch_links or not wiring.nvlink_version:
        return 0.0
    per_link = bandwidth.NVLINK_BUS_GB_PER_S.get(wiring.nvlink_version, min(bandwidth.NVLINK_BUS_GB_PER_S.values()))
    return per_link * min((wiring.links_up(gpu) for gpu in range(len(wiring.slots))), default=0)


def network_gb_per_s(tree: Tree, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
    """`Tree.gb_per_s` for many pairs of tree places at once."""
    own = np.minimum(tree.node_gb_per_s[a], tree.node_gb_per_s[b])
    rate: NDArray[np.float64] = np.where(own > 0, own, UNKNOWN_GB_PER_S)
    hops = _count_hops(tree, a, b)
    limit = np.full(len(a), np.inf)
    for number, level in enumerate(tree.levels):
        one, other = tree.domain_of[number, a], tree.domain_of[number, b]
        slowest = np.minimum(level.gb_per_s[one], level.gb_per_s[other])
        limit = np.where(hops > 2 * number, np.minimum(limit, slowest), limit)
        left = hops > 2 * number + 1
        rate = np.where(left, rate / np.maximum(level.oversubscription[one], level.oversubscription[other]), rate)
    rate = np.minimum(rate, limit)
    rate[hops >= tree.unknown_hops] = UNKNOWN_GB_PER_S
    rate[a == b] = np.inf
    return rate


def _count_hops(tree: Tree, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    if tree.connected:
        # Trees with declared neighbours are small, so each pair is looked up.
        return np.array([tree.hops(int(one), int(other)) for one, other in zip(a, b, strict=True)], np.int64)
    hops = np.full(len(a), tree.unknown_hops)
    if tree.levels:
        top = tree.levels[-1].known[tree.domain_of[-1]]
        hops[top[a] & top[b]] = 2 * len(tree.levels) + 1
    for number in reversed(range(len(tree.levels))):
        one, other = tree.domain_of[number, a], tree.domain_of[number, b]
        hops[(one == other) & tree.levels[number].known[one]] = 2 * number + 1
    hops[a == b] = 0
    return hops

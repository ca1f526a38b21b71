"""The published baselines of FGD (USENIX ATC'23): Random, DotProd, GpuClustering, GpuPacking, BestFit.

Scores are integers as in the original experiment, because ties affect its results: among equal scores the first node
wins, and the order of nodes is random but fixed per run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.fleet import GPU_MILLI

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

# The largest node of the original experiment, by which its scores are scaled.
_MAX_CPU = 128_000
_MAX_GPU = 8 * GPU_MILLI


class _TightestCard:
    """Chooses whole GPUs by lowest index, and shares on the tightest GPU."""

    def __init__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator) -> None:
        del mix
        self._fleet = fleet
        self._rng = rng

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        if demand.is_share:
            return self._fleet.find_tightest_gpus(node, demand)
        return self._fleet.find_whole_gpus(node, demand.num_gpu)

    def on_place(self, demand: Demand, node: int, cards: tuple[int, ...]) -> None:
        """Keep no state."""


class Random(_TightestCard):
    """Chooses any node and GPU that fit."""

    def scores(self, demand: Demand, nodes: IntArray) -> FloatArray:
        del demand
        return self._rng.random(len(nodes))

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        if not demand.is_share:
            return self._fleet.find_whole_gpus(node, demand.num_gpu)
        return (int(self._rng.choice(np.flatnonzero(self._fleet.gpus[:, node] >= demand.gpu_milli))),)


class DotProd(_TightestCard):
    """Aligns the request with the free capacity: a larger product of both is worse."""

    def scores(self, demand: Demand, nodes: IntArray) -> IntArray:
        fleet = self._fleet
        cpu = fleet.cpu_free[nodes] / _MAX_CPU * (demand.cpu_milli / _MAX_CPU)
        gpu = fleet.gpu_free[nodes] / _MAX_GPU * (demand.total_milli / _MAX_GPU)
        return (100 * (1 - (cpu + gpu) / 2)).astype(np.int64)


class BestFit(_TightestCard):
    """Chooses the node with the least left over. (The original then rescales to 0..100, which keeps the order.)"""

    def scores(self, demand: Demand, nodes: IntArray) -> IntArray:
        fleet = self._fleet
        cpu = 0.5 * (fleet.cpu_free[nodes] - demand.cpu_milli) / _MAX_CPU
        gpu = 0.5 * (fleet.gpu_free[nodes] - demand.total_milli) / _MAX_GPU
        return (100 * (1 - (cpu + gpu))).astype(np.int64)


class GpuPacking(_TightestCard):
    """Prefers used GPUs, then used nodes, then empty nodes."""

    def scores(self, demand: Demand, nodes: IntArray) -> IntArray:
        fleet = self._fleet
        if demand.num_gpu == 0:
            return np.zeros(len(nodes), dtype=np.int64)
        is_fresh = fleet.whole[nodes] == fleet.gpu_count[nodes]
        fresh = np.maximum(33 - fleet.gpu_count[nodes], fleet.gpu_count[nodes])
        opened = np.full(len(nodes), max(50 - demand.num_gpu, 33))
        if demand.num_gpu > 1 or demand.gpu_milli == GPU_MILLI:
            return np.where(is_fresh, fresh, opened)
        cards = fleet.gpus[:, nodes]
        partial = np.where(cards >= demand.gpu_milli, cards, GPU_MILLI).min(axis=0)
        packed = np.maximum(100 - partial * 100 // GPU_MILLI // 10, 50)
        return np.where(is_fresh, fresh, np.where(partial < GPU_MILLI, packed, opened))


class GpuClustering(_TightestCard):
    """Groups equal pods: prefers a node with only pods of the same class, then one with some, then an empty one."""

    def __init__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator) -> None:
        super().__init__(fleet, mix, rng)
        # For each node the classes on it, as bits: bit 0 for shares, bit n for pods with n GPUs.
        self._classes: IntArray = np.zeros(len(fleet), dtype=np.int64)

    def scores(self, demand: Demand, nodes: IntArray) -> IntArray:
        if demand.num_gpu == 0:
            return np.zeros(len(nodes), dtype=np.int64)
        used = 25 * (_MAX_GPU - self._fleet.gpu_free[nodes]) // _MAX_GPU
        mine = _class_bit(demand)
        classes = self._classes[nodes]
        alone = np.where(classes == mine, 75, 0)
        shared = np.where((classes & mine > 0) & (classes != mine), 50, 0)
        empty = np.where(classes == 0, 25, 0)
        return used + alone + shared + empty

    def on_place(self, demand: Demand, node: int, cards: tuple[int, ...]) -> None:
        del cards
        if demand.num_gpu:
            self._classes[node] |= _class_bit(demand)


def _class_bit(demand: Demand) -> int:
    return 1 if demand.is_share else 1 << demand.num_gpu

"""FGD: fragmentation gradient descent (USENIX ATC'23), the published state of the art.

A pod goes where the expected fragment F grows least (or shrinks most). The score is an integer, as published: int(100
* sigmoid((F before - F after) / 1000)), and a share takes the GPU with the best score. Scores are cached per demand
and updated for changed nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.fleet import GPU_MILLI
from kgwe.sim.packing.fragmentation import Fragmentation

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix


class Fgd:
    def __init__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator) -> None:
        del rng
        self._fleet = fleet
        self._fragmentation = Fragmentation(fleet, mix)
        self._fragment = self._fragmentation.of_nodes(np.arange(len(fleet)))
        # The number of changes of each node; for each demand the score of each node and its version.
        self._version: IntArray = np.zeros(len(fleet), dtype=np.int64)
        self._scores: dict[Demand, tuple[IntArray, IntArray]] = {}

    def scores(self, demand: Demand, nodes: IntArray) -> IntArray:
        if demand not in self._scores:
            never = np.full(len(self._fleet), -1)
            self._scores[demand] = (never, never.copy())
        scores, seen = self._scores[demand]
        stale = nodes[seen[nodes] != self._version[nodes]]
        if len(stale):
            scores[stale] = self._score(demand, stale)
            seen[stale] = self._version[stale]
        return scores[nodes]

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        if not demand.is_share:
            return self._fleet.find_whole_gpus(node, demand.num_gpu)
        nodes, cards = self._openings(demand, np.array([node]))
        return (int(cards[np.argmax(self._score_shares(demand, nodes, cards))]),)

    def on_place(self, demand: Demand, node: int, cards: tuple[int, ...]) -> None:
        del demand, cards
        self._fragment[node] = self._fragmentation.of_nodes(np.array([node]))[0]
        self._version[node] += 1

    def _score(self, demand: Demand, nodes: IntArray) -> IntArray:
        if demand.is_share:
            where, cards = self._openings(demand, nodes)
            best = np.zeros(len(self._fleet), dtype=np.int64)
            np.maximum.at(best, where, self._score_shares(demand, where, cards))
            return best[nodes]
        after = self._fleet.gpus[:, nodes].copy()
        if demand.num_gpu:
            free = after == GPU_MILLI
            after[free & (np.cumsum(free, axis=0) <= demand.num_gpu)] = 0
        return self._integer(demand, nodes, after)

    def _openings(self, demand: Demand, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """Return pairs of node and GPU where the share fits."""
        cards, columns = np.nonzero(self._fleet.gpus[:, nodes] >= demand.gpu_milli)
        return nodes[columns], cards

    def _score_shares(self, demand: Demand, nodes: IntArray, cards: IntArray) -> IntArray:
        after = self._fleet.gpus[:, nodes].copy()
        after[cards, np.arange(len(cards))] -= demand.gpu_milli
        return self._integer(demand, nodes, after)

    def _integer(self, demand: Demand, nodes: IntArray, after: IntArray) -> IntArray:
        fleet = self._fleet
        later = self._fragmentation.of_states(fleet.cpu_free[nodes] - demand.cpu_milli, after, fleet.model[nodes])
        gained: FloatArray = (self._fragment[nodes] - later) / GPU_MILLI
        return (100 / (1 + np.exp(-gained))).astype(np.int64)

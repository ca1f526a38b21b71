"""The interface of packing policies: a score per node, and the GPUs on the chosen node.

The replay gets the scores of the nodes where a pod fits, takes the node with the largest (the first on ties) and lets
the policy choose its GPUs. A policy never refuses: every pod that fits is placed. It knows the present state and the
mix of demands, but not the order of arrivals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray, Pod


class Policy(Protocol):
    def scores(self, demand: Demand, nodes: IntArray) -> FloatArray | IntArray:
        """A score for each of these nodes, on all of which the demand fits; larger is better."""

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        """GPUs for the demand on a node where it fits."""

    def on_place(self, demand: Demand, node: int, gpus: tuple[int, ...]) -> None:
        """Called after every placement, when the fleet has already changed."""


class PolicyFactory(Protocol):
    def __call__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator) -> Policy: ...


class Mix:
    """The demands of a fleet and their frequencies: what a policy may know of the future.

    `counts` are whole numbers, so that sums over the mix stay exact; `weights` are the same as shares of one.
    """

    def __init__(self, demands: tuple[Demand, ...], counts: tuple[int, ...]) -> None:
        self.demands = demands
        self.counts: IntArray = np.array(counts, dtype=np.int64)
        self.total = int(self.counts.sum())
        self.weights: FloatArray = self.counts / self.total


def choose_node(policy: Policy, fleet: Fleet, pod: Pod) -> int | None:
    """The node with the best score among those that fit; None when nothing fits."""
    nodes = np.flatnonzero(fleet.fits(pod))
    if not len(nodes):
        return None
    return int(nodes[np.argmax(policy.scores(pod.demand, nodes))])

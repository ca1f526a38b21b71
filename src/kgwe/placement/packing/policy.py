"""What a packing policy is: a score per node, and the GPUs on the node that won.

The replay asks for the scores of the nodes where a pod fits, takes the largest (first node on ties) and asks for GPUs
there. A policy never refuses: whatever fits is placed. It sees the present state and the mix of demands, never
what comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray, Pod


class Policy(Protocol):
    def scores(self, demand: Demand, nodes: IntArray) -> FloatArray | IntArray:
        """One score for each of these nodes, on all of which the demand fits; larger is better."""

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        """GPUs for the demand on a node where it fits."""

    def placed(self, demand: Demand, node: int, gpus: tuple[int, ...]) -> None:
        """Told after every placement, when the fleet has already changed."""


class PolicyFactory(Protocol):
    def __call__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator) -> Policy: ...


class Mix:
    """The demands a fleet sees and how often: what a policy may know of the future.

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

"""What a packing policy is: a score per node, and the cards on the node that won.

The replay asks for scores, drops the nodes that do not fit, takes the largest score (first node on ties) and asks for
cards there. A policy never refuses: whatever fits is placed. It sees the present state and the mix of demands, never
what comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import BoolArray, Demand, Fleet, FloatArray, IntArray, Pod


class Policy(Protocol):
    def scores(self, demand: Demand, fits: BoolArray) -> FloatArray | IntArray:
        """Larger is better; only the entries where `fits` holds are read."""

    def choose_cards(self, demand: Demand, node: int) -> tuple[int, ...]:
        """Cards for the demand on a node where it fits."""

    def placed(self, demand: Demand, node: int, cards: tuple[int, ...]) -> None:
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
    fits = fleet.fits(pod)
    if not fits.any():
        return None
    scores = policy.scores(pod.demand, fits)
    return int(np.argmax(np.where(fits, scores, -np.inf)))

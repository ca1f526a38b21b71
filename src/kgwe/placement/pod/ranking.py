"""How strategies rank nodes: one number per node that fits; the largest wins, ties go to the first node.

    score          the score; requests for one GPU first go where they break no whole island
    pack           the fullest node, by share of its GPUs in use
    spread         the emptiest node, by share
    leastLoaded    the node with the most free GPUs
    costOptimized  the lowest price per GPU and hour; nodes without a known price come last, of these spot nodes and
                   those declared cheap first
    random         any node that fits, with equal probability
    mixfit         the node where the pod costs later pods least (`mixfit_strategy`, which ranks by itself);
                   here, for MIG slices, the score

All but random and mixfit use the score where their own measure is equal. With every strategy, spot nodes come after all
others for requests that avoid them (`SpotPolicy`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.node import SpotPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.pod.score import Floats, ScoreParts, Scorer

# One step of a strategy's own measure outweighs every score (0..100).
_STEP: Final = 1000.0
# More than any rank, which stays below 10^9; a power of two this large still tells ranks of spot nodes apart to 10^-5.
_BEHIND: Final = 2.0**36
# Shares are compared to a thousandth of a percent.
_SHARE_STEPS: Final = 1000.0


class Strategy(enum.StrEnum):
    SCORE = "score"
    PACK = "pack"
    SPREAD = "spread"
    LEAST_LOADED = "leastLoaded"
    RANDOM = "random"
    COST_OPTIMIZED = "costOptimized"
    MIXFIT = "mixfit"


#: what the names of gang strategies mean for a single pod
ALIASES: Final[Mapping[str, Strategy]] = {
    "balanced": Strategy.SCORE,
    "consolidated": Strategy.PACK,
    "distributed": Strategy.SPREAD,
}


def parse_strategy(name: str) -> Strategy:
    """The strategy of this name or alias."""
    if name in ALIASES:
        return ALIASES[name]
    try:
        return Strategy(name)
    except ValueError:
        known = ", ".join([*Strategy, *ALIASES])
        raise errors.Permanent(f"no strategy {name!r}; the strategies are {known}") from None


class Ranking:
    """Ranks over the nodes of a scorer."""

    def __init__(self, nodes: Sequence[Node], scorer: Scorer) -> None:
        self._scorer = scorer
        self._cheapness = _rank_prices(nodes)
        self._spot = np.array([node.spot for node in nodes], np.bool_)
        self._has_spot = bool(self._spot.any())

    def rank(
        self, strategy: Strategy, request: Request, nodes: NDArray[np.intp], parts: ScoreParts, score: Floats
    ) -> Floats:
        """The rank of each of these nodes, assuming that the pod fits there."""
        return self.defer_spot(request, nodes, self._rank_by_strategy(strategy, request, nodes, parts, score))

    def defer_spot(self, request: Request, nodes: NDArray[np.intp], rank: Floats) -> Floats:
        """The ranks of these nodes, spot nodes after all others where the request avoids them."""
        if self._has_spot and request.spot is SpotPolicy.AVOID:
            return rank - np.where(self._spot[nodes], _BEHIND, 0.0)
        return rank

    def _rank_by_strategy(
        self, strategy: Strategy, request: Request, nodes: NDArray[np.intp], parts: ScoreParts, score: Floats
    ) -> Floats:
        """The rank by the strategy alone."""
        match strategy:
            case Strategy.SCORE:
                single = request.gpus.count == 1 or request.gpus.milli > 0
                return score + np.where(parts.broken == 0, _STEP, 0.0) if single else score
            case Strategy.MIXFIT:
                return score
            case Strategy.PACK:
                return np.rint(parts.resource * _SHARE_STEPS) * _STEP + score
            case Strategy.SPREAD:
                return score - np.rint(parts.resource * _SHARE_STEPS) * _STEP
            case Strategy.LEAST_LOADED:
                return np.rint(self._scorer.free_gpu_milli()[nodes]) * _STEP + score
            case Strategy.COST_OPTIMIZED:
                return self._cheapness[nodes] * _STEP + score
            case Strategy.RANDOM:
                return np.zeros(len(nodes))


def _rank_prices(nodes: Sequence[Node]) -> Floats:
    """Rank by price per GPU, higher is cheaper; unknown prices come after all known ones."""
    prices = np.array(
        [
            np.inf
            if node.price_micro_per_hour is None
            else node.price_micro_per_hour / max((node.shape.all_gpus & node.healthy).bit_count(), 1)
            for node in nodes
        ],
        np.float64,
    )
    is_cheap = np.array([node.spot or node.cheap for node in nodes], np.float64)
    unique, place = np.unique(prices, return_inverse=True)
    rank = (len(unique) - place).astype(np.float64)
    return np.where(np.isinf(prices), is_cheap - 1, rank)

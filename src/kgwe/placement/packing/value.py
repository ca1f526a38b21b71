"""The worth of a free share of a GPU, given the pods still to come.

A GPU with 530 milli free is worth more than its size if many 470s are expected, and one with 190 is worth almost
nothing if only a few 160s will ever come. This is the cutting-stock problem: cover the expected shares with the free
GPUs at least waste. Its dual has one number per share size, the *price* mu(s) of a pod of that size. A gap of r milli
is then worth the best sequence of pods that could fill it,

    worth(r) = max over sequences with sum(s) <= r of  sum(s - mu(s)),

and placing s into r loses worth(r) - worth(r - s). Prices are right when the imagined sequences use each size as often
as it will come. Each update compares the two and adjusts the prices: a size that is used too often becomes dearer.

Two deliberate differences. The maximum is a soft one (temperature * log of the sum of exponentials over all sequences,
computed for all r at once by the renewal equation): of two gaps with the same best filling, the one that can be filled
in more ways is worth more, which matters when arrivals are random. And prices follow the fleet by one step per update
and are not solved again each time, because the fleet changes slowly.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.fleet import GPU_MILLI

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

#: grid of free shares, in milli; demands are rounded up to it, free shares down
GRID = 10
#: levels of a GPU: 0 .. LEVELS
LEVELS = GPU_MILLI // GRID

# Milli. Results hardly move between 5 and 14; at 30, worth no longer tells 30 milli of waste from none.
_TEMPERATURE = 7.0
# Part of the log-ratio of imagined to expected use that one update corrects.
_STEP = 0.5
# Rounds until the prices of an empty fleet converge.
_FIRST_ROUNDS = 200
# Rounds after the mix was counted again.
_LATER_ROUNDS = 20
# Pods added to both sides of the ratio, so that the prices of rare sizes are stable.
_PRIOR = 0.02


def to_level(milli: int) -> int:
    """The grid level of a demand, rounded up."""
    return -(-milli // GRID)


class ShareWorth:
    """`worth[r]` for every level r of free share, kept up to date by `update`."""

    def __init__(self, mix: Mix, temperature: float = _TEMPERATURE, before: ShareWorth | None = None) -> None:
        """`before`: the worth under an earlier mix; its prices are the start."""
        gpus: Counter[int] = Counter()
        for demand, count in zip(mix.demands, mix.counts.tolist(), strict=True):
            if demand.num_gpu:
                gpus[to_level(demand.gpu_milli)] += count * demand.num_gpu
        self._sizes: IntArray = np.array(sorted(gpus), dtype=np.int64)
        asked: FloatArray = np.array([gpus[size] for size in self._sizes.tolist()], dtype=np.float64)
        # GPUs' worth of demand of each size per milli of load.
        load = float((asked * self._sizes).sum()) * GRID
        self._per_milli: FloatArray = np.divide(asked, max(load, 1.0))
        self._rent: FloatArray = np.zeros(len(self._sizes))
        self._rounds = _FIRST_ROUNDS
        if before is not None:
            known = dict(zip(before._sizes.tolist(), before._rent.tolist(), strict=True))  # noqa: SLF001 -- of its class
            self._rent = np.array([known.get(size, 0.0) for size in self._sizes.tolist()])
            self._rounds = _LATER_ROUNDS
        self._temperature = temperature
        self.worth: FloatArray = np.arange(0, GPU_MILLI + 1, GRID, dtype=np.float64)

    def update(self, free_levels: IntArray, coming_milli: float) -> None:
        """Adjust the prices to the fleet (its GPUs by level of free share) and the expected load."""
        holes = np.bincount(free_levels.ravel(), minlength=LEVELS + 1).astype(np.float64)
        holes[0] = 0
        expected = self._per_milli * coming_milli
        for _ in range(self._rounds):
            self._step(holes, expected)
        self._rounds = 1

    def losses(self, size: int) -> FloatArray:
        """Worth lost by placing `size` levels on a GPU, by its free level; infinite where they do not fit."""
        losses = np.full(LEVELS + 1, np.inf)
        losses[size:] = self.worth[size:] - self.worth[: LEVELS + 1 - size]
        return losses

    def _step(self, holes: FloatArray, expected: FloatArray) -> None:
        # All weights carry the factor exp(-milli / temperature), so that nothing overflows: a sequence that fills a
        # gap completely at no price has weight 1.
        temperature = self._temperature
        weights = np.exp(-self._rent / temperature)
        item = np.zeros(LEVELS + 1)
        item[self._sizes] = weights
        exact = np.zeros(LEVELS + 1)  # all sequences that sum to exactly n
        exact[0] = 1
        for n in range(1, LEVELS + 1):
            exact[n] = item[1 : n + 1] @ exact[n - 1 :: -1]
        waste = np.exp(-np.arange(LEVELS + 1) * (GRID / temperature))
        within = np.convolve(exact, waste)[: LEVELS + 1]  # all sequences that sum to at most r
        self.worth = np.arange(LEVELS + 1) * GRID + temperature * np.log(within)
        # How often the imagined sequences, one per hole, use each size: the derivative of sum(worth) by -rent.
        visits = np.convolve((holes / within)[::-1], exact)[: LEVELS + 1]
        used = weights * np.convolve(visits, within)[: LEVELS + 1][::-1][self._sizes]
        pressure = np.log((used + _PRIOR) / (expected + _PRIOR))
        dearest = self._sizes * GRID + 3 * temperature
        self._rent = np.clip(self._rent + _STEP * temperature * pressure, 0, dearest)

"""How full a fleet can get with a mix of shares, CPU and models aside: the cutting-stock limit.

The fewest cards that hold a list of shares, each card cut by some pattern, is a linear program with a column per
pattern. Patterns are found as they are needed (Gilmore and Gomory): the prices of the present basis make a knapsack
problem, whose best filling either improves the basis or proves it optimal. The list's load over that many cards is
the allocation at which the fleet is full, if every pod so far was accepted and nobody could have packed better.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.packing.fleet import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.fleet import FloatArray, IntArray

_TOLERANCE = 1e-9
# Pivots grow steeply with the sizes: 64 take about a second, 1,000 would take hours.
_MOST_SIZES = 64
# Far above what ~30 sizes need (about 100); a bound on a loop that could otherwise cycle.
_MOST_PIVOTS = 5000


def fullest_allocation(cards_by_milli: Mapping[int, int]) -> float:
    """The limit, in percent, for that many cards asked at each size (a pod with n cards asks for n at 1000)."""
    load = sum(milli * count for milli, count in cards_by_milli.items())
    if not load:
        return 100.0
    return min(100.0, 100 * load / (GPU_MILLI * fewest_cards(_few_sizes(cards_by_milli))))


def _few_sizes(cards_by_milli: Mapping[int, int]) -> Mapping[int, int]:
    """Sizes rounded down until they are few: no more cards are needed than for the true ones, so a limit it stays."""
    step, rounded = 1, cards_by_milli
    while len(rounded) > _MOST_SIZES:
        step *= 2
        rounded = Counter[int]()
        for milli, count in cards_by_milli.items():
            rounded[milli // step * step if milli < GPU_MILLI else milli] += count
    return rounded


def fewest_cards(cards_by_milli: Mapping[int, int]) -> float:
    """The optimum of the linear program."""
    sizes = [milli for milli, count in sorted(cards_by_milli.items()) if milli and count]
    asked: FloatArray = np.array([cards_by_milli[milli] for milli in sizes], dtype=np.float64)
    basis: FloatArray = np.diag([float(GPU_MILLI // milli) for milli in sizes])
    cost: FloatArray = np.ones(len(sizes))
    for _ in range(_MOST_PIVOTS):
        inverse = np.linalg.inv(basis)
        prices, amounts = cost @ inverse, inverse @ asked
        column, column_cost = _entering(sizes, prices)
        if column_cost - prices @ column >= -_TOLERANCE:
            return float(cost @ amounts)
        direction = inverse @ column
        ratios = np.where(direction > _TOLERANCE, np.maximum(amounts, 0) / np.maximum(direction, _TOLERANCE), np.inf)
        leaving = int(np.argmin(ratios))
        basis[:, leaving], cost[leaving] = column, column_cost
    raise errors.InvariantBroken(f"cutting stock of {len(sizes)} sizes did not settle")


def _entering(sizes: list[int], prices: FloatArray) -> tuple[FloatArray, float]:
    """The most attractive column and its cost: the best pattern, or, where a price is negative, room left unused."""
    cheapest = int(np.argmin(prices))
    if prices[cheapest] < -_TOLERANCE:
        surplus = np.zeros(len(sizes))
        surplus[cheapest] = -1
        return surplus, 0.0
    return _best_pattern(sizes, prices).astype(np.float64), 1.0


def _best_pattern(sizes: list[int], prices: FloatArray) -> IntArray:
    """How many of each size to cut from one card for the largest sum of prices."""
    step = int(np.gcd.reduce([*sizes, GPU_MILLI]))
    lengths = [milli // step for milli in sizes]
    best: list[float] = [0.0] * (GPU_MILLI // step + 1)
    last: list[int | None] = [None] * len(best)
    for room in range(1, len(best)):
        best[room], last[room] = best[room - 1], None
        for i, length in enumerate(lengths):
            if length <= room and best[room - length] + prices[i] > best[room] + _TOLERANCE:
                best[room], last[room] = best[room - length] + float(prices[i]), i
    pattern: IntArray = np.zeros(len(sizes), dtype=np.int64)
    room = len(best) - 1
    while room > 0:
        chosen = last[room]
        room -= 1 if chosen is None else lengths[chosen]
        if chosen is not None:
            pattern[chosen] += 1
    return pattern

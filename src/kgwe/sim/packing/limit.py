"""The maximum allocation of a fleet with a mix of shares, ignoring CPU and models: the cutting-stock limit.

The fewest GPUs that hold a list of shares, each GPU filled by some pattern, is a linear program with a column per
pattern. Patterns are generated on demand (Gilmore and Gomory): the prices of the current basis define a knapsack
problem, whose solution either improves the basis or proves it optimal. The load of the list divided by that number of
GPUs is the maximum allocation, if each pod so far was accepted.
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
# Pivots grow steeply with the number of sizes: 64 take about a second, 1,000 would take hours.
_MOST_SIZES = 64
# Far above the need of about 30 sizes (about 100); bounds a loop that could otherwise cycle.
_MOST_PIVOTS = 5000


def fullest_allocation(cards_by_milli: Mapping[int, int]) -> float:
    """Return the limit in percent, from the number of GPUs requested at each size (a pod with n GPUs counts n at
    1000).
    """
    load = sum(milli * count for milli, count in cards_by_milli.items())
    if not load:
        return 100.0
    return min(100.0, 100 * load / (GPU_MILLI * fewest_cards(_reduce_sizes(cards_by_milli))))


def _reduce_sizes(cards_by_milli: Mapping[int, int]) -> Mapping[int, int]:
    """Round sizes down until there are few: no more GPUs are needed than for the true ones, so it stays a limit."""
    step, rounded = 1, cards_by_milli
    while len(rounded) > _MOST_SIZES:
        step *= 2
        rounded = Counter[int]()
        for milli, count in cards_by_milli.items():
            rounded[milli // step * step if milli < GPU_MILLI else milli] += count
    return rounded


def fewest_cards(cards_by_milli: Mapping[int, int]) -> float:
    """Return the optimum of the linear program."""
    sizes = [milli for milli, count in sorted(cards_by_milli.items()) if milli and count]
    asked: FloatArray = np.array([cards_by_milli[milli] for milli in sizes], dtype=np.float64)
    basis: FloatArray = np.diag([float(GPU_MILLI // milli) for milli in sizes])
    cost: FloatArray = np.ones(len(sizes))
    for _ in range(_MOST_PIVOTS):
        inverse = np.linalg.inv(basis)
        prices, amounts = cost @ inverse, inverse @ asked
        column, column_cost = _find_entering_column(sizes, prices)
        if column_cost - prices @ column >= -_TOLERANCE:
            return float(cost @ amounts)
        direction = inverse @ column
        ratios = np.where(direction > _TOLERANCE, np.maximum(amounts, 0) / np.maximum(direction, _TOLERANCE), np.inf)
        leaving = int(np.argmin(ratios))
        basis[:, leaving], cost[leaving] = column, column_cost
    raise errors.InvariantBroken(f"cutting stock of {len(sizes)} sizes did not converge")


def _find_entering_column(sizes: list[int], prices: FloatArray) -> tuple[FloatArray, float]:
    """Return the most attractive column and its cost: the best pattern, or unused capacity for a negative price."""
    cheapest = int(np.argmin(prices))
    if prices[cheapest] < -_TOLERANCE:
        surplus = np.zeros(len(sizes))
        surplus[cheapest] = -1
        return surplus, 0.0
    return _best_pattern(sizes, prices).astype(np.float64), 1.0


def _best_pattern(sizes: list[int], prices: FloatArray) -> IntArray:
    """Return how many of each size to put on one GPU for the largest sum of prices."""
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

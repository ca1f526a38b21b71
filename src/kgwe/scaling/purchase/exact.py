"""The cheapest nodes of all for few pods: every filling of every pool, and an integer programme over them.

Needs HiGHS (extra `autoscaler`). Larger instances, and machines without it, are left to `cover`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kgwe.scaling.purchase.cover import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.scaling.purchase.filling import Counts, NodeFiller


@dataclass(frozen=True, slots=True)
class HighsCover:
    """Exact up to so many fillings of one pool, and so many of all pools."""

    most_per_pool: int = 2_000
    most: int = 6_000

    def cover(self, filler: NodeFiller, wanted: Counts, limits: Sequence[int]) -> list[Batch] | None:
        """Return the cheapest nodes; None where there are too many fillings, or too few nodes for all pods."""
        highspy = load_highs()
        if highspy is None:
            return None
        columns: list[tuple[int, Counts]] = []
        for pool in range(len(limits)):
            ranges = [range(min(have, int(most)) + 1) for have, most in zip(wanted, filler.alone[pool], strict=True)]
            if limits[pool] and np.prod([float(len(each)) for each in ranges]) > self.most_per_pool:
                return None
            columns += [(pool, each) for each in _list_fillings(filler, pool, ranges) if limits[pool]]
            if len(columns) > self.most:
                return None
        return _solve(highspy, filler, columns, wanted, limits)


def load_highs() -> Any:
    """Return the solver; None where it is not installed."""
    try:
        import highspy  # noqa: PLC0415 -- an extra
    except (ImportError, OSError):
        return None
    return highspy


def _list_fillings(filler: NodeFiller, pool: int, ranges: Sequence[range]) -> list[Counts]:
    """Return all fillings to which no pod can be added."""
    fitting = [each for each in itertools.product(*ranges) if any(each) and filler.fill(pool, each)[0] == each]
    known = set(fitting)
    return [
        each for each in fitting if not any((*each[:n], each[n] + 1, *each[n + 1 :]) in known for n in range(len(each)))
    ]


def _solve(
    highspy: Any, filler: NodeFiller, columns: Sequence[tuple[int, Counts]], wanted: Counts, limits: Sequence[int]
) -> list[Batch] | None:
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)  # noqa: FBT003 -- the solver's own interface
    model.setOptionValue("threads", 1)
    model.setOptionValue("mip_rel_gap", 0.0)
    bought = [
        model.addVariable(
            lb=0,
            ub=min(limits[pool], sum(wanted)),
            obj=float(filler.prices[pool]) / 1e6,
            type=highspy.HighsVarType.kInteger,
        )
        for pool, _ in columns
    ]
    for number, have in enumerate(wanted):
        if have:
            terms = [counts[number] * bought[n] for n, (_, counts) in enumerate(columns) if counts[number]]
            if not terms:
                return None
            model.addConstr(sum(terms[1:], terms[0]) >= have)
    for pool, limit in enumerate(limits):
        mine = [bought[n] for n, (each, _) in enumerate(columns) if each == pool]
        if mine and limit < sum(wanted):
            model.addConstr(sum(mine[1:], 1 * mine[0]) <= limit)
    model.minimize()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    values = model.getSolution().col_value
    return _take_only_wanted(columns, [round(value) for value in values], wanted)


def _take_only_wanted(columns: Sequence[tuple[int, Counts]], numbers: Sequence[int], wanted: Counts) -> list[Batch]:
    """Return the nodes without the room that no pod needs."""
    left, batches = list(wanted), []
    for (pool, counts), number in zip(columns, numbers, strict=True):
        for _ in range(number):
            taken = tuple(min(have, each) for have, each in zip(left, counts, strict=True))
            if any(taken):
                batches.append(Batch(pool, 1, taken))
                left = [have - each for have, each in zip(left, taken, strict=True)]
    return batches

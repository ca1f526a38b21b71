"""Nodes for single pods, by class: pods with equal requests are counted, not placed one by one.

Every class has a fair price: the least that one of its pods costs on a full node. A node is worth the fair prices of
the pods on it, as long as such pods wait. The node with the best worth for its price is bought as often as enough pods
wait to fill it in the same way; then the rest is looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.scaling.purchase.filling import Counts, NodeFiller

#: Pools that are tried per class: the best ones for this class alone.
_TRIED: Final = 6


@dataclass(frozen=True, slots=True)
class Batch:
    """Equal nodes: a pool, how many of them, and the pods of each class on one."""

    pool: int
    nodes: int
    counts: Counts


class ExactCover(Protocol):
    """Finds the cheapest nodes of all; None where the instance is too large for it."""

    def cover(self, filler: NodeFiller, wanted: Counts, limits: Sequence[int]) -> list[Batch] | None: ...


def cover_pods(filler: NodeFiller, wanted: Counts, limits: Sequence[int]) -> list[Batch]:
    """Return nodes for as many of the wanted pods as the limits of the pools allow."""
    left, room = list(wanted), list(limits)
    fair = _price_fairly(filler)
    batches: list[Batch] = []
    while any(left):
        found = _find_best(filler, left, room, fair)
        if found is None:
            break
        pool, counts = found
        nodes = min(have // each for have, each in zip(left, counts, strict=True) if each)
        nodes = min(nodes, room[pool])
        batches.append(Batch(pool, nodes, counts))
        room[pool] -= nodes
        left = [have - nodes * each for have, each in zip(left, counts, strict=True)]
    return _exchange(filler, batches, limits)


def _price_fairly(filler: NodeFiller) -> list[float]:
    """Return the least price of one pod of each class. A node that costs nothing is worth a little, to fill it well."""
    prices = np.maximum(filler.prices, 1.0)
    with np.errstate(divide="ignore"):
        each = np.where(filler.alone > 0, prices[:, None] / np.maximum(filler.alone, 1), np.inf)
    return [float(value) for value in each.min(axis=0)] if len(prices) else [float("inf")] * filler.alone.shape[1]


def _find_best(filler: NodeFiller, left: list[int], room: list[int], fair: list[float]) -> tuple[int, Counts] | None:
    """Return the pool and the filling with the most worth for the price."""
    has_room = np.array(room) > 0
    tried: set[int] = set()
    for number, have in enumerate(left):
        if have:
            held = np.minimum(filler.alone[:, number], have)
            usable = np.flatnonzero((held > 0) & has_room)
            ratio = filler.prices[usable] / held[usable]
            tried.update(usable[np.argsort(ratio, kind="stable")[:_TRIED]].tolist())
            # The cheapest node of all matters for the last pods.
            if len(usable):
                tried.add(int(usable[np.argmin(filler.prices[usable])]))
    best: tuple[float, int, int, Counts] | None = None
    for pool in sorted(tried):
        counts, _ = filler.fill(pool, tuple(left))
        worth = sum(price * count for price, count in zip(fair, counts, strict=True) if count)
        if worth > 0:
            score = (max(float(filler.prices[pool]), 1.0) / worth, -sum(counts), pool, counts)
            best = score if best is None or score < best else best
    return None if best is None else (best[2], best[3])


def _exchange(filler: NodeFiller, batches: list[Batch], limits: Sequence[int]) -> list[Batch]:
    """Replace nodes by a cheaper one that holds the same pods; then two nodes by one."""
    used = [0] * len(limits)
    for batch in batches:
        used[batch.pool] += batch.nodes
    result = [_cheapen(filler, batch, limits, used) for batch in batches]
    return _merge_last(filler, result, limits, used)


def _cheapen(filler: NodeFiller, batch: Batch, limits: Sequence[int], used: list[int]) -> Batch:
    holds = np.all(filler.alone >= np.array(batch.counts), axis=1) & (filler.prices < filler.prices[batch.pool])
    for pool in np.flatnonzero(holds)[np.argsort(filler.prices[holds], kind="stable")].tolist():
        if limits[pool] - used[pool] >= batch.nodes and filler.fill(pool, batch.counts)[0] == batch.counts:
            used[pool] += batch.nodes
            used[batch.pool] -= batch.nodes
            return Batch(pool, batch.nodes, batch.counts)
    return batch


def _merge_last(filler: NodeFiller, batches: list[Batch], limits: Sequence[int], used: list[int]) -> list[Batch]:
    """Replace pairs of single nodes by one that is cheaper than both. Only the last ones are not full."""
    singles = [each for each in batches if each.nodes == 1][-12:]
    others = batches.copy()
    for each in singles:
        others.remove(each)
    changed = True
    while changed:
        changed = False
        for first in range(len(singles)):
            for second in range(first + 1, len(singles)):
                merged = _merge(filler, singles[first], singles[second], limits, used)
                if merged is not None:
                    singles = [each for n, each in enumerate(singles) if n not in {first, second}] + [merged]
                    changed = True
                    break
            if changed:
                break
    return others + singles


def _merge(filler: NodeFiller, one: Batch, other: Batch, limits: Sequence[int], used: list[int]) -> Batch | None:
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    both = filler.prices[one.pool] + filler.prices[other.pool]
    holds = np.all(filler.alone >= np.array(counts), axis=1) & (filler.prices < both)
    for pool in np.flatnonzero(holds)[np.argsort(filler.prices[holds], kind="stable")].tolist():
        if limits[pool] > used[pool] and filler.fill(pool, counts)[0] == counts:
            used[one.pool] -= 1
            used[other.pool] -= 1
            used[pool] += 1
            return Batch(pool, 1, counts)
    return None

"""Nodes for single pods, by class: pods with equal requests are counted, not placed one by one.

Every class has a fair price: the least that one of its pods costs on a full node. A node is worth the fair prices of
the pods on it, as long as such pods wait. The node with the best worth for its price is bought as often as enough pods
wait to fill it in the same way; then the rest is looked at again. For the last pods choices are followed to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.scaling.purchase.filling import Counts, NodeFiller

    #: price over worth, pool, pods of each class on one node
    Offer = tuple[float, int, Counts]

#: Pools that are tried per class: the best ones for this class alone.
_TRIED: Final = 6
#: So few pods are covered with a look ahead.
_LAST_PODS: Final = 16
_FEWER: Final = 8
_FEW_CLASSES: Final = 6
_FOLLOWED: Final = 40


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
        offers = _list_offers(filler, left, room, fair)
        if not offers:
            break
        offer = offers[0]
        if sum(left) <= _LAST_PODS:
            few = sum(have > 0 for have in left) <= _FEW_CLASSES
            offers = _list_offers(filler, left, room, fair, in_parts=few)
            offer = min(_look_ahead(filler, left, room, fair, each) for each in offers[:_FOLLOWED])[-1]
        batch, left = _take(offer, left, room)
        batches.append(batch)
    return _exchange(filler, batches, limits)


def _take(offer: Offer, left: list[int], room: list[int]) -> tuple[Batch, list[int]]:
    """Take nodes of an offer as often as it is filled. `room` is changed."""
    _, pool, counts = offer
    nodes = min(have // each for have, each in zip(left, counts, strict=True) if each)
    nodes = min(nodes, room[pool])
    room[pool] -= nodes
    return Batch(pool, nodes, counts), [have - nodes * each for have, each in zip(left, counts, strict=True)]


def _look_ahead(
    filler: NodeFiller, left: list[int], room: list[int], fair: list[float], offer: Offer
) -> tuple[int, float, Offer]:
    """Return what stays unmet and what all costs when this offer is taken, and the best ones from then on."""
    room = room.copy()
    batch, left = _take(offer, left, room)
    cost = batch.nodes * float(filler.prices[batch.pool])
    while any(left):
        offers = _list_offers(filler, left, room, fair)
        if not offers:
            break
        batch, left = _take(offers[0], left, room)
        cost += batch.nodes * float(filler.prices[batch.pool])
    return sum(left), cost, offer


def _price_fairly(filler: NodeFiller) -> list[float]:
    """Return the least price of one pod of each class. A node that costs nothing is worth a little, to fill it well."""
    prices = np.maximum(filler.prices, 1.0)
    with np.errstate(divide="ignore"):
        each = np.where(filler.alone > 0, prices[:, None] / np.maximum(filler.alone, 1), np.inf)
    return [float(value) for value in each.min(axis=0)] if len(prices) else [float("inf")] * filler.alone.shape[1]


def _list_offers(
    filler: NodeFiller, left: list[int], room: list[int], fair: list[float], *, in_parts: bool = False
) -> list[Offer]:
    """Return pools with a filling, the most worth for the price first.

    `in_parts`: also with fillings that leave pods to other nodes, which may hold them better.
    """
    sold_out = frozenset(pool for pool, nodes in enumerate(room) if nodes <= 0)
    tried = {
        pool for number, have in enumerate(left) if have for pool in filler.list_best(number, have, sold_out, _TRIED)
    }
    offers = set()
    parts = [tuple(left), *(_list_parts(left) if in_parts else ())]
    for pool in tried:
        for part in parts:
            counts, _ = filler.fill(pool, part)
            worth = sum(price * count for price, count in zip(fair, counts, strict=True) if count)
            if worth > 0:
                offers.add((max(float(filler.prices[pool]), 1.0) / worth, pool, counts))
    return sorted(offers)


def _list_parts(left: list[int]) -> list[Counts]:
    """Return what waits with fewer pods of one class, and each class alone."""
    parts = []
    for number, have in enumerate(left):
        if have:
            parts += [(*left[:number], fewer, *left[number + 1 :]) for fewer in range(min(have, _FEWER))]
            parts.append(tuple(count if each == number else 0 for each, count in enumerate(left)))
    return parts


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

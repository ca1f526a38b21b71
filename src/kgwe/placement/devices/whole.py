"""Which devices the kubelet should give to the container it is about to start.

The kubelet tells how many devices it wants and which are free, but not for which pod. It admits one pod after another,
so the pod is one of those that still lack devices (`Ask`), most often the only one. Its planned devices are the answer.
Devices planned for other pods are avoided as long as there are others. Among the rest the choice is that of the engine:
the fastest ring, then the most useful remainder; slices fill the fullest GPUs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.topology import Wiring

# Combinations tried to extend given GPUs: 16 over 8.
_MOST_WAYS: Final = 12_870


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod that still lacks devices of one resource."""

    pod: str
    sizes: tuple[int, ...]
    """Requests of the containers without devices; any of them may be next."""
    planned: frozenset[str] = frozenset()
    """Devices of its plan; empty: it has no plan, or one that names none of this resource."""
    has: frozenset[str] = frozenset()
    """Devices its containers have already."""
    since: str = ""
    """When it was created, as the API writes it: a kubelet takes the oldest first."""
    uid: str = ""
    advised: int = 0
    """How often it was advised since it last got devices: a pod that did not take the advice was refused."""
    lacks: int = 1
    """How many more devices it will take; used for shares."""


@dataclass(frozen=True)
class Stock:
    """The devices of one resource on this node."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """Device -> number of its GPU; whole GPUs and slices alike."""
    order: Mapping[str, int] = field(default_factory=dict)
    """Device -> start of the slice on its GPU, or number of the share."""
    wiring: Wiring | None = None
    """Topology of whole GPUs; None: slices, shares, or unknown."""
    is_shared: bool = False
    """The devices are shares of GPUs."""


@dataclass(frozen=True, slots=True)
class Advice:
    devices: tuple[str, ...]
    pod: str = ""
    """The pod the advice is for; empty: unknown."""


def advise_devices(
    asks: Sequence[Ask],
    stock: Stock,
    free: Iterable[str],
    size: int,
    *,
    must: Sequence[str] = (),
    spoken_for: Iterable[str] = (),
) -> Advice:
    """Choose devices. `must` is part of the answer; `spoken_for` is avoided as long as there are others."""
    ask = find_requester(asks, must, size)
    pool = frozenset(free) - frozenset(must)
    missing = size - len(must)
    wanted = ask.planned - ask.has if ask is not None else frozenset()
    others = frozenset(spoken_for).union(*(each.planned for each in asks if each is not ask)) - wanted
    chosen = _take_first(stock, wanted & pool, missing)
    for rest in (pool - others, pool):
        left = missing - len(chosen)
        if left > 0:
            chosen |= choose_nearest(stock, rest - chosen, frozenset(must) | chosen, min(left, len(rest - chosen)))
    return Advice((*must, *_sort_devices(stock, chosen)), ask.pod if ask is not None else "")


def find_requester(asks: Sequence[Ask], must: Sequence[str], size: int) -> Ask | None:
    """The pod the kubelet is asking for, of those that lack devices."""
    fits = [ask for ask in asks if size in ask.sizes]
    # Devices that must be included come from an init container of the same pod, by its plan.
    mine = [ask for ask in fits if must and frozenset(must) & ask.planned]
    return min(mine or fits, key=lambda ask: (ask.advised, ask.since, ask.pod), default=None)


def _take_first(stock: Stock, devices: frozenset[str], count: int) -> frozenset[str]:
    """The next planned devices: containers of a pod take them in order."""
    return frozenset(_sort_devices(stock, devices)[:count])


def _sort_devices(stock: Stock, devices: Iterable[str]) -> list[str]:
    return sorted(devices, key=lambda each: (stock.gpus.get(each, -1), stock.order.get(each, 0), each))


def choose_nearest(stock: Stock, pool: frozenset[str], given: frozenset[str], count: int) -> frozenset[str]:
    """The best `count` devices of the pool beside the given ones."""
    if count >= len(pool):
        return pool
    if stock.wiring is None or not all(each in stock.gpus for each in pool | given):
        return frozenset(_sort_fullest_first(stock, pool)[:count])
    by_gpu = {stock.gpus[each]: each for each in pool}
    return frozenset(by_gpu[gpu] for gpu in _choose_gpus(stock.wiring, sorted(by_gpu), given, stock, count))


def _sort_fullest_first(stock: Stock, pool: frozenset[str]) -> list[str]:
    """Slices of the fullest GPUs first, so that others stay whole."""
    left: dict[int, int] = {}
    for each in pool:
        gpu = stock.gpus.get(each, -1)
        left[gpu] = left.get(gpu, 0) + 1
    return sorted(
        pool,
        key=lambda each: (
            left[stock.gpus.get(each, -1)],
            stock.gpus.get(each, -1),
            stock.order.get(each, 0),
            each,
        ),
    )


def _choose_gpus(
    wiring: Wiring, pool: Sequence[int], given: frozenset[str], stock: Stock, count: int
) -> tuple[int, ...]:
    from kgwe.placement.gpuset import bitmask, gpu_tables  # noqa: PLC0415 - NumPy, only where a pod has no plan

    if gpu_tables.is_wide(wiring) or max(pool) >= len(wiring.slots):
        return tuple(pool[:count])
    if not given:
        choice = gpu_tables.build_table(wiring).choose(bitmask.make_mask(pool), count)
        return choice.gpus if choice is not None else tuple(pool[:count])
    rings = gpu_tables.build_sets(wiring)
    fixed = bitmask.make_mask([stock.gpus[each] for each in given])
    ways = itertools.islice(itertools.combinations(pool, count), _MOST_WAYS)
    return max(ways, key=lambda way: (int(rings.mb_per_s[fixed | bitmask.make_mask(way)]), [-gpu for gpu in way]))

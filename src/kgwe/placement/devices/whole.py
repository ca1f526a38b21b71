"""Which devices a kubelet should give to the container it is about to start.

The kubelet says how many devices it wants and which are free, not for whom. It admits one pod after another, so the pod
is one of those that still lack devices (`Ask`), most often the only one. Its plan's devices are the answer. What plans
of other pods name is kept for them as long as there is anything else; among the rest the choice is that of the engine:
the fastest ring, then the most useful remainder; slices fill the cards that are fullest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.topology import Wiring

# All ways to add cards to some that are given: 16 over 8.
_MOST_WAYS: Final = 12_870


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod that still lacks devices of one resource."""

    pod: str
    sizes: tuple[int, ...]
    """What each container asks for that has none yet; any of them may be next."""
    planned: frozenset[str] = frozenset()
    """Devices of its plan; empty: it has no plan, or one that names none of this resource."""
    has: frozenset[str] = frozenset()
    """Devices its containers have already."""
    since: str = ""
    """When it was created, as the API writes it: a kubelet takes the oldest first."""
    uid: str = ""
    advised: int = 0
    """How often it was advised since it last got anything: a pod that was advised in vain has been refused."""
    lacks: int = 1
    """How many it will take in all beside those it has; counts where devices are pieces."""


@dataclass(frozen=True)
class Stock:
    """The devices of one resource on this node."""

    cards: Mapping[str, int] = field(default_factory=dict)
    """Device -> number of its card; whole cards and slices alike."""
    order: Mapping[str, int] = field(default_factory=dict)
    """Device -> where a slice starts on its card, or which of its pieces it is."""
    wiring: Wiring | None = None
    """Between whole cards; None: slices, pieces, or nothing is known of it."""
    is_shared: bool = False
    """They are pieces of shared cards: `pieces` advises."""


@dataclass(frozen=True, slots=True)
class Advice:
    devices: tuple[str, ...]
    pod: str = ""
    """Whose plan was followed, or who was taken to ask; empty: nobody is known to."""


def advise(
    asks: Sequence[Ask],
    stock: Stock,
    free: Iterable[str],
    size: int,
    *,
    must: Sequence[str] = (),
    spoken_for: Iterable[str] = (),
) -> Advice:
    """`must` has to be in the answer; `spoken_for` is kept for others as long as there is anything else."""
    ask = who(asks, must, size)
    pool = frozenset(free) - frozenset(must)
    missing = size - len(must)
    wanted = ask.planned - ask.has if ask is not None else frozenset()
    others = frozenset(spoken_for).union(*(each.planned for each in asks if each is not ask)) - wanted
    chosen = _first(stock, wanted & pool, missing)
    for rest in (pool - others, pool):
        left = missing - len(chosen)
        if left > 0:
            chosen |= nearest(stock, rest - chosen, frozenset(must) | chosen, min(left, len(rest - chosen)))
    return Advice((*must, *_sorted(stock, chosen)), ask.pod if ask is not None else "")


def who(asks: Sequence[Ask], must: Sequence[str], size: int) -> Ask | None:
    """Of the pods that lack devices the one that is being served."""
    fits = [ask for ask in asks if size in ask.sizes]
    # Devices that must be included come from an init container of the same pod, which got them by its plan.
    mine = [ask for ask in fits if must and frozenset(must) & ask.planned]
    return min(mine or fits, key=lambda ask: (ask.advised, ask.since, ask.pod), default=None)


def _first(stock: Stock, devices: frozenset[str], count: int) -> frozenset[str]:
    """Of a plan that several containers share, each in turn gets the next."""
    return frozenset(_sorted(stock, devices)[:count])


def _sorted(stock: Stock, devices: Iterable[str]) -> list[str]:
    return sorted(devices, key=lambda each: (stock.cards.get(each, -1), stock.order.get(each, 0), each))


def nearest(stock: Stock, pool: frozenset[str], given: frozenset[str], count: int) -> frozenset[str]:
    """The best `count` of the pool to join those that are given."""
    if count >= len(pool):
        return pool
    if stock.wiring is None or not all(each in stock.cards for each in pool | given):
        return frozenset(_fullest_first(stock, pool)[:count])
    by_card = {stock.cards[each]: each for each in pool}
    return frozenset(by_card[card] for card in _cards(stock.wiring, sorted(by_card), given, stock, count))


def _fullest_first(stock: Stock, pool: frozenset[str]) -> list[str]:
    """Slices of the cards that have least left, so that others stay whole."""
    left: dict[int, int] = {}
    for each in pool:
        card = stock.cards.get(each, -1)
        left[card] = left.get(card, 0) + 1
    return sorted(
        pool,
        key=lambda each: (
            left[stock.cards.get(each, -1)],
            stock.cards.get(each, -1),
            stock.order.get(each, 0),
            each,
        ),
    )


def _cards(wiring: Wiring, pool: Sequence[int], given: frozenset[str], stock: Stock, count: int) -> tuple[int, ...]:
    from kgwe.placement.gpuset import bitmask, gpu_tables  # noqa: PLC0415 - NumPy, only where a pod has no plan

    if gpu_tables.is_wide(wiring) or max(pool) >= len(wiring.slots):
        return tuple(pool[:count])
    if not given:
        choice = gpu_tables.build_table(wiring).choose(bitmask.make_mask(pool), count)
        return choice.cards if choice is not None else tuple(pool[:count])
    rings = gpu_tables.build_sets(wiring)
    fixed = bitmask.make_mask([stock.cards[each] for each in given])
    ways = itertools.islice(itertools.combinations(pool, count), _MOST_WAYS)
    return max(ways, key=lambda way: (int(rings.mb_per_s[fixed | bitmask.make_mask(way)]), [-card for card in way]))

"""Which piece of which shared card a kubelet should give to the container it is about to start.

Who asks is found out as for whole cards (`handout.who`). A plan names the card, not the piece, and several pods may be
planned on one card: what is kept for others is therefore counted. Each pod that is still to get its piece takes one of
those its card has left; a piece that was advised already is taken out by its name, and never advised twice while there
is another.

A pod without a plan gets a piece of the card that then has fewest left, so that other cards stay free: the rule by
which the engine plans shares (`fit`). What plans of others need is touched only where nothing else is left.
"""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING

from kgwe.placement.devices import whole
from kgwe.placement.devices.whole import Advice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.placement.devices.whole import Ask, Stock


class _Claim(enum.IntEnum):
    """How good the pod's claim to a piece is; the best first."""

    PLANNED = 0
    SPARE = 1
    """Left when everybody who is planned on the card has got a piece."""
    WANTED = 2
    """Somebody who is planned on the card goes without."""
    PROMISED = 3
    """Somebody was advised this very piece and is about to take it."""


def advise(
    asks: Sequence[Ask],
    stock: Stock,
    free: Iterable[str],
    size: int,
    *,
    must: Sequence[str] = (),
    promised: Mapping[str, frozenset[str]] | None = None,
    to_come: Sequence[Ask] = (),
) -> Advice:
    """`must` has to be in the answer; `promised` is what pods were advised, or given, that the kubelet does not show
    yet (without a name: pods nobody knows); `to_come` are pods with plans that it has not heard of."""
    ask = whole.who(asks, must, size)
    promises = promised or {}
    gone = frozenset[str]().union(*promises.values())
    pool = frozenset(free) - frozenset(must)
    mine = _cards(stock, ask.planned) if ask is not None else frozenset()
    spare = _spare(stock, pool - gone, [each for each in (*asks, *to_come) if each is not ask], promises)

    def claim(piece: str) -> _Claim:
        card = stock.cards.get(piece, -1)
        if piece in gone:
            return _Claim.PROMISED
        if card in mine:
            return _Claim.PLANNED
        return _Claim.SPARE if spare[card] > 0 else _Claim.WANTED

    def rank(piece: str) -> tuple[bool | int | str, ...]:
        card = stock.cards.get(piece, -1)
        return claim(piece), card not in mine, spare[card], card, stock.order.get(piece, 0), piece

    chosen = sorted(pool, key=rank)[: max(0, size - len(must))]
    return Advice((*must, *chosen), ask.pod if ask is not None else "")


def _spare(
    stock: Stock, free: frozenset[str], others: Iterable[Ask], promises: Mapping[str, frozenset[str]]
) -> collections.Counter[int]:
    """Card -> pieces left when all others have got theirs; less than none where too many are planned on it."""
    spare = collections.Counter(stock.cards.get(piece, -1) for piece in free)
    for ask in others:
        # What it was promised is out of the count already, or is another card's.
        lacks = ask.lacks - len(promises.get(ask.pod, ()))
        for card in _cards(stock, ask.planned) if lacks > 0 else ():
            spare[card] -= lacks
    return spare


def _cards(stock: Stock, pieces: Iterable[str]) -> frozenset[int]:
    return frozenset(stock.cards[each] for each in pieces if each in stock.cards)

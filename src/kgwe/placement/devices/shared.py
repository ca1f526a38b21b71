"""Which share of which GPU the kubelet should give to the container it is about to start.

The requesting pod is found as for whole GPUs (`whole.find_requester`). A plan names the GPU, not the share, and several
pods may be planned on one GPU, so the shares needed by others are counted. Each pod that still lacks its share takes
one of those left on its GPU. A share that was advised already is excluded by its id, and never advised twice while
there is another.

A pod without a plan gets a share of the GPU with fewest left, so that other GPUs stay free: the rule by which the
engine plans shares. Shares that other pods are planned to have are used only when nothing else is left.
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
    """How suitable a share is for the pod; the best first."""

    PLANNED = 0
    SPARE = 1
    """Left when all pods planned on the GPU have their shares."""
    WANTED = 2
    """Needed by a pod that is planned on the GPU."""
    PROMISED = 3
    """Advised to another pod, which is about to take it."""


def advise_shares(
    asks: Sequence[Ask],
    stock: Stock,
    free: Iterable[str],
    size: int,
    *,
    must: Sequence[str] = (),
    promised: Mapping[str, frozenset[str]] | None = None,
    to_come: Sequence[Ask] = (),
) -> Advice:
    """Choose shares. `must` is part of the answer; `promised`: pod -> shares advised or given that the kubelet does not
    report yet (empty name: unknown pods); `to_come`: planned pods that it does not know yet."""
    ask = whole.find_requester(asks, must, size)
    promises = promised or {}
    gone = frozenset[str]().union(*promises.values())
    pool = frozenset(free) - frozenset(must)
    mine = _gpus_of(stock, ask.planned) if ask is not None else frozenset()
    spare = _count_spare(stock, pool - gone, [each for each in (*asks, *to_come) if each is not ask], promises)

    def claim(piece: str) -> _Claim:
        gpu = stock.gpus.get(piece, -1)
        if piece in gone:
            return _Claim.PROMISED
        if gpu in mine:
            return _Claim.PLANNED
        return _Claim.SPARE if spare[gpu] > 0 else _Claim.WANTED

    def rank(piece: str) -> tuple[bool | int | str, ...]:
        gpu = stock.gpus.get(piece, -1)
        return claim(piece), gpu not in mine, spare[gpu], gpu, stock.order.get(piece, 0), piece

    chosen = sorted(pool, key=rank)[: max(0, size - len(must))]
    return Advice((*must, *chosen), ask.pod if ask is not None else "")


def _count_spare(
    stock: Stock, free: frozenset[str], others: Iterable[Ask], promises: Mapping[str, frozenset[str]]
) -> collections.Counter[int]:
    """GPU -> shares left when all others have theirs; negative where too many are planned."""
    spare = collections.Counter(stock.gpus.get(piece, -1) for piece in free)
    for ask in others:
        # Promised shares are not counted as free.
        lacks = ask.lacks - len(promises.get(ask.pod, ()))
        for gpu in _gpus_of(stock, ask.planned) if lacks > 0 else ():
            spare[gpu] -= lacks
    return spare


def _gpus_of(stock: Stock, pieces: Iterable[str]) -> frozenset[int]:
    return frozenset(stock.gpus[each] for each in pieces if each in stock.gpus)

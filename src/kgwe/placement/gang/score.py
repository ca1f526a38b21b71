"""Which of the domains that hold a gang: those with the fastest ring, and of equals the one with the best score.

The score is of four parts, each 0..1 times its weight (40, 30, 20, 10 unless told otherwise):

    availability   pods / room of the domain      a tight fit keeps large holes for large gangs
    alignment      predicted GB/s / the fastest   of the ring through the gang
    utilisation    cards in use / cards           a domain in use is filled up before an empty one is begun
    history        0..1, `Snapshot.history`       mean over the domain: reliability of its nodes, and what became of
                                                  workloads there (`kgwe.model.network.outcomes`)

For the strategy Distributed availability and utilisation are turned round: the emptiest domain is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.plan import DomainScore, DomainWeights, SizeClass
from kgwe.placement.gang.request import Strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.gang.levels import Ladder

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """Parts of the score, 0..1, of the domains of one rung; alignment is known only once a ring is."""

    availability: Floats
    utilisation: Floats
    history: Floats

    def score(self, weights: DomainWeights, domain: int, alignment: float) -> DomainScore:
        return DomainScore(
            availability=weights.availability * float(self.availability[domain]),
            alignment=weights.alignment * alignment,
            utilisation=weights.utilisation * float(self.utilisation[domain]),
            history=weights.history * float(self.history[domain]),
        )

    def partial(self, weights: DomainWeights) -> Floats:
        """Without alignment, for all domains."""
        return (
            weights.availability * self.availability
            + weights.utilisation * self.utilisation
            + weights.history * self.history
        )


def standing(
    ladder: Ladder, snapshot: Snapshot, rung: int, *, tightness: Floats, strategy: Strategy, history: Floats | None
) -> Standing:
    """How the domains of a rung stand; `tightness`: pods over room, `history`: per node of the snapshot or NaN."""
    level = ladder.rungs[rung]
    free = level.sums(np.bitwise_count(snapshot.free[ladder.node]).astype(np.int64))
    cards = level.sums(ladder.cards)
    used = np.where(cards > 0, 1 - free / np.maximum(cards, 1), 0.0)
    availability = np.clip(tightness, 0.0, 1.0)
    past = np.zeros(len(level))
    if history is not None and len(level):
        told = np.nan_to_num(history[ladder.node], nan=0.0)
        past = np.clip(np.add.reduceat(told, level.starts[:-1]) / np.diff(level.starts), 0.0, 1.0)
    if strategy is Strategy.DISTRIBUTED:
        return Standing(1 - availability, 1 - used, past)
    return Standing(availability, used, past)


def size_class(ladder: Ladder, room_when_empty: Ints, pods: int) -> SizeClass:
    """How large the gang is for this cluster; `room_when_empty` is per place."""
    leaf = ladder.leaf_rung
    above = min(leaf + 1, ladder.top)
    node_most, leaf_most, above_most = (
        int(ladder.rungs[rung].sums(room_when_empty).max(initial=0)) for rung in (0, leaf, above)
    )
    if pods <= node_most:
        return SizeClass.SINGLE_NODE
    if pods < leaf_most:
        return SizeClass.SINGLE_DOMAIN
    if pods == leaf_most:
        return SizeClass.COMPLETE_DOMAIN
    return SizeClass.ADJACENT_DOMAINS if pods <= above_most else SizeClass.MULTIPLE_DOMAINS

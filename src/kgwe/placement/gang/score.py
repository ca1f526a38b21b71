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
    from kgwe.placement.gang.levels import LevelTable

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DomainScores:
    """Parts of the score, 0..1, of the domains of one level; alignment is known only once a ring is."""

    availability: Floats
    utilisation: Floats
    history: Floats

    def score_domain(self, weights: DomainWeights, domain: int, alignment: float) -> DomainScore:
        return DomainScore(
            availability=weights.availability * float(self.availability[domain]),
            alignment=weights.alignment * alignment,
            utilisation=weights.utilisation * float(self.utilisation[domain]),
            history=weights.history * float(self.history[domain]),
        )

    def score_without_alignment(self, weights: DomainWeights) -> Floats:
        """Without alignment, for all domains."""
        return (
            weights.availability * self.availability
            + weights.utilisation * self.utilisation
            + weights.history * self.history
        )


def score_domains(
    table: LevelTable, snapshot: Snapshot, level: int, *, tightness: Floats, strategy: Strategy, history: Floats | None
) -> DomainScores:
    """How the domains of a level stand; `tightness`: pods over room, `history`: per node of the snapshot or NaN."""
    domains = table.levels[level]
    free = domains.sum_by_domain(np.bitwise_count(snapshot.free[table.node]).astype(np.int64))
    gpus = domains.sum_by_domain(table.gpu_counts)
    used = np.where(gpus > 0, 1 - free / np.maximum(gpus, 1), 0.0)
    availability = np.clip(tightness, 0.0, 1.0)
    past = np.zeros(len(domains))
    if history is not None and len(domains):
        told = np.nan_to_num(history[table.node], nan=0.0)
        past = np.clip(np.add.reduceat(told, domains.starts[:-1]) / np.diff(domains.starts), 0.0, 1.0)
    if strategy is Strategy.DISTRIBUTED:
        return DomainScores(1 - availability, 1 - used, past)
    return DomainScores(availability, used, past)


def classify_size(table: LevelTable, room_when_empty: Ints, pods: int) -> SizeClass:
    """How large the gang is for this cluster; `room_when_empty` is per place."""
    leaf = table.leaf_level
    above = min(leaf + 1, table.top)
    node_most, leaf_most, above_most = (
        int(table.levels[level].sum_by_domain(room_when_empty).max(initial=0)) for level in (0, leaf, above)
    )
    if pods <= node_most:
        return SizeClass.SINGLE_NODE
    if pods < leaf_most:
        return SizeClass.SINGLE_DOMAIN
    if pods == leaf_most:
        return SizeClass.COMPLETE_DOMAIN
    return SizeClass.ADJACENT_DOMAINS if pods <= above_most else SizeClass.MULTIPLE_DOMAINS

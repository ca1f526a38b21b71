"""Scores the domains that hold a gang; the score decides between domains with equally fast rings.

The score has four parts, each 0..1 times its weight (40, 30, 20 and 10 by default):

    availability   pods / room of the domain      a tight fit preserves large free domains for large gangs
    alignment      predicted GB/s / the fastest   of the ring through the gang
    utilisation    GPUs in use / GPUs             domains in use are filled before empty ones
    history        0..1, `Snapshot.history`       mean over the domain: reliability of its nodes, and how workloads
                                                  ended there (`kgwe.model.network.outcomes`)

For the strategy Distributed, availability and utilisation are reversed: the emptiest domain is the best.
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
    """Parts of the score, 0..1, of the domains of one level; alignment is added once the ring is known."""

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
        """The weighted score of every domain, without alignment."""
        return (
            weights.availability * self.availability
            + weights.utilisation * self.utilisation
            + weights.history * self.history
        )


def score_domains(
    table: LevelTable, snapshot: Snapshot, level: int, *, tightness: Floats, strategy: Strategy, history: Floats | None
) -> DomainScores:
    """The score parts of the domains of a level.

    `tightness`: per domain, pods / room; `history`: per node of the snapshot, 0..1 or NaN.
    """
    domains = table.levels[level]
    free = domains.sum_by_domain(np.bitwise_count(snapshot.free[table.node]).astype(np.int64))
    gpus = domains.sum_by_domain(table.gpu_counts)
    used = np.where(gpus > 0, 1 - free / np.maximum(gpus, 1), 0.0)
    availability = np.clip(tightness, 0.0, 1.0)
    past = np.zeros(len(domains))
    if history is not None and len(domains):
        known = np.nan_to_num(history[table.node], nan=0.0)
        past = np.clip(np.add.reduceat(known, domains.starts[:-1]) / np.diff(domains.starts), 0.0, 1.0)
    if strategy is Strategy.DISTRIBUTED:
        return DomainScores(1 - availability, 1 - used, past)
    return DomainScores(availability, used, past)


def classify_size(table: LevelTable, room_when_empty: Ints, pods: int) -> SizeClass:
    """The size of a gang relative to this cluster; `room_when_empty`: per place."""
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

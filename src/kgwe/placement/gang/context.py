"""The collaborators that all searches on one snapshot share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kgwe.placement.gang.levels import LevelTables
    from kgwe.placement.gang.lookahead.follow_up import Lookahead
    from kgwe.placement.gang.plan import DomainWeights
    from kgwe.placement.gang.ring import RingPredictor
    from kgwe.placement.pod.fit import Fitter


@dataclass(frozen=True, slots=True)
class SearchContext:
    """What a search for one gang uses: the snapshot, its levels, predictions and weights."""

    fitter: Fitter
    level_tables: LevelTables
    rings: RingPredictor
    lookahead: Lookahead
    weights: DomainWeights
    history: NDArray[np.float64] | None
    """Node -> history part of the score, 0..1 or NaN; None: no node has one that matters."""

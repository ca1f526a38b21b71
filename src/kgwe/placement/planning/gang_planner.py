"""Gangs: pods that are placed together or not at all.

    planner = GangPlanner(Fitter(snapshot), tree)
    plan = planner.plan(GangRequest.of(request, 16, required="spine", preferred="leaf"))
    if isinstance(plan, GangPlan):
        undo = snapshot.commit_all(plan.grants)      # rank i: plan.seats[i].node, plan.seats[i].grant
    else:
        print(plan.words())                          # the binding constraint, and what would start it now

Planning books nothing: the snapshot is afterwards bit for bit what it was. The same snapshot and gang always give the
same plan. `kgwe.placement.gang.search` tells how a place is found, `kgwe.placement.planning.diagnosis` how a no is
explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.placement.gang import site
from kgwe.placement.gang.plan import DomainScore, DomainWeights, GangPlan, LevelReport, Seat, SizeClass
from kgwe.placement.gang.request import (
    CLUSTER,
    NODE,
    NONE_FOLLOW,
    NVLINK,
    Following,
    GangRequest,
    Hardware,
    Role,
    Segment,
    Strategy,
)
from kgwe.placement.gang.search import GangSearch, Missing
from kgwe.placement.planning import diagnosis
from kgwe.placement.planning.diagnosis import Evictable, GangRefusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.gang.site import GangLocation
    from kgwe.placement.pod.fit import Fitter

__all__ = [
    "CLUSTER",
    "NODE",
    "NVLINK",
    "DomainScore",
    "DomainWeights",
    "Evictable",
    "Following",
    "GangPlan",
    "GangPlanner",
    "GangRefusal",
    "GangRequest",
    "Hardware",
    "LevelReport",
    "Role",
    "Seat",
    "Segment",
    "SizeClass",
    "Strategy",
    "plan_gang",
]


class GangPlanner:
    """Plans any number of gangs over one fitter and tree, and keeps what they have in common."""

    def __init__(
        self,
        fitter: Fitter,
        tree: Tree,
        *,
        weights: DomainWeights | None = None,
        history: NDArray[np.float64] | None = None,
    ) -> None:
        """`history`: per node of the snapshot how well work ended there, 0..1; NaN: not known."""
        self._search = GangSearch(fitter, tree, weights=weights, history=history)

    @property
    def weights(self) -> DomainWeights:
        return self._search.weights

    def plan(
        self, gang: GangRequest, *, evictable: Evictable | None = None, following: Following = NONE_FOLLOW
    ) -> GangPlan | GangRefusal:
        """All of the gang, or why not and what would help; `evictable`: what runs, to suggest whom to stop."""
        found = self._search.find(gang, following)
        if isinstance(found, Missing):
            return diagnosis.certify(self._search, gang, found, evictable)
        return found

    def try_plan(self, gang: GangRequest, following: Following = NONE_FOLLOW) -> GangPlan | Missing:
        """All of the gang, or a bare no: for callers that try many and explain none."""
        return self._search.find(gang, following)

    def survey(self, gang: GangRequest | None, seats: Sequence[tuple[str, int]]) -> GangLocation | None:
        """The place of pods that have their seats (node, mask of cards); None when a node is not there."""
        return site.locate_gang(self._search, gang, seats)


def plan_gang(
    fitter: Fitter, tree: Tree, gang: GangRequest, *, evictable: Evictable | None = None
) -> GangPlan | GangRefusal:
    """Plan a single gang."""
    return GangPlanner(fitter, tree).plan(gang, evictable=evictable)

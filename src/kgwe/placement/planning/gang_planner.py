"""Gangs: pods that are placed together or not at all.

    planner = GangPlanner(Fitter(snapshot), tree)
    plan = planner.plan(GangRequest.of(request, 16, required="spine", preferred="leaf"))
    if isinstance(plan, GangPlan):
        undo = snapshot.commit_all(plan.grants)      # rank i: plan.seats[i].node, plan.seats[i].grant
    else:
        print(plan.message)                          # the binding constraint, and what would start it now

Planning books nothing: the snapshot is afterwards bit for bit what it was. The same snapshot and gang always give the
same plan. `kgwe.placement.gang.search` finds the place; `kgwe.placement.planning.diagnosis` explains a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.placement.gang import site
from kgwe.placement.gang.plan import DomainScore, DomainWeights, GangPlan, LevelReport, Seat, Shortfall, SizeClass
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
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.planning import diagnosis
from kgwe.placement.planning.diagnosis import Evictable
from kgwe.placement.planning.fields import WORKLOAD_FIELDS, Fields
from kgwe.placement.planning.reasons import describe_gang
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.gang.request import Intent
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
        self,
        gang: GangRequest,
        *,
        evictable: Evictable | None = None,
        following: Following = NONE_FOLLOW,
        fields: Fields = WORKLOAD_FIELDS,
    ) -> GangPlan | Refusal:
        """All of the gang, or why not and what would help.

        `evictable`: running workloads that may be evicted; `fields`: names of the fields to change.
        """
        found = self._search.find(gang, following)
        if isinstance(found, Shortfall):
            return diagnosis.refuse_gang(diagnosis.diagnose(self._search, gang, found, evictable, fields))
        return found

    def try_plan(self, gang: GangRequest, following: Following = NONE_FOLLOW) -> GangPlan | Refusal:
        """All of the gang, or a refusal without a diagnosis: for callers that try many and explain none."""
        found = self._search.find(gang, following)
        return _refuse(gang, found) if isinstance(found, Shortfall) else found

    def fits_leaf(self, gang: GangRequest) -> bool:
        """Whether one leaf has room for the gang, each role taken alone."""
        return self._search.fits_leaf(gang)

    def arrange_gangs(self, following: Following) -> list[Intent | None]:
        """Where each gang that waits goes when all are planned together; None: as it would go by itself."""
        return self._search.arrange_gangs(following)

    def survey(self, gang: GangRequest | None, seats: Sequence[tuple[str, int]]) -> GangLocation | None:
        """The place of pods that have their seats (node, mask of GPUs); None when a node is not there."""
        return site.locate_gang(self._search, gang, seats)


def _refuse(gang: GangRequest, found: Shortfall) -> Refusal:
    possible = found.most_when_empty is None or found.most_when_empty >= found.needed
    where = found.level if found.domain in {"", found.level} else f"{found.level} {found.domain}"
    wanted = describe_gang(gang)
    message = f"Not enough room for {wanted}. Best: {where} ({found.room} of {found.needed} {found.role} pods fit)."
    code = Reason.INSUFFICIENT_GPU if possible else Reason.TOO_LARGE
    return Refusal(code, message, possible=possible, detail=found)


def plan_gang(
    fitter: Fitter, tree: Tree, gang: GangRequest, *, evictable: Evictable | None = None
) -> GangPlan | Refusal:
    """Plan a single gang."""
    return GangPlanner(fitter, tree).plan(gang, evictable=evictable)

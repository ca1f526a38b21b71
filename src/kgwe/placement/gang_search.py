"""Where a gang goes: the lowest domain that holds all of it, on cards of one model where that can be had.

With one role the search (`kgwe.placement.gang_climb`) is exact: capacities are sums, so a level without a domain that
holds the gang has no place for it, and the first level with one is the lowest. Roles that compete for the same nodes
make it bin packing: they are placed the largest pods first, then the smallest first, and a gang refused only because
both failed says so (`Missing.proven`).

An elastic gang gets as many pods as any domain of its required level holds, and then the lowest domain that
holds that many: size first, then nearness.

A gang that is exposed is kept off unreliable nodes where that costs it nothing (`kgwe.placement.caution`).

A gang that talks is as fast as its slowest card. So each GPU model is tried by itself first; the models are mixed when
none alone will do and the gang does not forbid it (`Hardware`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement import caution, ring
from kgwe.placement.fit import Verdict
from kgwe.placement.gang_climb import Climb
from kgwe.placement.gang_follow import Ahead
from kgwe.placement.gang_plan import DomainWeights, GangPlan, Missing
from kgwe.placement.gang_request import NONE_FOLLOW, NVLINK, Hardware, Strategy
from kgwe.placement.ladder import Ladders
from kgwe.placement.node import Gpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.model.domains import Tree
    from kgwe.placement.fit import Fitter
    from kgwe.placement.gang_request import Following, GangRequest

__all__ = ["GangSearch", "Missing"]

_NO_GPUS: Final = Gpus()


class GangSearch:
    """Places gangs on one snapshot and tree; books nothing."""

    def __init__(
        self,
        fitter: Fitter,
        tree: Tree,
        *,
        weights: DomainWeights | None = None,
        history: NDArray[np.float64] | None = None,
    ) -> None:
        self.fitter = fitter
        self.ladders = Ladders(tree, fitter.snapshot)
        self.rings = ring.Rings(fitter.snapshot)
        self.ahead = Ahead(fitter)
        self.weights = weights or DomainWeights()
        self._is_all_well = bool((fitter.snapshot.reliability >= 1.0).all())
        # All ones would change no order: then the part is left out.
        past = fitter.snapshot.history
        self.history = past if history is None and bool((past < 1.0).any()) else history

    def find(self, gang: GangRequest, following: Following = NONE_FOLLOW) -> GangPlan | Missing:
        """The place of the gang, or why there is none; of places as near, one that leaves most to those that follow."""
        found = self._wished(gang, following)
        if self._is_all_well or not gang.exposed or isinstance(found, Missing):
            return found
        return caution.gang(self.fitter.snapshot, found, lambda avoid: self._wished(gang, following, avoid))

    def _wished(
        self, gang: GangRequest, following: Following, avoid: NDArray[np.bool_] | None = None
    ) -> GangPlan | Missing:
        found = self._find(gang, following, avoid)
        if isinstance(found, GangPlan) and not found.prefers and gang.preferred == NVLINK:
            # Levels that NVLink domains cross were left out for a wish that could not be granted: they count again.
            plain = self._find(dataclasses.replace(gang, preferred=""), following, avoid)
            if isinstance(plain, GangPlan) and len(plain.seats) == len(found.seats):
                return dataclasses.replace(plain, prefers=False)
        return found

    def _find(
        self, gang: GangRequest, following: Following, avoid: NDArray[np.bool_] | None = None
    ) -> GangPlan | Missing:
        models = self._models(gang)
        if not models:
            return Climb(self, gang, avoid=avoid, following=following).search()
        found = [Climb(self, gang, model, avoid, following).search() for model in models]
        plans = [each for each in found if isinstance(each, GangPlan)]
        if plans:
            plans = [each if each.because or each.leaves == 1 else _of_one_model(each) for each in plans]
            ladder = self.ladders.of(gang.named_levels)
            return min(plans, key=lambda plan: (-len(plan.seats), ladder.index(plan.level), *_demerits(plan)))
        if gang.hardware is Hardware.SAME:
            return min((each for each in found if isinstance(each, Missing)), key=lambda miss: miss.needed - miss.room)
        return Climb(self, gang, avoid=avoid, following=following).search()

    def holds(self, gang: GangRequest) -> bool:
        """Whether there is a place; much faster than finding it for a gang of equal pods."""
        if len(gang.roles) > 1 or gang.min_network_gb_per_s:
            return isinstance(self.find(gang), GangPlan)
        models = self._models(gang) if gang.hardware is Hardware.SAME else []
        return any(Climb(self, gang, model).has_room() for model in models or [""])

    def _models(self, gang: GangRequest) -> list[str]:
        """The GPU models to try one by one; none when there is no choice, or mixing them is as good."""
        talks = gang.strategy in (Strategy.CONSOLIDATED, Strategy.BALANCED)
        if gang.hardware is Hardware.ANY or (gang.hardware is Hardware.PREFER_SAME and not talks):
            return []
        snapshot = self.fitter.snapshot
        shapes: set[int] = set()
        for role in gang.roles:
            if role.request.gpus != _NO_GPUS and not role.request.model:
                fits = self.fitter.when_empty(role.request) == Verdict.FITS
                shapes.update(np.unique(snapshot.shape[fits]).tolist())
        models = sorted({snapshot.shapes[shape].model for shape in shapes})
        return models if len(models) > 1 else []


def _of_one_model(plan: GangPlan) -> GangPlan:
    return dataclasses.replace(plan, because="kept to one GPU model")


def _demerits(plan: GangPlan) -> tuple[int, float, float]:
    return plan.leaves, -plan.ring.gb_per_s, -plan.score.total

"""Where a gang goes: the lowest domain that holds all of it, on cards of one model where that can be had.

With one role the search (`kgwe.placement.gang.domain_search`) is exact: capacities are sums, so a level without a
domain that holds the gang has no place for it, and the first level with one is the lowest. Roles that compete for the
same nodes make it bin packing: they are placed the largest pods first, then the smallest first, and a gang refused only
because both failed says so (`Shortfall.proven`).

An elastic gang gets as many pods as any domain of its required level holds, and then the lowest domain that
holds that many: size first, then nearness.

A gang that is exposed is kept off unreliable nodes where that costs it nothing (`kgwe.placement.gang.reliability`).

Each kind of node (CPU architecture, GPU model) is tried by itself first; they are mixed when none alone will do and the
gang does not forbid it (`kgwe.placement.fleet.hardware_kinds`).

Roles that avoid spot nodes (`SpotPolicy`) get none where all of the gang can be placed without them at no higher level,
or with at least half the bandwidth. Otherwise spot nodes are as good as any.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.gang import reliability, ring
from kgwe.placement.gang.capacity import Scope
from kgwe.placement.gang.domain_search import DomainSearch
from kgwe.placement.gang.hardware import hardware_stages
from kgwe.placement.gang.levels import LevelTables
from kgwe.placement.gang.lookahead.follow_up import Lookahead
from kgwe.placement.gang.plan import DomainWeights, GangPlan, Shortfall
from kgwe.placement.gang.request import NONE_FOLLOW, NVLINK, Strategy
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.hardware_kinds import HardwareKind
    from kgwe.placement.gang.request import Following, GangRequest, Intent
    from kgwe.placement.pod.fit import Fitter

__all__ = ["GangSearch", "Shortfall"]

# To stay off spot nodes is worth half the bandwidth.
_MIN_BANDWIDTH_FRACTION: Final = 0.5
# Spot nodes that a plan names.
_MAX_NAMED: Final = 3


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
        self.level_tables = LevelTables(tree, fitter.snapshot)
        self.rings = ring.RingPredictor(fitter.snapshot)
        self.lookahead = Lookahead(fitter)
        self.weights = weights or DomainWeights()
        self._all_reliable = bool((fitter.snapshot.reliability >= 1.0).all())
        # All ones would change no order: then the part is left out.
        past = fitter.snapshot.history
        self.history = past if history is None and bool((past < 1.0).any()) else history

    def find(self, gang: GangRequest, following: Following = NONE_FOLLOW) -> GangPlan | Shortfall:
        """The place of the gang, or why there is none; of places as near, one that leaves most to those that follow."""
        found, scope, why = self._find_without_spot(gang, Scope(following=following))
        if not (self._all_reliable or not gang.exposed or isinstance(found, Shortfall)):
            found = reliability.prefer_reliable_plan(
                self.fitter.snapshot,
                found,
                lambda excluded: self._find_preferred(gang, dataclasses.replace(scope, excluded=excluded)),
            )
        if not why or isinstance(found, Shortfall):
            return found
        nodes = self._list_avoided_spot(gang, found)
        return dataclasses.replace(found, spot_note=f"on {_list_spot_nodes(nodes)}: {why}") if nodes else found

    def arrange_gangs(self, following: Following) -> list[Intent | None]:
        """Where each gang that waits goes when all are planned together; None: as it would go by itself."""
        return self.lookahead.arrange_gangs(self.level_tables.for_levels(), following)

    def _find_without_spot(self, gang: GangRequest, scope: Scope) -> tuple[GangPlan | Shortfall, Scope, str]:
        """The plan without spot nodes for roles that avoid them, where one is good enough; else why none is."""
        found = self._find_preferred(gang, scope)
        avoids = any(role.request.spot is SpotPolicy.AVOID for role in gang.roles)
        if isinstance(found, Shortfall) or not avoids or not self.fitter.snapshot.spot.any():
            return found, scope, ""
        sparing = dataclasses.replace(scope, excludes_spot=True)
        if not self._list_avoided_spot(gang, found):
            return found, sparing, ""
        other = self._find_preferred(gang, sparing)
        if isinstance(other, GangPlan) and self._accepts_plan_without_spot(gang, other, found):
            return other, sparing, ""
        return found, scope, _explain_spot_nodes(gang, other, found)

    def _list_avoided_spot(self, gang: GangRequest, plan: GangPlan) -> list[str]:
        """Spot nodes in the plan of roles that avoid them."""
        spot = self.fitter.snapshot.spot
        avoiding = {role.name for role in gang.roles if role.request.spot is SpotPolicy.AVOID}
        return list(dict.fromkeys(seat.node for seat in plan.seats if seat.role in avoiding and spot[seat.grant.node]))

    def _accepts_plan_without_spot(self, gang: GangRequest, other: GangPlan, found: GangPlan) -> bool:
        """Whether to take the plan without spot nodes: it has all pods, keeps the preferred level, and is at the same
        level or a lower one, or has at least half the bandwidth."""
        if len(other.seats) < len(found.seats) or other.preferred_met < found.preferred_met:
            return False
        table = self.level_tables.for_levels(gang.named_levels)
        is_as_near = table.find_level(other.level) <= table.find_level(found.level)
        return is_as_near or other.ring.gb_per_s >= found.ring.gb_per_s * _MIN_BANDWIDTH_FRACTION

    def _find_preferred(self, gang: GangRequest, scope: Scope) -> GangPlan | Shortfall:
        found = self._find_by_hardware(gang, scope)
        if isinstance(found, GangPlan) and not found.preferred_met and gang.preferred == NVLINK:
            # Levels that NVLink domains cross were left out for a wish that could not be granted: they count again.
            plain = self._find_by_hardware(dataclasses.replace(gang, preferred=""), scope)
            if isinstance(plain, GangPlan) and len(plain.seats) == len(found.seats):
                return dataclasses.replace(plain, preferred_met=False)
        return found

    def _find_by_hardware(self, gang: GangRequest, scope: Scope) -> GangPlan | Shortfall:
        missing: list[Shortfall] = []
        for stage in self._hardware_stages(gang):
            found = [DomainSearch(self, gang, dataclasses.replace(scope, kind=kind)).find_plan() for kind in stage]
            plans = [each for each in found if isinstance(each, GangPlan)]
            if plans:
                plans = [_note_hardware_choice(each, stage) for each in plans]
                return min(plans, key=lambda plan: self._plan_order(gang, plan))
            missing = [each for each in found if isinstance(each, Shortfall)]
        return min(missing, key=lambda miss: miss.needed - miss.room)

    def _hardware_stages(self, gang: GangRequest) -> list[list[HardwareKind | None]]:
        fitter = self.fitter
        return hardware_stages(
            fitter.snapshot.kinds, gang, lambda request: fitter.check_empty_nodes(request) == FitStatus.FITS
        )

    def _plan_order(self, gang: GangRequest, plan: GangPlan) -> tuple[float, ...]:
        """Which of the kinds of node: the least is the best."""
        talks = gang.strategy in (Strategy.CONSOLIDATED, Strategy.BALANCED)
        rate = plan.ring.gb_per_s if talks else 0.0
        level = self.level_tables.for_levels(gang.named_levels).find_level(plan.level)
        return (-len(plan.seats), level, plan.leaves, -rate, -plan.score.total)

    def has_room(self, gang: GangRequest) -> bool:
        """Whether there is a place; much faster than finding it for a gang of equal pods."""
        if len(gang.roles) > 1 or gang.min_network_gb_per_s:
            return isinstance(self.find(gang), GangPlan)
        # What a stage does not hold, the ones before it hold neither.
        last = self._hardware_stages(gang)[-1]
        return any(DomainSearch(self, gang, Scope(kind)).has_room() for kind in last)

    def fits_leaf(self, gang: GangRequest) -> bool:
        """Whether one leaf has room for the gang, each role taken alone."""
        table = self.level_tables.for_levels(gang.named_levels)
        inside = dataclasses.replace(gang, required=table.levels[table.leaf_level].name)
        return any(DomainSearch(self, inside, Scope(kind)).has_room() for kind in self._hardware_stages(gang)[-1])


def _explain_spot_nodes(gang: GangRequest, other: GangPlan | Shortfall, found: GangPlan) -> str:
    """Why the plan without spot nodes is not good enough."""
    if isinstance(other, Shortfall) or len(other.seats) < len(found.seats):
        return "without spot nodes not all pods have a place"
    if other.preferred_met < found.preferred_met:
        return f"without spot nodes it is not in one {gang.preferred}, as preferred"
    where = other.level if other.domain in ("", other.level) else f"{other.level} {other.domain}"
    return f"without spot nodes it is in {where}, ring {other.ring.describe()}"


def _list_spot_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
    return f"spot {'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes[:_MAX_NAMED])}{more}"


def _note_hardware_choice(plan: GangPlan, stage: Sequence[HardwareKind | None]) -> GangPlan:
    """The plan with why it is on several leaves, where other kinds of node might have held it on one."""
    if len(stage) == 1 or plan.choice_note or plan.leaves == 1:
        return plan
    words = "GPU model" if any(kind is not None and kind.model for kind in stage) else "CPU architecture"
    return dataclasses.replace(plan, choice_note=f"kept to one {words}")

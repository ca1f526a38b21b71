"""Finds a place for a gang: the lowest domain that holds all of it, if possible on GPUs of one model.

The search for a gang of one role is exact (`kgwe.placement.gang.domain_search`): the capacity of a domain is the sum
of its parts. So a level without a domain that holds the gang has no place for it. Several roles compete for the same
nodes, which makes it bin packing. They are placed the largest pods first, then the smallest first. If only both
attempts failed, the refusal is not proven (`Shortfall.proven`).

An elastic gang first gets as many pods as any domain of its required level holds. Then it gets the lowest domain that
holds that many.

An exposed gang avoids unreliable nodes if that costs it nothing (`kgwe.placement.gang.reliability`).

Each hardware kind (CPU architecture, GPU model) is tried alone first. Kinds are mixed if no kind alone has room and the
gang allows it (`kgwe.placement.fleet.hardware_kinds`).

Roles that avoid spot nodes (`SpotPolicy`) use none if a plan without them is good enough. Such a plan is at no higher
level, or has at least half the bandwidth. Otherwise spot nodes count like any others.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.gang import reliability, ring
from kgwe.placement.gang.capacity import Scope
from kgwe.placement.gang.context import SearchContext
from kgwe.placement.gang.domain_search import DomainSearch
from kgwe.placement.gang.hardware import hardware_stages
from kgwe.placement.gang.levels import LevelTables
from kgwe.placement.gang.lookahead.follow_up import Lookahead
from kgwe.placement.gang.plan import DomainWeights, GangPlan, Shortfall
from kgwe.placement.gang.request import NONE_FOLLOW, NVLINK
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

# A plan without spot nodes may have this fraction of the bandwidth.
_MIN_BANDWIDTH_FRACTION: Final = 0.5
# The most spot nodes that a message names.
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
        self.weights = weights or DomainWeights()
        self._lookahead = Lookahead(fitter)
        self._all_reliable = bool((fitter.snapshot.reliability >= 1.0).all())
        past = fitter.snapshot.history
        # A history of all ones does not change the order of domains and is left out.
        known = past if history is None and bool((past < 1.0).any()) else history
        self._context = SearchContext(fitter, self.level_tables, self.rings, self._lookahead, self.weights, known)

    def find(self, gang: GangRequest, following: Following = NONE_FOLLOW) -> GangPlan | Shortfall:
        """The plan of the gang, or what is missing; among equally good places, the best for the gangs that follow."""
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
        """The place of each waiting gang when all are planned together; None: it is planned alone."""
        return self._lookahead.arrange_gangs(self.level_tables.for_levels(), following)

    def _find_without_spot(self, gang: GangRequest, scope: Scope) -> tuple[GangPlan | Shortfall, Scope, str]:
        """The plan, without avoided spot nodes if one is good enough; its scope; and why spot nodes are used."""
        found = self._find_preferred(gang, scope)
        avoids = any(role.request.spot is SpotPolicy.AVOID for role in gang.roles)
        if isinstance(found, Shortfall) or not avoids or not self.fitter.snapshot.spot.any():
            return found, scope, ""
        without_spot = dataclasses.replace(scope, excludes_spot=True)
        if not self._list_avoided_spot(gang, found):
            return found, without_spot, ""
        other = self._find_preferred(gang, without_spot)
        if isinstance(other, GangPlan) and self._accepts_plan_without_spot(gang, other, found):
            return other, without_spot, ""
        return found, scope, _explain_spot_nodes(gang, other, found)

    def _list_avoided_spot(self, gang: GangRequest, plan: GangPlan) -> list[str]:
        """Spot nodes that the plan gives to roles that avoid them."""
        spot = self.fitter.snapshot.spot
        avoiding = {role.name for role in gang.roles if role.request.spot is SpotPolicy.AVOID}
        return list(dict.fromkeys(seat.node for seat in plan.seats if seat.role in avoiding and spot[seat.grant.node]))

    def _accepts_plan_without_spot(self, gang: GangRequest, other: GangPlan, found: GangPlan) -> bool:
        """Whether the plan without spot nodes is good enough.

        It has all pods and keeps the preferred level. It is at no higher level, or has at least half the bandwidth.
        """
        if len(other.seats) < len(found.seats) or other.preferred_met < found.preferred_met:
            return False
        table = self.level_tables.for_levels(gang.named_levels)
        is_as_near = table.find_level(other.level) <= table.find_level(found.level)
        return is_as_near or other.ring.gb_per_s >= found.ring.gb_per_s * _MIN_BANDWIDTH_FRACTION

    def _find_preferred(self, gang: GangRequest, scope: Scope) -> GangPlan | Shortfall:
        """The plan in this scope; a preference for NVLink domains that cannot be met is dropped."""
        found = self._find_by_hardware(gang, scope)
        if isinstance(found, GangPlan) and not found.preferred_met and gang.preferred == NVLINK:
            # Levels that NVLink domains cross were left out in favour of the preference. Without it they are tried.
            plain = self._find_by_hardware(dataclasses.replace(gang, preferred=""), scope)
            if isinstance(plain, GangPlan) and len(plain.seats) == len(found.seats):
                return dataclasses.replace(plain, preferred_met=False)
        return found

    def _find_by_hardware(self, gang: GangRequest, scope: Scope) -> GangPlan | Shortfall:
        """The best plan of the first hardware stage that has one."""
        missing: list[Shortfall] = []
        for stage in self._hardware_stages(gang):
            found = [
                DomainSearch(self._context, gang, dataclasses.replace(scope, kind=kind)).find_plan() for kind in stage
            ]
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
        """The sort key of plans on different hardware kinds: the smallest is the best."""
        rate = plan.ring.gb_per_s if gang.communicates else 0.0
        level = self.level_tables.for_levels(gang.named_levels).find_level(plan.level)
        return (-len(plan.seats), level, plan.leaves, -rate, -plan.score.total)

    def has_room(self, gang: GangRequest) -> bool:
        """Whether there is a place; for a gang of equal pods much faster than `find`."""
        if len(gang.roles) > 1 or gang.min_network_gb_per_s:
            return isinstance(self.find(gang), GangPlan)
        # The last stage includes the nodes of all earlier ones.
        last = self._hardware_stages(gang)[-1]
        return any(DomainSearch(self._context, gang, Scope(kind)).has_room() for kind in last)

    def fits_leaf(self, gang: GangRequest) -> bool:
        """Whether one leaf has room for the gang, each role taken alone."""
        table = self.level_tables.for_levels(gang.named_levels)
        inside = dataclasses.replace(gang, required=table.levels[table.leaf_level].name)
        return any(
            DomainSearch(self._context, inside, Scope(kind)).has_room() for kind in self._hardware_stages(gang)[-1]
        )


def _explain_spot_nodes(gang: GangRequest, other: GangPlan | Shortfall, found: GangPlan) -> str:
    """Why the plan without spot nodes is not good enough."""
    if isinstance(other, Shortfall) or len(other.seats) < len(found.seats):
        return "without spot nodes not all pods fit"
    if other.preferred_met < found.preferred_met:
        return f"without spot nodes it would not be in one {gang.preferred}, as preferred"
    where = other.level if other.domain in ("", other.level) else f"{other.level} {other.domain}"
    return f"without spot nodes it would be in {where}, ring {other.ring.describe()}"


def _list_spot_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
    return f"spot {'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes[:_MAX_NAMED])}{more}"


def _note_hardware_choice(plan: GangPlan, stage: Sequence[HardwareKind | None]) -> GangPlan:
    """The plan with a note if it spans several leaves because only one hardware kind is used."""
    if len(stage) == 1 or plan.choice_note or plan.leaves == 1:
        return plan
    words = "GPU model" if any(kind is not None and kind.model for kind in stage) else "CPU architecture"
    return dataclasses.replace(plan, choice_note=f"spans {plan.leaves} leaves to use only one {words}")

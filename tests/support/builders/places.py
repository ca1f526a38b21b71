"""Fleets of tests, to be planned on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine

if TYPE_CHECKING:
    from tests.support.builders.plans import Fleet


class Place:
    """What planning needs of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.snapshot, self.fitter, self.tree = fleet.snapshot, fleet.fitter, fleet.tree
        self.engine = Engine(self.snapshot, fitter=self.fitter)
        self.gangs = GangPlanner(self.fitter, self.tree)

"""The engine and the gang planner as a pass asks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import NONE_FOLLOW, GangRequest
from kgwe.placement.live import scratch
from kgwe.placement.pod.engine import Decision
from kgwe.placement.queue.unschedulable import No

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.plan import Missing
    from kgwe.placement.gang.request import Following
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.planning.gang_planner import GangPlanner
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.pod.engine import Refusal as PodRefusal
    from kgwe.placement.queue.work import Work


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pods of a work go, by rank."""

    nodes: tuple[str, ...]
    grants: tuple[Grant, ...]


class FleetPlanner:
    """Plans on the fleet; where nodes have to be left alone, on its shadow."""

    def __init__(self, source: Source, engine: Engine, gangs: GangPlanner, book: Callable[[Work, Place], None]) -> None:
        self._source = source
        self._engine = engine
        self._gangs = gangs
        self._book = book
        self._shadow: scratch.Shadow | None = None

    def plan(self, work: Work, avoid: frozenset[str], following: Following = NONE_FOLLOW) -> Place | No:
        engine, gangs = self._engine, self._gangs
        if avoid:
            veiled = self._veiled(avoid)
            engine, gangs = veiled.engine, veiled.gangs
        try:
            if not isinstance(work.request, GangRequest):
                answer = engine.decide(work.request, strategy=self._engine.strategy)
                if isinstance(answer, Decision):
                    return Place((answer.name,), (answer.grant,))
                return pod_no(answer)
            found = gangs.try_plan(work.request, following)
        except errors.Permanent as exc:
            return No(str(exc), possible=False)
        return Place(found.nodes, found.grants) if isinstance(found, GangPlan) else gang_no(found)

    def commit(self, work: Work, plan: Place) -> None:
        self._book(work, plan)

    def takes(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        index = self._source.snapshot.index
        numbers = np.array([index[name] for name in nodes if name in index], np.intp)
        return scratch.takes(self._engine.fitter, request, numbers)

    def _veiled(self, avoid: frozenset[str]) -> scratch.Shadow:
        if self._shadow is None:
            self._shadow = scratch.Shadow(self._source, self._engine.scorer.weights)
        self._shadow.sync(avoid)
        return self._shadow


def pod_no(refusal: PodRefusal) -> No:
    return No(refusal.detail, bool(refusal.possible), refusal)


def gang_no(missing: Missing) -> No:
    is_possible = missing.most_when_empty is None or missing.most_when_empty >= missing.needed
    words = f"{missing.level} {missing.domain} has room for {missing.room} of {missing.needed} {missing.role} pods"
    return No(words, is_possible, missing)

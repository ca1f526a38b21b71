"""The cycle's planner over an engine and a gang planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import NONE_FOLLOW, GangRequest
from kgwe.placement.live import scratch
from kgwe.placement.pod.engine import Decision
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import Following, Intent
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.planning.gang_planner import GangPlanner
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.queue.workloads import QueuedWorkload


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Nodes and grants of a workload's pods, by rank."""

    nodes: tuple[str, ...]
    grants: tuple[Grant, ...]


class FleetPlanner:
    """Plans on the fleet, or on a scratch copy with masked nodes."""

    def __init__(
        self, source: Source, engine: Engine, gangs: GangPlanner, book: Callable[[QueuedWorkload, QueuePlan], None]
    ) -> None:
        self._source = source
        self._engine = engine
        self._gangs = gangs
        self._book = book
        self._scratch: scratch.ScratchFleet | None = None

    def plan(
        self, workload: QueuedWorkload, avoid: frozenset[str], following: Following = NONE_FOLLOW
    ) -> QueuePlan | Refusal:
        engine, gangs = self._engine, self._gangs
        if avoid:
            scratch = self._mask_nodes(avoid)
            engine, gangs = scratch.engine, scratch.gangs
        try:
            if not isinstance(workload.request, GangRequest):
                answer = engine.decide(workload.request, strategy=self._engine.strategy)
                if isinstance(answer, Decision):
                    return QueuePlan((answer.name,), (answer.grant,))
                return answer
            found = gangs.try_plan(workload.request, following)
        except errors.Permanent as exc:
            return Refusal(Reason.INVALID, str(exc), possible=False)
        return QueuePlan(found.nodes, found.grants) if isinstance(found, GangPlan) else found

    def arrange_gangs(self, following: Following) -> Sequence[Intent | None]:
        return self._gangs.arrange_gangs(following)

    def commit(self, workload: QueuedWorkload, plan: QueuePlan) -> None:
        self._book(workload, plan)

    def fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        index = self._source.snapshot.index
        numbers = np.array([index[name] for name in nodes if name in index], np.intp)
        return scratch.fits_on_any(self._engine.fitter, request, numbers)

    def _mask_nodes(self, avoid: frozenset[str]) -> scratch.ScratchFleet:
        if self._scratch is None:
            self._scratch = scratch.ScratchFleet(self._source, self._engine.scorer.weights)
        self._scratch.sync(avoid)
        return self._scratch

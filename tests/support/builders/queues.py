"""A queue over small racks: works come, run and end, and every pass is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.builders import racks

from kgwe.placement.gang.request import NONE_FOLLOW, GangRequest
from kgwe.placement.pod.engine import Engine
from kgwe.placement.queue.cycle import Placed, Waiting, run_cycle
from kgwe.placement.queue.earliest_start import StartForecast
from kgwe.placement.queue.eta import Estimator
from kgwe.placement.queue.fleet_planner import FleetPlanner, QueuePlan
from kgwe.placement.queue.queue import GivenUp, Queue
from kgwe.placement.queue.reservation import ReservationSettings
from kgwe.placement.queue.reservations import Reservations
from kgwe.placement.queue.unschedulable import RoomFreed
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkload, RunningWorkloads, RunTime, requested_milli
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.placement.fleet.snapshot import Grant


def exactly(seconds: float) -> RunTime:
    return RunTime(seconds, seconds)


def work(
    key: str, cards: int = 1, pods: int = 1, *, lasts: RunTime | float | None = None, **more: Any
) -> QueuedWorkload:
    limits = {name: more.pop(name) for name in ("required", "preferred") if name in more}
    request = racks.cards(cards)
    return QueuedWorkload(
        key,
        GangRequest.uniform(request, pods, **limits) if pods > 1 or limits else request,
        run_time=exactly(lasts) if isinstance(lasts, (int, float)) else lasts,
        **more,
    )


class Bed:
    def __init__(
        self,
        drawn: Mapping[str, Mapping[str, Sequence[int]]],
        *,
        weights: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        self.fleet = racks.racks(drawn)
        self.snapshot, self.tree = self.fleet.snapshot, self.fleet.tree
        self.grants: dict[str, tuple[Grant, ...]] = {}
        self.roster = RunningWorkloads(lambda key: self.grants[key])
        self.queue = Queue(weights)
        self.holds = Reservations(StartForecast(self, self.roster), self.roster, ReservationSettings(**settings))
        self.estimator = Estimator(self, self.roster)
        engine = Engine(self.snapshot)
        self.planner = _Counting(self, engine, self.fleet.planner, self._book)
        self.now_s = 0.0
        self.outcomes: list[Any] = []

    def _book(self, each: QueuedWorkload, place: QueuePlan) -> None:
        assert self.planner.made_for[id(place)][0] == each.key, "a plan names the workload it was made for"
        self.snapshot.commit_all(place.grants)
        self.grants[each.key] = place.grants
        milli = requested_milli(each.request)
        self.roster.put(RunningWorkload(each.key, each.namespace, milli, self.now_s, each.run_time))

    def put(self, *works: QueuedWorkload) -> None:
        for each in works:
            self.queue.put(each)

    def run(self, now_s: float | None = None) -> list[str]:
        """One pass; returns who was placed, in order."""
        self.now_s = self.now_s if now_s is None else now_s
        self.planner.made_for.clear()
        self.outcomes = run_cycle(self.queue, self.planner, self.now_s, self.roster, self.holds)
        return [each.workload.key for each in self.outcomes if isinstance(each, Placed)]

    def start(self, *works: QueuedWorkload, now_s: float | None = None) -> None:
        """Have them running."""
        self.put(*works)
        placed = self.run(now_s)
        assert {each.key for each in works} <= set(placed), self.outcomes

    def end(self, key: str) -> None:
        self.roster.drop(key)
        for grant in self.grants.pop(key):
            self.snapshot.release(grant)
            self.queue.handle_event(RoomFreed(self.snapshot.nodes[grant.node].name))

    def nodes(self, key: str) -> list[str]:
        return sorted({self.snapshot.nodes[grant.node].name for grant in self.grants[key]})

    def held(self) -> dict[str, Waiting]:
        return {each.workload.key: each for each in self.outcomes if isinstance(each, Waiting)}

    def given_up(self) -> dict[str, GivenUp]:
        return {each.workload.key: each for each in self.outcomes if isinstance(each, GivenUp)}


class _Counting(FleetPlanner):
    """Counts what it is asked, and remembers which workload each plan was made for."""

    plans = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made_for: dict[int, tuple[str, Any]] = {}  # id of a plan -> the workload, and the plan, which keeps its id
        self.refused: set[str] = set()  # workloads that are refused, whatever is free

    def plan(self, work, avoid, following=NONE_FOLLOW):
        self.plans += 1
        if work.key in self.refused:
            return Refusal(Reason.INSUFFICIENT_GPU, "refused")
        found = super().plan(work, avoid, following)
        self.made_for[id(found)] = work.key, found
        return found

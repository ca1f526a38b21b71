"""A planning pass over a copy of the fleet: it may run in a thread while the event loop answers extender calls.

A pass does not touch the live ledger. The planner commits its decisions afterwards. If the live fleet has changed
meanwhile, the commit is refused and the workload is planned again.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe.apps.scheduler.planning.run_times import RunTimes
from kgwe.apps.scheduler.planning.siblings import Siblings
from kgwe.apps.scheduler.recording.recorder import Draws
from kgwe.kube.api import timestamp
from kgwe.placement.live import scratch
from kgwe.placement.planning import planner
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.plan import FleetView, Plan
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.queue.ask import workload_from_ask
from kgwe.placement.queue.cycle import Failed, Placed, Waiting, run_cycle
from kgwe.placement.queue.earliest_start import StartForecast
from kgwe.placement.queue.eta import Estimator
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.reservations import Reservations
from kgwe.placement.queue.unschedulable import ConfigChanged, RoomFreed
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkload, RunningWorkloads, requested_milli
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.scheduler.recording.recorder import Recorder
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.plan import DomainWeights
    from kgwe.placement.gang.request import Following, GangRequest, Intent
    from kgwe.placement.live.fleet import LiveFleet
    from kgwe.placement.live.ledger import Ledger
    from kgwe.placement.live.scratch import ScratchFleet
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Choosers, Rng
    from kgwe.placement.pod.ranking import Strategy
    from kgwe.placement.pod.score import Weights
    from kgwe.placement.queue.eta import Eta

# Waiting workloads whose start is estimated, and the least time between two estimates.
_ESTIMATED = 200
_ESTIMATE_EVERY_S = 10.0
# Arrivals are numbered: the number orders workloads that were created in the same second.
_ARRIVALS = 1_000_000
# Single pods and gangs up to this size are planned faster than a thread is woken.
_LIGHT_PODS = 32
# More gangs than this are planned together, which takes longer.
_LIGHT_GANGS = 4
# Characters of an error's text that a status shows.
_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of one workload; an empty owner: of none in particular."""

    stage: str
    owner: str
    error: Exception


@dataclass(frozen=True)
class Result:
    """The result of a pass."""

    plans: Sequence[tuple[QueuedWorkload, Plan]]
    refusals: Sequence[tuple[Ask, Refusal]]
    estimates: Mapping[str, Eta]
    #: nodes reserved for workloads of that priority
    kept: Sequence[tuple[int, frozenset[str]]]
    faults: Sequence[Fault] = ()


class PlanningCycle:
    """The queue and what its passes need; used by one thread at a time."""

    def __init__(
        self,
        fleet: LiveFleet,
        choosers: Choosers,
        rng: Rng,
        *,
        on_planned: Callable[[str, float], None] = lambda _strategy, _took_s: None,
        recorder: Recorder | None = None,
        run_times: RunTimes | None = None,
        find_hint: Callable[[str], Mapping[str, float]] = lambda _owner: {},
    ) -> None:
        """`on_planned`: called with the strategy and the time of every plan. `find_hint`: owner -> node -> points."""
        self._find_hint = find_hint
        self._fleet = fleet
        self._choosers = choosers
        self._rng = rng
        self.queue = Queue()
        self._faults: list[Fault] = []
        # Workloads whose start cannot be estimated because of an error.
        self._not_estimated: set[str] = set()
        self._grants: dict[str, Sequence[Grant]] = {}
        self.roster = RunningWorkloads(lambda key: self._grants.get(key, ()))
        self._copy_fleet()
        self._asks: dict[str, Ask] = {}
        self._siblings = Siblings()
        # Owner -> number of its arrival: creation times have whole seconds.
        self._arrivals: dict[str, int] = {}
        self._arrived = 0
        self._generation = fleet.generation
        self._seen = fleet.snapshot.version
        self._estimated_s = 0.0
        self._on_planned = on_planned
        self._recorder = recorder
        self._run_times = run_times or RunTimes()

    def _copy_fleet(self) -> None:
        """Copy the fleet for planning, again whenever the settings of placement change."""
        self._settings = _settings_of(self._fleet)
        self._copy = scratch.ScratchFleet(self._fleet, *self._settings, mix=self._fleet.mix)
        self._masked: ScratchFleet | None = None
        self._holds = Reservations(StartForecast(self._copy, self.roster), self.roster)
        self._estimator = Estimator(self._copy, self.roster)

    # --- on the loop, between passes --------------------------------------------------------------------

    def put(self, ask: Ask) -> None:
        self._asks[ask.owner] = ask
        self._not_estimated.discard(ask.owner)
        self.queue.put(self._queued_workload(ask))

    def put_later(self, ask: Ask, now_s: float, words: str) -> None:
        """Executing its plan failed: queue it again, after a growing pause."""
        self._asks[ask.owner] = ask
        self.queue.retry(self._queued_workload(ask), now_s, self._rng.randrange(1000) / 1000, words)

    def rebuild_queue(self, asks: Iterable[Ask]) -> None:
        """A pass failed in the middle: drop its partial result and queue all that waits."""
        self.queue = Queue(self.queue.weights)
        self._faults = []
        self._asks = {}
        self._copy_fleet()
        for ask in asks:
            self.put(ask)

    def remove(self, owner: str) -> None:
        self._asks.pop(owner, None)
        self._arrivals.pop(owner, None)
        self.queue.drop(owner)
        self._estimator.forget(owner)
        self._not_estimated.discard(owner)

    def _queued_workload(self, ask: Ask) -> QueuedWorkload:
        if ask.owner not in self._arrivals:
            self._arrived = (self._arrived + 1) % _ARRIVALS
            self._arrivals[ask.owner] = self._arrived
        since_s = timestamp.epoch_seconds(ask.since) + self._arrivals[ask.owner] / _ARRIVALS
        run_time = self._run_times.find(ask.owner, ask.expected_s)
        predicted = self._run_times.find_predicted(ask.owner)
        return workload_from_ask(ask, self._fleet.fitter, since_s, run_time, predicted)

    def record_start(self, ask: Ask, now_s: float) -> None:
        """The owner has its place, and counts against its namespace until `sync_fleet` finds that it holds nothing."""
        request = ask.request if ask.gang is None else ask.gang
        pods = ask.pods if ask.gang is None else 1
        self.roster.put(
            RunningWorkload(
                ask.owner,
                ask.namespace,
                requested_milli(request) * pods,
                now_s,
                self._run_times.find(ask.owner, ask.expected_s),
                declared_s=ask.expected_s,
            )
        )
        self._estimator.record_start(ask.owner, now_s)

    def add_running(self, owner: str, namespace: str, milli: int, since_s: float, declared_s: float | None) -> None:
        """Count an owner that had its place before this queue existed against its namespace."""
        run_time = self._run_times.find(owner, declared_s) if since_s else None
        self.roster.put(RunningWorkload(owner, namespace, milli, since_s, run_time, declared_s=declared_s))

    def refresh_run_times(self, owners: Iterable[str]) -> None:
        """Use the new run times of these owners, whether they wait or run."""
        for owner in owners:
            if (ask := self._asks.get(owner)) is not None and owner in self.queue:
                predicted = self._run_times.find_predicted(owner)
                run_time = self._run_times.find(owner, ask.expected_s)
                self.queue.set_run_time(owner, run_time, predicted.p95_s if predicted is not None else 0.0)
            elif (running := self.roster.find(owner)) is not None and running.started_s:
                self.roster.put(replace(running, run_time=self._run_times.find(owner, running.declared_s)))

    def sync_fleet(self, ledger: Ledger, held_by_pods: Mapping[str, int]) -> None:
        """Update the copy from the live fleet and the ledger. `held_by_pods`: namespace -> milli of plain pods."""
        self.roster.set_unqueued(held_by_pods)
        fleet = self._fleet
        if fleet.generation != self._generation:
            self._generation = fleet.generation
            if self._settings != _settings_of(fleet):
                self._copy_fleet()
            self.queue.handle_event(ConfigChanged())
            for ask in [ask for ask in self._asks.values() if ask.divisible]:
                self.queue.put(self._queued_workload(ask))
        else:
            for number in fleet.snapshot.changed_since(self._seen).tolist():
                self.queue.handle_event(RoomFreed(fleet.snapshot.nodes[number].name))
        self._seen = fleet.snapshot.version
        for key in [key for key in self.roster if not ledger.has_seats(key)]:
            self.roster.drop(key)
        self._siblings = Siblings.read({ask.service for ask in self._asks.values()}, ledger)
        self._grants = {occupant.key: ledger.grants(occupant.key) for occupant in self.roster.list_timed()[0]}
        self._copy.sync()

    def plan_now(self, ask: Ask, place: FleetView) -> Plan | Refusal:
        """Plan one ask at once, without the queue."""
        return planner.make_plan(place, ask, choosers=self._choosers, rng=self._rng, explain=False)

    @property
    def is_light(self) -> bool:
        """Whether a pass takes less time than to start it in a thread."""
        active = self.queue.pool.active
        gangs = sum(
            len(bucket.workloads)
            for each in active
            if _count_pods(each.request) > 1
            for bucket in each.buckets.values()
        )
        return (
            gangs <= _LIGHT_GANGS
            and all(_count_pods(each.request) <= _LIGHT_PODS for each in active)
            and not len(self._holds)
        )

    # --- anywhere ---------------------------------------------------------------------------------------

    def run(self, now_s: float) -> Result:
        self._faults = []
        outcomes = run_cycle(self.queue, self, now_s, self.roster, self._holds)
        plans: list[tuple[QueuedWorkload, Plan]] = []
        refusals: list[tuple[Ask, Refusal]] = []
        for outcome in outcomes:
            ask = self._asks[outcome.workload.key]
            if isinstance(outcome, Placed):
                plans.append((outcome.workload, outcome.plan))
            elif isinstance(outcome, Waiting):
                hold = self._holds.get(outcome.workload.key)
                kept = f" {hold.describe()}" if hold else ""
                refusals.append((ask, self._explain_refusal(outcome.workload, outcome.refusal, kept)))
            elif isinstance(outcome, Failed):
                self._faults.append(Fault(outcome.stage, outcome.workload.key, outcome.error))
                refusals.append((ask, error_refusal(outcome.stage, outcome.error)))
            else:
                refusals.append((ask, Refusal(Reason(outcome.reason), outcome.message, possible=False)))
        kept_nodes = [(-hold.rank[0], hold.nodes) for hold in self._holds.list_all()]
        estimates = self._estimate_starts(now_s)
        return Result(plans, refusals, estimates, kept_nodes, self._faults)

    def _explain_refusal(self, work: QueuedWorkload, known: Refusal, kept: str) -> Refusal:
        """The refusal with a diagnosis. It takes longer than a plan, so it is made only if it is reported."""
        ask = self._asks[work.key]
        is_explained = isinstance(known.detail, (Diagnosis, Shortage))
        if known.code is not Reason.HELD_FOR_OTHERS and not is_explained:
            try:
                again = planner.make_plan(self._copy, ask, choosers=self._choosers, rng=self._rng)
            except Exception as exc:  # noqa: BLE001 - an error of this work alone
                self._faults.append(Fault("explain", work.key, exc))
                return error_refusal("explain", exc)
            # It may fit by now, or on reserved nodes: then the short refusal stays.
            known = again if isinstance(again, Refusal) else known
        return replace(known, message=known.message + kept)

    def _estimate_starts(self, now_s: float) -> Mapping[str, Eta]:
        if not len(self.queue) or not len(self.roster) or now_s < self._estimated_s + _ESTIMATE_EVERY_S:
            return {}
        self._estimated_s = now_s
        queued = (
            work
            for work in self.queue.iterate_in_order(self.roster.sum_by_namespace())
            if work.key not in self._not_estimated
        )
        order = self._holds.sort_reserved_first(itertools.islice(queued, _ESTIMATED))
        try:
            return self._estimator.estimate(order, now_s)
        except Exception as exc:  # noqa: BLE001 - the queue moves on without estimates
            if not self._leave_out(order, now_s):
                self._faults.append(Fault("estimate", "", exc))
                return {}
        return self._estimates_without(order, now_s)

    def _leave_out(self, works: Sequence[QueuedWorkload], now_s: float) -> bool:
        """Find, by bisection, the workloads whose estimate fails; they get no estimate from now on."""
        try:
            self._estimator.estimate(works, now_s)
        except Exception as exc:  # noqa: BLE001 - see above
            if len(works) > 1:
                half = len(works) // 2
                first, second = self._leave_out(works[:half], now_s), self._leave_out(works[half:], now_s)
                return first or second
            self._not_estimated.update(work.key for work in works)
            self._faults.extend(Fault("estimate", work.key, exc) for work in works)
            return bool(works)
        return False

    def _estimates_without(self, works: Sequence[QueuedWorkload], now_s: float) -> Mapping[str, Eta]:
        try:
            return self._estimator.estimate([work for work in works if work.key not in self._not_estimated], now_s)
        except Exception as exc:  # noqa: BLE001 - see above
            self._faults.append(Fault("estimate", "", exc))
            return {}

    # --- the planner of run_cycle ------------------------------------------------------------------------

    def plan(self, work: QueuedWorkload, avoid: frozenset[str], following: Following) -> Plan | Refusal:
        place = self._mask_nodes(avoid) if avoid else self._copy
        ask = self._asks[work.key]
        started = time.perf_counter()
        draws = Draws(self._rng)
        asked = replace(ask, following=following, hint=self._find_hint(ask.owner))
        answer: Plan | Refusal | None = None
        for apart in self._siblings.list_avoided(ask.service, self._fleet.tree):
            # Away from the other replicas first; then nearer to them, as long as there is room.
            spread = self._mask_nodes(avoid | apart)
            answer = planner.make_plan(spread, asked, choosers=self._choosers, rng=draws, explain=False)
            if isinstance(answer, Plan):
                place, avoid = spread, avoid | apart
                break
        if not isinstance(answer, Plan):
            if answer is not None and avoid:
                place = self._mask_nodes(avoid)
            answer = planner.make_plan(place, asked, choosers=self._choosers, rng=draws, explain=False)
        self._on_planned(ask.strategy or "score", time.perf_counter() - started)
        if self._recorder is not None:
            self._recorder.record_plan(
                self._copy, _with_strategy(asked, answer, place), answer, avoid=avoid, draws=draws.said
            )
        return answer

    def _mask_nodes(self, avoid: frozenset[str]) -> ScratchFleet:
        """The copy without these nodes."""
        if self._masked is None:
            self._masked = scratch.ScratchFleet(self._copy, *self._settings, mix=self._fleet.mix)
        self._masked.sync(avoid)
        return self._masked

    def arrange_gangs(self, following: Following) -> Sequence[Intent | None]:
        return self._copy.gangs.arrange_gangs(following)

    def commit(self, work: QueuedWorkload, plan: Plan) -> None:
        self._siblings.add(self._asks[work.key].service, (seat.node for seat in plan.seats))
        self._copy.snapshot.commit_all(plan.grants)

    def fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        index = self._copy.snapshot.index
        numbers = np.array([index[name] for name in nodes if name in index], np.intp)
        return scratch.fits_on_any(self._copy.fitter, request, numbers)


def error_refusal(stage: str, error: Exception) -> Refusal:
    """The refusal of a workload whose planning raised an error."""
    what = {"explain": "Explaining why it waits", "hold": "Reserving nodes for it"}.get(stage, "Planning it")
    message = f"{what} failed with an internal error ({type(error).__name__}: {str(error)[:_ERROR_CHARS]})."
    return Refusal(Reason.INTERNAL_ERROR, f"{message} Retrying; other workloads are not affected.")


def _count_pods(request: Request | GangRequest) -> int:
    return getattr(request, "replicas", 1)


def _settings_of(fleet: LiveFleet) -> tuple[Weights, DomainWeights, Strategy]:
    return fleet.weights, fleet.domain_weights, fleet.strategy


def _with_strategy(ask: Ask, answer: Plan | Refusal, place: ScratchFleet) -> Ask:
    """The ask with the strategy that placed it, for a single pod that named none."""
    is_single = isinstance(answer, Plan) and len(answer.seats) == 1 and ask.gang is None
    strategy = place.engine.strategy
    return replace(ask, strategy=strategy) if is_single and not ask.strategy and strategy != "score" else ask

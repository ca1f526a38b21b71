"""The scheduler's own queue in simulated time: `kgwe.placement.queue.cycle` decides who starts, not a model of it.

    Options(dispatcher=dispatcher(Rule.BACKFILL, by_kind(workload)))

places every job by the engine and the gang planner. What the queue is told about run times is the caller's choice:
exact ones, the distribution of those of the job's kind, or nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.queue.cycle import Failed, run_pass
from kgwe.placement.queue.earliest_start import Outlook
from kgwe.placement.queue.eta import Estimator
from kgwe.placement.queue.fleet_planner import FleetPlanner
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.reservations import Holds, Rule, Settings
from kgwe.placement.queue.unschedulable import RoomFreed
from kgwe.placement.queue.work import Occupant, Roster, RunTime, Work, milli_of
from kgwe.sim.dispatch import Dispatcher
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.traces import generate
from kgwe.sim.traces.workload import Job, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.eta import Eta
    from kgwe.placement.queue.fleet_planner import Place
    from kgwe.sim.dispatch import Backfill, Run
    from kgwe.sim.policies.registry import Policy
    from kgwe.sim.recording import JobRecord
    from kgwe.sim.waiting import Waiting

    Predict = Callable[[Job], RunTime | None]


def exact(job: Job) -> RunTime:
    """As long as it takes in its best placement."""
    return RunTime(job.duration_s, job.duration_s)


def unknown(job: Job) -> None:
    """Nothing is known."""
    del job


def by_kind(workload: Workload) -> Predict:
    """What jobs of the same pods take: the median, and what 19 of 20 stay below."""
    taken: dict[object, list[float]] = {}
    for job in workload.jobs:
        taken.setdefault(job.request, []).append(job.duration_s)
    known = {kind: RunTime(*np.percentile(each, (50, 95)).tolist()) for kind, each in taken.items()}
    return lambda job: known[job.request]


def request_of(job: Job, required: str = "") -> GangRequest | None:
    return GangRequest.uniform(job.request, job.pods, required=required) if job.pods > 1 else None


class QueueDispatcher(Dispatcher):
    """Passes of the scheduler's queue instead of the simulator's own."""

    def __init__(
        self,
        world: World,
        jobs: Sequence[Job],
        waiting: Waiting,
        policy: Policy,
        *,
        backfill: Backfill,
        depth: int,
        settings: Settings,
        predict: Predict,
        told: dict[int, Eta] | None = None,
    ) -> None:
        """`told`: where to write down what jobs that have to wait are told on arrival; None: nobody is told."""
        super().__init__(world, jobs, waiting, policy, backfill=backfill, depth=depth)
        self.queue = Queue()
        self.roster = Roster(lambda key: self._grants[key])
        self._grants: dict[str, tuple[Grant, ...]] = {}
        self._predict = predict
        self._now_s = 0.0
        self._start: Callable[[int, tuple[Grant, ...]], None] = lambda _number, _grants: None
        self._seen = world.snapshot.version
        engine = Engine(world.snapshot, fitter=world.fitter)
        self._planner = FleetPlanner(world, engine, GangPlanner(world.fitter, world.tree), self._book)
        self.holds = Holds(Outlook(world, self.roster), self.roster, settings)
        self._told = told
        self._estimator = Estimator(world, self.roster)

    def arrived(self, number: int) -> None:
        job = self._jobs[number]
        self.queue.put(
            Work(
                key=str(number),
                request=request_of(job) or job.request,
                namespace=job.user,
                priority=job.priority,
                since_s=job.arrival_s,
                run_time=self._predict(job),
            )
        )

    def stopped(self, number: int) -> None:
        self.roster.drop(str(number))
        self._grants.pop(str(number))

    def run(
        self,
        now_s: float,
        start: Callable[[int, tuple[Grant, ...]], None],
        end_of: Callable[[int, tuple[Grant, ...]], float],
        ends: Callable[[], Iterable[tuple[float, Run]]],
    ) -> None:
        del end_of, ends
        self._now_s, self._start = now_s, start
        snapshot = self._world.snapshot
        for node in snapshot.newer_than(self._seen).tolist():
            self.queue.wake(RoomFreed(snapshot.nodes[node].name))
        for outcome in run_pass(self.queue, self._planner, now_s, self.roster, self.holds):
            if isinstance(outcome, Failed):
                # A simulation that goes on without the work would compare other things than it says.
                raise outcome.error
        self._seen = snapshot.version
        if self._told is not None:
            self._tell(now_s, self._told)

    def _tell(self, now_s: float, told: dict[int, Eta]) -> None:
        new = [key for key in self.queue.entries if int(key) not in told]
        if new:
            found = self._estimator.estimate(self.holds.first(self.queue.order(self.roster.held)), now_s)
            told.update((int(key), found[key]) for key in new)

    def _book(self, work: Work, place: Place) -> None:
        number = int(work.key)
        self._waiting.take(number, self._jobs[number])
        self._start(number, place.grants)
        self._grants[work.key] = place.grants
        self._estimator.started(work.key, self._now_s)
        self.roster.put(Occupant(work.key, work.namespace, milli_of(work.request), self._now_s, work.run_time))


def dispatcher(rule: Rule, predict: Predict, **settings: float) -> Callable[..., Dispatcher]:
    """For `Options.dispatcher`."""
    return functools.partial(QueueDispatcher, settings=Settings(rule, **settings), predict=predict)  # type: ignore[arg-type]  # numbers of either kind


# --- what was told -----------------------------------------------------------------------------------------


class Calibration(msgspec.Struct, frozen=True):
    """How estimates on arrival came true, of the jobs that had to wait."""

    jobs: int
    #: no estimate
    unknown: int
    #: part of the others that started no later than told; None: there are no others
    within_p50: float | None
    within_p90: float | None
    #: median of the wait told over the real wait
    p50_over_real: float | None
    p90_over_real: float | None


def calibrate(nodes: Sequence[Node], workload: Workload, predict: Predict, rule: Rule = Rule.BACKFILL) -> Calibration:
    """What jobs are told when they begin to wait, against what becomes of them."""
    told: dict[int, Eta] = {}
    world = World.of(nodes)
    make = functools.partial(QueueDispatcher, settings=Settings(rule), predict=predict, told=told)
    run = Simulation(world, workload, lambda *_: _Anywhere(world), Options(dispatcher=make, slowdowns={})).run()
    rows = [
        (eta.p50_s, eta.p90_s, run.records[number].first_start_s, run.records[number].job.arrival_s)
        for number, eta in told.items()
        if eta.p50_s is not None
    ]
    if not rows:
        return Calibration(len(told), len(told), None, None, None, None)
    p50, p90, real, since = np.array(rows, np.float64).reshape(-1, 4).T
    p90 = np.where(np.isnan(p90), np.inf, p90)
    waits = np.maximum(real - since, 1.0)
    return Calibration(
        jobs=len(told),
        unknown=len(told) - len(rows),
        within_p50=float((real <= p50).mean()),
        within_p90=float((real <= p90).mean()),
        p50_over_real=float(np.median((p50 - since) / waits)),
        p90_over_real=float(np.median((p90 - since) / waits)),
    )


# --- comparison ------------------------------------------------------------------------------------------


class Waits(msgspec.Struct, frozen=True):
    """Hours."""

    jobs: int
    mean: float
    p90: float
    max: float


class Row(msgspec.Struct, frozen=True):
    """What became of one workload under one rule."""

    rule: str
    heroes: Waits
    others: Waits
    #: part of capacity in use while jobs arrive
    allocation: float
    #: hours until the last job ended
    hours: float
    unfinished: int


_HOUR_S: Final = 3600.0
_HERO_S: Final = 4 * _HOUR_S


def with_heroes(nodes: Sequence[Node], *, jobs: int, heroes: int, load: float, part: float, seed: int) -> Workload:
    """Research jobs, and now and then one that needs that part of the fleet at once for four hours.

    `load` is of the research jobs alone. All are of one priority: what keeps them apart is the queue.
    """
    cards = nodes[0].shape.cards
    base = generate.generate("research", jobs=jobs, cards=cards * len(nodes), seed=seed, load=load)
    pods = max(1, round(len(nodes) * part))
    whole = Request(Gpus(count=cards), 64_000, 384 << 30)
    added = (
        Job(f"hero-{number}", base.span_s * (number + 1) / (heroes + 1), _HERO_S, whole, pods, user="hero")
        for number in range(heroes)
    )
    return Workload.of("heroes", (*base.jobs, *added))


def compare(
    nodes: Sequence[Node],
    workload: Workload,
    predict: Predict,
    *,
    hero_part: float,
    rules: Iterable[Rule] = Rule,
    **settings: float,
) -> list[Row]:
    """The same work under each rule; heroes ask for at least that part of the fleet."""
    return [_row(nodes, workload, hero_part, rule, dispatcher(rule, predict, **settings)) for rule in rules]


def _row(
    nodes: Sequence[Node], workload: Workload, hero_part: float, rule: Rule, make: Callable[..., Dispatcher]
) -> Row:
    world = World.of(nodes)
    # Spread placements would change run times, and with them what is compared.
    options = Options(dispatcher=make, slowdowns={})
    run = Simulation(world, workload, lambda *_: _Anywhere(world), options).run()
    least = hero_part * world.total
    busy = run.recorder.busy
    return Row(
        rule=str(rule),
        heroes=_waits([record for record in run.records if record.job.milli >= least]),
        others=_waits([record for record in run.records if record.job.milli < least]),
        allocation=busy.allocated / world.total / max(busy.seconds, 1.0),
        hours=run.recorder.whole_run.seconds / _HOUR_S,
        unfinished=run.unfinished,
    )


def _waits(records: Sequence[JobRecord]) -> Waits:
    hours = np.array([record.wait_s / _HOUR_S for record in records if record.wait_s is not None])
    if not len(hours):
        return Waits(0, 0.0, 0.0, 0.0)
    return Waits(len(hours), float(hours.mean()), float(np.percentile(hours, 90)), float(hours.max()))


class _Anywhere:
    """Says which jobs fit the empty fleet, which is all a simulation asks a policy when the queue places."""

    def __init__(self, world: World) -> None:
        self._world = world

    def place(self, job: Job) -> tuple[Grant, ...] | None:
        return () if int(self._world.fitter.room(job.request).sum()) >= job.pods else None

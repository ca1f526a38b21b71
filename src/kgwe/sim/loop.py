"""The simulation: events in time order, and one planning cycle after each moment.

    arrival ──► waiting ──► running ──► finished
                   ▲           │
                   └───────────┘   its node or GPU failed, or its spot node was reclaimed

All devices of jobs are booked in the snapshot of the fleet, so none is used twice. A run depends on fleet, workload,
policy, options and seed only. An interrupted job keeps its position in the queue and continues from its last
checkpoint. `kgwe.sim.job_queue` decides which jobs start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.queue.reservation import ReservationSettings
from kgwe.sim.events import Agenda, Event, Kind
from kgwe.sim.fleet import locality, sensitivity
from kgwe.sim.fleet.faults import Faults, FaultStreams
from kgwe.sim.job_queue import JobQueue, exact_run_time
from kgwe.sim.recording import Fate, JobRecord, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.eta import Eta
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.job_queue import Predict
    from kgwe.sim.policies.registry import PolicyFactory
    from kgwe.sim.traces.workload import Job, Workload

    class Watcher(Protocol):
        """Receives the events of a run."""

        def moment(self, simulation: Simulation, at_s: float) -> None: ...

        def on_start(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
            """Called before the grants are booked."""

        def on_end(self, simulation: Simulation, at_s: float, job: Job) -> None: ...


# Policies have their own random stream, so faults do not depend on a policy's draws.
_POLICY_STREAM = 2**32


@dataclass(frozen=True, slots=True)
class Options:
    #: the rule for jobs behind a blocked job
    reservations: ReservationSettings = field(default_factory=ReservationSettings)
    #: the run times that the queue assumes
    predict: Predict = exact_run_time
    #: receives the estimated start of each job that has to wait; None for no estimates
    told: dict[int, Eta] | None = None
    #: of every n-th job; estimates take most of the time of a run
    told_every: int = 1
    faults: Faults = field(default_factory=Faults)
    seed: int = 1
    slowdowns: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: sensitivity.DEFAULTS)
    #: end of the run; None when all jobs have ended
    until_s: float | None = None
    #: moments per job after which an endless run (jobs that always fail before they end) is stopped
    moments_per_job: int = 1000


@dataclass(slots=True)
class Run:
    """A running job."""

    grants: tuple[Grant, ...]
    release: Callable[[], None]
    started_s: float
    end_s: float
    #: micro-dollars per hour of its devices
    rate_micro: float
    milli: int


class Simulation:
    """One run. `run` may be called once."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        make_policy: PolicyFactory,
        options: Options | None = None,
        watchers: tuple[Watcher, ...] = (),
    ) -> None:
        self.world = world
        self.workload = workload
        self.options = options or Options()
        self.records = [JobRecord(job) for job in workload.jobs]
        self.running: dict[int, Run] = {}
        self.unfinished = len(workload)
        self._watchers = watchers
        seed, start_s = self.options.seed, workload.jobs[0].arrival_s
        self._policy = make_policy(world, workload, np.random.default_rng((seed, _POLICY_STREAM)))
        self.waiting = JobQueue(
            world,
            workload.jobs,
            self._policy,
            settings=self.options.reservations,
            predict=self.options.predict,
            told=self.options.told,
            told_every=self.options.told_every,
        )
        self.recorder = Recorder(world, self.waiting, workload, start_s)
        self._faults = FaultStreams(self.options.faults, world.snapshot.nodes, seed=seed, start_s=start_s)
        self._end_of_fault: dict[Event, Event] = {}
        self._taken_back: set[int] = set()
        self._agenda = Agenda()
        # Remaining time of each job, in seconds of its best placement.
        self._left_s = [job.duration_s for job in workload.jobs]
        self._fewest: dict[tuple[object, int], locality.Spread] = {}
        self._holders: dict[int, set[int]] = {}

    # --- time -------------------------------------------------------------------------------------------

    def run(self) -> Simulation:
        self._begin()
        until_s = self.options.until_s
        for _ in range(self.options.moments_per_job * len(self.workload)):
            if not self.unfinished or not len(self._agenda):
                break
            events = self._agenda.take_moment()
            at_s = events[0].at_s
            if until_s is not None and at_s > until_s:
                self.recorder.advance(max(self.recorder.now_s, until_s))
                break
            self.recorder.advance(at_s)
            for event in events:
                self._handle(event)
            self.waiting.run(at_s, self._start)
            self.recorder.running = len(self.running)
            for watcher in self._watchers:
                watcher.moment(self, at_s)
        self.recorder.finish()
        return self

    def _begin(self) -> None:
        # Each kind is tried once on the empty fleet: a job that does not fit there would wait forever.
        fits: dict[tuple[object, int], bool] = {}
        for number, job in enumerate(self.workload.jobs):
            if job.kind not in fits:
                fits[job.kind] = self._policy.place(job) is not None
                self._fewest[job.kind] = locality.find_least_spread(self.world, job)
            if fits[job.kind]:
                self._agenda.add(Event(job.arrival_s, Kind.ARRIVAL, number))
            else:
                self.records[number].fate = Fate.IMPOSSIBLE
                self.unfinished -= 1
        for fault in self._faults.draw_first():
            self._end_of_fault[fault.event] = fault.end
            self._agenda.add(fault.event)

    def _handle(self, event: Event) -> None:
        match event.kind:
            case Kind.ARRIVAL:
                self._wait(event.subject)
            case Kind.END:
                self._end(event)
            case Kind.NODE_UP:
                self._bring_up(event.subject)
            case Kind.CARD_UP:
                self.world.bring_card_up(event.subject, event.detail)
            case Kind.NODE_DOWN | Kind.CARD_DOWN | Kind.TAKE_BACK:
                self._apply_fault(event)

    def _wait(self, number: int) -> None:
        self.waiting.add(number, self._left_s[number])

    # --- starts -----------------------------------------------------------------------------------------

    def _start(self, number: int, grants: tuple[Grant, ...]) -> None:
        record, now_s = self.records[number], self.recorder.now_s
        job = record.job
        for watcher in self._watchers:
            watcher.on_start(self, now_s, job, grants)
        release = self.world.book(grants)
        rate = sum(self._rate_micro(grant) for grant in grants)
        run = Run(grants, release, now_s, self._end_at(number, grants), rate, self._milli(grants))
        self.running[number] = run
        self.recorder.used_rate += rate
        for grant in grants:
            self._holders.setdefault(grant.node, set()).add(number)
        self._note_start(record, grants)
        self.recorder.useful_milli += run.milli / record.slowdown
        self._agenda.add(Event(run.end_s, Kind.END, number, record.starts))

    def _note_start(self, record: JobRecord, grants: tuple[Grant, ...]) -> None:
        found, best = locality.measure_spread(self.world, grants), self._fewest[record.job.kind]
        record.fate = Fate.RUNNING
        record.starts += 1
        if record.first_start_s is None:
            record.first_start_s = self.recorder.now_s
        record.nodes, record.fewest_nodes = found.nodes, best.nodes
        record.leaves, record.fewest_leaves = found.leaves, best.leaves
        record.slowdown = self._slowdown(record.job, found)

    def _end_at(self, number: int, grants: tuple[Grant, ...]) -> float:
        job = self.workload.jobs[number]
        slower = self._slowdown(job, locality.measure_spread(self.world, grants)) if job.model else 1.0
        return self.recorder.now_s + self._left_s[number] * slower

    def _slowdown(self, job: Job, found: locality.Spread) -> float:
        best = self._fewest[job.kind]
        return sensitivity.slowdown(self.options.slowdowns, job.model, found=found, best=best)

    def _rate_micro(self, grant: Grant) -> float:
        capacity = int(self.world.capacity[grant.node])
        return int(self.world.price_micro[grant.node]) * self.world.milli(grant) / capacity if capacity else 0.0

    def _milli(self, grants: tuple[Grant, ...]) -> int:
        return sum(map(self.world.milli, grants))

    # --- ends and faults --------------------------------------------------------------------------------

    def _end(self, event: Event) -> None:
        number = event.subject
        record = self.records[number]
        if number not in self.running or event.detail != record.starts:
            return  # it was interrupted meanwhile
        self._stop(number)
        self._left_s[number] = 0.0
        record.fate, record.end_s = Fate.FINISHED, event.at_s
        self.unfinished -= 1
        for watcher in self._watchers:
            watcher.on_end(self, event.at_s, record.job)

    def _stop(self, number: int) -> Run:
        run = self.running.pop(number)
        run.release()
        self.recorder.used_rate -= run.rate_micro
        self.recorder.useful_milli -= run.milli / self.records[number].slowdown
        for grant in run.grants:
            self._holders[grant.node].discard(number)
        self.waiting.release(number)
        return run

    def _interrupt(self, number: int, at_s: float) -> None:
        """Return the job to the queue, with its last checkpoint."""
        run, record = self._stop(number), self.records[number]
        job = record.job
        done_before_s = job.duration_s - self._left_s[number]
        done_s = done_before_s + (at_s - run.started_s) / record.slowdown
        saved_s = done_s // job.checkpoint_s * job.checkpoint_s if job.checkpoint_s else done_s
        saved_s = min(max(saved_s, done_before_s), job.duration_s)
        self._left_s[number] = job.duration_s - saved_s
        record.lost_gpu_s += (done_s - saved_s) * run.milli / GPU_MILLI
        self.recorder.lose((done_s - saved_s) * run.milli)
        record.interruptions += 1
        record.fate = Fate.WAITING
        self._wait(number)

    def _apply_fault(self, event: Event) -> None:
        end = self._end_of_fault.pop(event)
        following = self._faults.draw_next(event)
        self._end_of_fault[following.event] = following.end
        self._agenda.add(following.event)
        node, world = event.subject, self.world
        if world.is_down(node) or not self._can_break(event):
            return
        for number in sorted(self._holders.get(node, ())):
            if event.kind is not Kind.CARD_DOWN or _uses_gpu(self.running[number].grants, node, event.detail):
                self._interrupt(number, event.at_s)
        if event.kind is Kind.CARD_DOWN:
            world.take_card_down(node, event.detail)
        else:
            world.take_node_down(node)
        if event.kind is Kind.TAKE_BACK:
            # Reclaimed nodes are not paid for; failed nodes are.
            self._taken_back.add(node)
            self.recorder.paid_rate -= int(world.price_micro[node])
        self._agenda.add(end)

    def _can_break(self, event: Event) -> bool:
        if event.kind is not Kind.CARD_DOWN:
            return True
        node, card = event.subject, event.detail
        if self.world.is_card_down(node, card) or card not in self.world.usable_cards(node):
            return False
        # A part that is down is booked as a pod; if no pod fits any more, an idle GPU cannot be taken down.
        held = any(_uses_gpu(self.running[number].grants, node, card) for number in self._holders.get(node, ()))
        return held or bool(self.world.snapshot.pods[node] > 0)

    def _bring_up(self, node: int) -> None:
        self.world.bring_node_up(node)
        if node in self._taken_back:
            self._taken_back.remove(node)
            self.recorder.paid_rate += int(self.world.price_micro[node])


def _uses_gpu(grants: tuple[Grant, ...], node: int, card: int) -> bool:
    """Return whether any of the grants uses the GPU."""
    return any(
        grant.node == node
        and (
            grant.gpus >> card & 1
            or (grant.share is not None and grant.share[0] == card)
            or any(where == card for where, _ in grant.slices)
        )
        for grant in grants
    )

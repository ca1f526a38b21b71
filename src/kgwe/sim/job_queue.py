"""The scheduler's queue in simulated time: `kgwe.placement.queue.cycle` decides which jobs start, and when.

The simulated policy places the jobs. KGWE's own policies exclude reserved nodes from their search; a job that another
policy would put on reserved nodes waits. `Predict` gives the queue's run times: exact, by distribution, or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.request import NONE_FOLLOW, GangRequest
from kgwe.placement.live import scratch
from kgwe.placement.queue.cycle import Failed, run_cycle
from kgwe.placement.queue.earliest_start import StartForecast
from kgwe.placement.queue.eta import Estimator
from kgwe.placement.queue.fleet_planner import FleetPlanner, QueuePlan
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.reservations import Reservations
from kgwe.placement.queue.unschedulable import RoomFreed
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkload, RunningWorkloads, RunTime, requested_milli
from kgwe.placement.refusal import Reason, Refusal
from kgwe.sim.policies.engine import Kgwe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import Following, Intent
    from kgwe.placement.queue.eta import Eta
    from kgwe.placement.queue.reservation import ReservationSettings
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.policies.registry import Policy
    from kgwe.sim.traces.workload import Job

    Predict = Callable[[Job, float], RunTime | None]
    """The run time that the queue assumes, from the job and its remaining seconds."""


def exact_run_time(job: Job, left_s: float) -> RunTime:
    """Return the remaining time of the job in its best placement."""
    del job
    known_s = max(left_s, 0.001)
    return RunTime(known_s, known_s)


def unknown_run_time(job: Job, left_s: float) -> None:
    """Return an unknown run time."""
    del job, left_s


def request_of(job: Job, required: str = "") -> GangRequest | None:
    """Return the gang of a job; None for a job of one pod."""
    return GangRequest.uniform(job.request, job.pods, required=required) if job.pods > 1 else None


class JobQueue:
    """The waiting jobs, and which of them start at a moment."""

    def __init__(
        self,
        world: World,
        jobs: Sequence[Job],
        policy: Policy,
        *,
        settings: ReservationSettings,
        predict: Predict,
        told: dict[int, Eta] | None = None,
        told_every: int = 1,
    ) -> None:
        """`told` receives the estimated start of every n-th job, if it has to wait, as estimated on arrival."""
        self.queue = Queue()
        self.roster = RunningWorkloads(lambda key: self._grants[key])
        self.holds = Reservations(StartForecast(world, self.roster), self.roster, settings)
        #: GPUs that waiting jobs request, in thousandths
        self.milli = 0
        self._world = world
        self._jobs = jobs
        self._predict = predict
        self._told = told
        self._told_every = told_every
        self._estimator = Estimator(world, self.roster)
        self._grants: dict[str, tuple[Grant, ...]] = {}
        self._seen = world.snapshot.version
        self._now_s = 0.0
        self._start: Callable[[int, tuple[Grant, ...]], None] = lambda _number, _grants: None
        self._planner: FleetPlanner | PolicyPlanner = (
            FleetPlanner(world, policy.engine, policy.gangs, self._book)
            if isinstance(policy, Kgwe)
            else PolicyPlanner(world, jobs, policy, self._book)
        )

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, number: int, left_s: float) -> None:
        """Add a job that waits, or waits again, with `left_s` seconds left."""
        job = self._jobs[number]
        self.milli += job.milli
        self.queue.put(
            QueuedWorkload(
                key=_key(number),
                request=request_of(job) or job.request,
                namespace=job.user,
                priority=job.priority,
                since_s=job.arrival_s,
                run_time=self._predict(job, left_s),
            )
        )

    def release(self, number: int) -> None:
        """Release a job that no longer runs."""
        self.roster.drop(_key(number))
        self._grants.pop(_key(number))

    def run(self, now_s: float, start: Callable[[int, tuple[Grant, ...]], None]) -> None:
        """Start the jobs that can start now."""
        self._now_s, self._start = now_s, start
        snapshot = self._world.snapshot
        for node in snapshot.changed_since(self._seen).tolist():
            self.queue.handle_event(RoomFreed(snapshot.nodes[node].name))
        for outcome in run_cycle(self.queue, self._planner, now_s, self.roster, self.holds):
            if isinstance(outcome, Failed):
                # A simulation that dropped the job would compare different workloads.
                raise outcome.error
        self._seen = snapshot.version
        if self._told is not None:
            self._estimate(now_s, self._told)

    def _estimate(self, now_s: float, told: dict[int, Eta]) -> None:
        new = [key for key in self.queue.entries if int(key) not in told and not int(key) % self._told_every]
        if new:
            found = self._estimator.estimate(
                self.holds.sort_reserved_first(self.queue.iterate_in_order(self.roster.queued_milli)), now_s
            )
            told.update((int(key), found[key]) for key in new)

    def _book(self, work: QueuedWorkload, place: QueuePlan) -> None:
        number = int(work.key)
        self.milli -= self._jobs[number].milli
        self._start(number, place.grants)
        self._grants[work.key] = place.grants
        self._estimator.record_start(work.key, self._now_s)
        self.roster.put(
            RunningWorkload(work.key, work.namespace, requested_milli(work.request), self._now_s, work.run_time)
        )


def _key(number: int) -> str:
    """Return a key that sorts like numbers: of simultaneous jobs the first in the workload comes first."""
    return f"{number:08d}"


class PolicyPlanner:
    """Adapts a simulated policy to the planning cycle of the queue."""

    def __init__(
        self, world: World, jobs: Sequence[Job], policy: Policy, book: Callable[[QueuedWorkload, QueuePlan], None]
    ) -> None:
        self._world = world
        self._jobs = jobs
        self._policy = policy
        self._book = book

    def plan(
        self, work: QueuedWorkload, avoid: frozenset[str], following: Following = NONE_FOLLOW
    ) -> QueuePlan | Refusal:
        del following
        job = self._jobs[int(work.key)]
        grants = self._policy.place(job) if self._has_room(job) else None
        if grants is None:
            return Refusal(Reason.NO_ROOM, "no room")
        nodes = tuple(self._world.snapshot.nodes[grant.node].name for grant in grants)
        if not avoid.isdisjoint(nodes):
            return Refusal(Reason.HELD_FOR_OTHERS, "its nodes are reserved for others")
        return QueuePlan(nodes, grants)

    def arrange_gangs(self, following: Following) -> Sequence[Intent | None]:
        del following
        return ()

    def commit(self, work: QueuedWorkload, plan: QueuePlan) -> None:
        self._book(work, plan)

    def fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        index = self._world.snapshot.index
        numbers = np.array([index[name] for name in nodes if name in index], np.intp)
        return scratch.fits_on_any(self._world.fitter, request, numbers)

    def _has_room(self, job: Job) -> bool:
        """Return whether there is room for these pods at all: a tenth of the cost of a policy's refusal."""
        if job.milli > self._world.idle:
            return False
        return job.pods == 1 or int(self._world.fitter.count_pods(job.request).sum()) >= job.pods

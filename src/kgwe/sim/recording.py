"""What a run leaves behind: the fate of every job, and the state of the fleet over time.

Between two events nothing changes, so amounts over time are exact sums of rectangles. Curves are sampled on a fine grid
while jobs arrive and for half as long again, however long the jobs run, and on a coarse one after that. The coarse grid
grows with the run: when there are too many samples every second one is dropped and the grid is twice as wide.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kgwe.placement.fleet.node import Request
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.job_queue import JobQueue
    from kgwe.sim.traces.workload import Job, Workload

#: the fine grid ends after this many times the time in which jobs arrive; what is left is a few long jobs
FINE_UNTIL = 1.5
_FIRST_SAMPLES = 200
_MOST_COARSE_SAMPLES = 400
# The mix for fragmentation: the most frequent pods up to this part of all, and no more kinds than this.
_TYPICAL_PART = 0.95
_MOST_KINDS = 40
_HOUR_S = 3600.0


class Fate(enum.StrEnum):
    FINISHED = "Finished"
    RUNNING = "Running"
    WAITING = "Waiting"
    #: does not fit the fleet even when it is empty
    IMPOSSIBLE = "Impossible"


@dataclass(slots=True)
class JobRecord:
    """One job; its spread is that of its last start."""

    job: Job
    fate: Fate = Fate.WAITING
    first_start_s: float | None = None
    end_s: float | None = None
    starts: int = 0
    slowdown: float = 1.0
    nodes: int = 0
    fewest_nodes: int = 0
    #: leaves of the network; 0: not known
    leaves: int = 0
    fewest_leaves: int = 0
    #: times it was stopped by something that broke or was taken back
    interruptions: int = 0
    #: card-seconds of work done again
    lost_gpu_s: float = 0.0

    @property
    def wait_s(self) -> float | None:
        return None if self.first_start_s is None else self.first_start_s - self.job.arrival_s

    @property
    def completion_s(self) -> float | None:
        return None if self.end_s is None else self.end_s - self.job.arrival_s


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    #: parts of capacity
    allocated: float
    fragmented: float
    out: float
    #: GPU asked for by jobs that wait, as a part of capacity
    demand: float
    running: int
    waiting: int


@dataclass(slots=True)
class Totals:
    """Sums over time: GPU in milli x seconds, money in micro-dollars."""

    seconds: float = 0.0
    allocated: float = 0.0
    out: float = 0.0
    useful: float = 0.0
    paid_micro: float = 0.0
    used_micro: float = 0.0


@dataclass
class Recorder:
    """Fed by the simulation: `advance` before anything changes."""

    world: World
    waiting: JobQueue
    workload: Workload
    now_s: float
    running: int = 0
    #: micro-dollars per hour, of the nodes that are paid for and of the parts of them that work holds
    paid_rate: float = 0.0
    used_rate: float = 0.0
    #: milli at work, less what a spread placement wastes
    useful_milli: float = 0.0
    whole_run: Totals = field(default_factory=Totals)
    #: while jobs arrive: after that a fleet runs dry whatever the policy
    busy: Totals = field(default_factory=Totals)
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_s = self.now_s
        # Where all jobs come at once, all of the run counts.
        self.busy_until_s = self.workload.jobs[-1].arrival_s if self.workload.span_s else math.inf
        span_s, longest_s = self.workload.span_s, max(job.duration_s for job in self.workload.jobs)
        self._fine_s = span_s / _FIRST_SAMPLES
        self._fine_until_s = self.start_s + FINE_UNTIL * span_s
        self._coarse_s = max(span_s, longest_s / 4) / _FIRST_SAMPLES
        self._fine_samples = 0
        self._due_s = self.start_s
        self._typical = _typical(self.workload)
        self.paid_rate = float(self.world.price_micro.sum())

    def advance(self, to_s: float) -> None:
        """Account for the time since the last event."""
        self._sample(to_s)
        self._count(self.whole_run, to_s - self.now_s)
        self._count(self.busy, min(to_s, self.busy_until_s) - self.now_s)
        self.now_s = to_s

    def _count(self, totals: Totals, passed_s: float) -> None:
        if passed_s > 0:
            totals.seconds += passed_s
            totals.allocated += self.world.allocated * passed_s
            totals.out += self.world.out * passed_s
            totals.useful += self.useful_milli * passed_s
            totals.paid_micro += self.paid_rate * passed_s / _HOUR_S
            totals.used_micro += self.used_rate * passed_s / _HOUR_S

    def lose(self, milli_s: float) -> None:
        """Work that has to be done again was not useful."""
        self.whole_run.useful -= milli_s
        if self.now_s <= self.busy_until_s:
            self.busy.useful -= milli_s

    def _sample(self, to_s: float) -> None:
        if self._due_s >= to_s:
            return
        state = self._state()
        while self._due_s < to_s:
            self.samples.append(Sample(self._due_s, *state))
            self._move_due()

    def _move_due(self) -> None:
        """Set the time of the next sample, after one was taken."""
        if self._due_s < self._fine_until_s:
            self._fine_samples += 1
            self._due_s = min(self.start_s + self._fine_samples * self._fine_s, self._fine_until_s)
            return
        coarse = self.samples[self._fine_samples :]
        if len(coarse) > _MOST_COARSE_SAMPLES:
            coarse = coarse[::2]
            self.samples[self._fine_samples :] = coarse
            self._coarse_s *= 2
        self._due_s = coarse[-1].at_s + self._coarse_s

    def finish(self) -> None:
        """The last sample, where the run ended."""
        self.samples.append(Sample(self.now_s, *self._state()))

    def _state(self) -> tuple[float, float, float, float, int, int]:
        world, total = self.world, max(self.world.total, 1)
        return (
            world.allocated / total,
            fragmented_milli(world, self._typical) / total,
            world.out / total,
            self.waiting.milli / total,
            self.running,
            len(self.waiting),
        )


def _typical(workload: Workload) -> list[tuple[Request, int]]:
    mix = [(request, count) for request, count in workload.mix if request.gpus.count or request.gpus.milli]
    enough = _TYPICAL_PART * sum(count for _, count in mix)
    kept: list[tuple[Request, int]] = []
    covered = 0
    for request, count in mix[:_MOST_KINDS]:
        if covered >= enough:
            break
        kept.append((request, count))
        covered += count
    return kept


def fragmented_milli(world: World, mix: list[tuple[Request, int]]) -> float:
    """Idle GPU, in milli, that a pod drawn from the mix could not use: FGD's measure, over whole cards and shares.

    All of a node where the pod does not fit, and of the others the cards with too little left for it.
    """
    snapshot = world.snapshot
    free = snapshot.milli
    idle = int(free.sum())
    total = sum(count for _, count in mix)
    if not total or not idle:
        return 0.0
    lost = 0.0
    for request, count in mix:
        fits = np.flatnonzero(world.fitter.check_nodes(request) == 0)
        least = 1000 if request.gpus.count else request.gpus.milli
        here = free[fits]
        lost += count * (idle - int(here[here >= least].sum()))
    return lost / total

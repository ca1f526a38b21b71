"""The results of a run: the history of each job, and the state of the fleet over time.

Nothing changes between two events, so amounts over time are exact sums of rectangles. Curves are sampled on a fine
grid while jobs arrive and for half as long again, then on a coarse one. The coarse grid grows with the run: with too
many samples every second one is dropped and the interval doubles.
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

#: the fine grid ends after this multiple of the arrival period; then only a few long jobs are left
FINE_UNTIL = 1.5
_FIRST_SAMPLES = 200
_MOST_COARSE_SAMPLES = 400
# The mix for fragmentation: the most frequent pods up to this fraction of all, and at most this many kinds.
_TYPICAL_PART = 0.95
_MOST_KINDS = 40
_HOUR_S = 3600.0


class Fate(enum.StrEnum):
    FINISHED = "Finished"
    RUNNING = "Running"
    WAITING = "Waiting"
    #: does not fit even on the empty fleet
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
    #: leaves of the network; 0 if unknown
    leaves: int = 0
    fewest_leaves: int = 0
    #: interruptions by faults or reclaimed nodes
    interruptions: int = 0
    #: GPU-seconds of repeated work
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
    #: fractions of capacity
    allocated: float
    fragmented: float
    out: float
    #: GPUs that waiting jobs request, as a fraction of capacity
    demand: float
    running: int
    waiting: int


@dataclass(slots=True)
class Totals:
    """Sums over time: GPUs in milli x seconds, money in micro-dollars."""

    seconds: float = 0.0
    allocated: float = 0.0
    out: float = 0.0
    useful: float = 0.0
    paid_micro: float = 0.0
    used_micro: float = 0.0


@dataclass
class Recorder:
    """Records a simulation; `advance` is called before each change."""

    world: World
    waiting: JobQueue
    workload: Workload
    now_s: float
    running: int = 0
    #: micro-dollars per hour, of paid nodes and of the parts that jobs hold
    paid_rate: float = 0.0
    used_rate: float = 0.0
    #: milli in use, minus the loss by spread placements
    useful_milli: float = 0.0
    whole_run: Totals = field(default_factory=Totals)
    #: while jobs arrive; afterwards the fleet drains with any policy
    busy: Totals = field(default_factory=Totals)
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_s = self.now_s
        # If all jobs arrive at once, the whole run counts.
        self.busy_until_s = self.workload.jobs[-1].arrival_s if self.workload.span_s else math.inf
        span_s, longest_s = self.workload.span_s, max(job.duration_s for job in self.workload.jobs)
        self._fine_s = span_s / _FIRST_SAMPLES
        self._fine_until_s = self.start_s + FINE_UNTIL * span_s
        self._coarse_s = max(span_s, longest_s / 4) / _FIRST_SAMPLES
        self._fine_samples = 0
        self._due_s = self.start_s
        self._typical = _select_typical(self.workload)
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
        """Subtract repeated work from the useful work."""
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
        """Set the time of the next sample."""
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
        """Take the last sample at the end of the run."""
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


def _select_typical(workload: Workload) -> list[tuple[Request, int]]:
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
    """Return the idle GPU milli that a pod drawn from the mix could not use: FGD's measure, over whole GPUs and
    shares.

    It counts all of a node where the pod does not fit, and of other nodes the GPUs with too little left.
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

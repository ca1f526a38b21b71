"""What the simulator runs: jobs with an arrival, a length, and a number of equal pods.

A job's `duration_s` is how long it runs in its best placement; a spread placement or a failure makes it take longer.
All pods of a job start together and end together (a gang); a job of one pod is the ordinary case.

The order of a workload is by arrival, then priority, then name, whatever order the jobs were given in, so that a
trace and its shuffled copy are the same workload.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.placement.fleet.node import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.node import Gpus, Request

#: jobs lose what they did since they last saved their state, when nothing else is said
CHECKPOINT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work: `pods` equal pods that run together."""

    name: str
    arrival_s: float
    duration_s: float
    request: Request
    pods: int = 1
    #: larger goes first
    priority: int = 0
    user: str = ""
    #: what is trained, for how much a spread placement slows it down; empty: not at all
    model: str = ""
    #: time between two saved states; 0: a failure loses nothing (a service that only has to be up)
    checkpoint_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        if self.pods < 1 or not 0 < self.duration_s < math.inf or not 0 <= self.arrival_s < math.inf:
            raise errors.Permanent(
                f"job {self.name}: needs pods of at least 1, an arrival of at least 0 and a duration above 0"
            )
        if not (card_milli(self.request.gpus) or self.request.gpus.slices or self.request.cpu_milli):
            raise errors.Permanent(f"job {self.name}: asks for neither GPU nor CPU")

    @property
    def kind(self) -> tuple[Request, int]:
        """Jobs of one kind are interchangeable to a policy: what is refused to one is refused to all."""
        return self.request, self.pods

    @property
    def milli(self) -> int:
        """GPU of all pods together, in thousandths of a card; slices are counted where they are placed."""
        return self.pods * card_milli(self.request.gpus)


def card_milli(gpus: Gpus) -> int:
    """Whole cards and shares, in thousandths of a card."""
    return gpus.count * GPU_MILLI + gpus.milli


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival. Build with `Workload.of`."""

    name: str
    jobs: tuple[Job, ...]

    @classmethod
    def of(cls, name: str, jobs: Iterable[Job]) -> Workload:
        ordered = sorted(jobs, key=lambda job: (job.arrival_s, -job.priority, job.name))
        names = Counter(job.name for job in ordered)
        doubled = next((each for each, count in names.items() if count > 1), None)
        if doubled is not None:
            raise errors.Permanent(f"workload {name}: two jobs are named {doubled!r}")
        if not ordered:
            raise errors.Permanent(f"workload {name} has no jobs")
        return cls(name, tuple(ordered))

    def __len__(self) -> int:
        return len(self.jobs)

    @cached_property
    def mix(self) -> tuple[tuple[Request, int], ...]:
        """Distinct pods and how often they come, most frequent first."""
        counts: Counter[Request] = Counter()
        for job in self.jobs:
            counts[job.request] += job.pods
        return tuple(counts.most_common())

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s

    @property
    def gpu_seconds(self) -> float:
        """Work in card-seconds, slices aside."""
        return sum(job.milli * job.duration_s for job in self.jobs) / GPU_MILLI

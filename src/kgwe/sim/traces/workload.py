"""Workloads of the simulator: jobs with an arrival, a duration, and a number of equal pods.

A job's `duration_s` is its run time in the best placement; a spread placement or a failure prolongs it. All pods of a
job start and end together (a gang); a job of one pod is the common case.

A workload is ordered by arrival, then priority, then name, so that a trace and its shuffled copy are equal.
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

#: default time between checkpoints; jobs lose the work since the last one
CHECKPOINT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job: `pods` equal pods that run together."""

    name: str
    arrival_s: float
    duration_s: float
    request: Request
    pods: int = 1
    #: larger values come first
    priority: int = 0
    user: str = ""
    #: the trained model, which determines the slowdown by a spread placement; empty for none
    model: str = ""
    #: time between two checkpoints; 0 if a failure loses nothing (a service)
    checkpoint_s: float = CHECKPOINT_S

    def __post_init__(self) -> None:
        if self.pods < 1 or not 0 < self.duration_s < math.inf or not 0 <= self.arrival_s < math.inf:
            raise errors.Permanent(
                f"job {self.name}: needs pods of at least 1, an arrival of at least 0 and a duration above 0"
            )
        if not (card_milli(self.request.gpus) or self.request.gpus.slices or self.request.cpu_milli):
            raise errors.Permanent(f"job {self.name}: requests neither GPU nor CPU")

    @property
    def kind(self) -> tuple[Request, int]:
        """Return the kind: jobs of one kind are interchangeable, and a refusal of one applies to all."""
        return self.request, self.pods

    @property
    def milli(self) -> int:
        """Return the GPUs of all pods, in thousandths; slices are counted where they are placed."""
        return self.pods * card_milli(self.request.gpus)


def card_milli(gpus: Gpus) -> int:
    """Return whole GPUs and shares, in thousandths."""
    return gpus.count * GPU_MILLI + gpus.milli


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival. Build it with `Workload.from_jobs`."""

    name: str
    jobs: tuple[Job, ...]

    @classmethod
    def from_jobs(cls, name: str, jobs: Iterable[Job]) -> Workload:
        ordered = sorted(jobs, key=lambda job: (job.arrival_s, -job.priority, job.name))
        names = Counter(job.name for job in ordered)
        doubled = next((each for each, count in names.items() if count > 1), None)
        if doubled is not None:
            raise errors.Permanent(f"workload {name}: two jobs have the name {doubled!r}")
        if not ordered:
            raise errors.Permanent(f"workload {name} has no jobs")
        return cls(name, tuple(ordered))

    def __len__(self) -> int:
        return len(self.jobs)

    @cached_property
    def mix(self) -> tuple[tuple[Request, int], ...]:
        """Return distinct pods and their frequency, most frequent first."""
        counts: Counter[Request] = Counter()
        for job in self.jobs:
            counts[job.request] += job.pods
        return tuple(counts.most_common())

    @property
    def span_s(self) -> float:
        """Return the time from the first arrival to the last."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s

    @property
    def gpu_seconds(self) -> float:
        """Return the work in GPU-seconds, without slices."""
        return sum(job.milli * job.duration_s for job in self.jobs) / GPU_MILLI

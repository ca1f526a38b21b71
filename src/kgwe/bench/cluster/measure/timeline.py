"""Submission and binding times from audit entries, and the rates derived from them.

    rate    = bound / (last bind - first submit)
    bind    = submit (received by the API server) to binding (response), per submitted object

A submitted object is a pod, a Job or a GPUWorkload. The names of its pods start with the object's name. All names have
the same length, so no name is a prefix of another. Of objects with several pods, each pod is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from kgwe.bench.cluster.measure.audit import Entry

_NAME = "w-{:06d}"
_NAME_LENGTH = len(_NAME.format(0))


def work_name(index: int) -> str:
    return _NAME.format(index)


def owner_of(pod: str) -> str:
    """Return the name of the submitted object that a pod belongs to."""
    return pod[:_NAME_LENGTH]


@dataclass(slots=True)
class Timeline:
    """The events so far of the objects submitted as one kind of resource."""

    #: plural of the submitted resource: pods, jobs or gpuworkloads
    resource: str
    #: whether an object has several pods
    has_many_pods: bool = False
    submitted: dict[str, dt.datetime] = field(default_factory=dict)
    #: time of the response to the last submission
    accepted: dt.datetime | None = None
    bound: dict[str, dt.datetime] = field(default_factory=dict)
    #: refused bindings, and objects that were bound more than once
    refused: int = 0
    doubled: int = 0

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.is_binding:
                self._bind(entry)
            elif entry.object.resource == self.resource and not entry.object.subresource and entry.succeeded:
                self.submitted.setdefault(entry.object.name, entry.received)
                self.accepted = entry.answered

    def _bind(self, entry: Entry) -> None:
        work = entry.object.name if self.has_many_pods else owner_of(entry.object.name)
        if not entry.succeeded:
            self.refused += 1
        elif work in self.bound:
            self.doubled += 1
        else:
            self.bound[work] = entry.answered

    def rate(self) -> float:
        """Return objects bound per second, from the first submission to the last binding."""
        return len(self.bound) / (max(self.bound.values()) - min(self.submitted.values())).total_seconds()

    def submit_s(self) -> float:
        """Return the duration of the submissions. It equals the whole duration if submission is the bottleneck."""
        if self.accepted is None:
            return 0.0
        return (self.accepted - min(self.submitted.values())).total_seconds()

    def bind_seconds(self) -> list[float]:
        """Return the time from submission to binding of each object, ascending."""
        return sorted((at - self.submitted[owner_of(work)]).total_seconds() for work, at in self.bound.items())

    def gang_seconds(self, gangs: Iterable[Sequence[str]]) -> list[float]:
        """Return the time from last submission to last binding of each completely bound gang, ascending."""
        return sorted(
            (max(self.bound[pod] for pod in gang) - max(self.submitted[pod] for pod in gang)).total_seconds()
            for gang in gangs
            if all(pod in self.bound for pod in gang)
        )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]

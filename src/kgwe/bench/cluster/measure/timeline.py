"""From audit entries to rates: which piece of work was submitted when, and bound when.

    rate    = bound / (last bind - first submit)
    bind    = submit (received by the API server) to binding (answered), per piece of work

A piece of work is one object that was submitted: a pod, a Job or a GPUWorkload. Its pod's name starts with its own,
and all names have the same length, so that no name is the start of another.
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
    """The piece of work a pod belongs to."""
    return pod[:_NAME_LENGTH]


@dataclass(slots=True)
class Timeline:
    """What has happened so far to the work submitted as one kind of resource."""

    #: plural of what was submitted: pods, jobs or gpuworkloads
    resource: str
    submitted: dict[str, dt.datetime] = field(default_factory=dict)
    #: when the API server had answered the last submission
    accepted: dt.datetime | None = None
    bound: dict[str, dt.datetime] = field(default_factory=dict)
    #: bindings the API server refused, and pieces of work that were bound more than once
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
        work = owner_of(entry.object.name)
        if not entry.succeeded:
            self.refused += 1
        elif work in self.bound:
            self.doubled += 1
        else:
            self.bound[work] = entry.answered

    def rate(self) -> float:
        """Pieces of work bound per second, from the first submission to the last binding."""
        return len(self.bound) / (max(self.bound.values()) - min(self.submitted.values())).total_seconds()

    def submit_s(self) -> float:
        """How long submitting took; as long as the whole fill, if submitting was what limited it."""
        if self.accepted is None:
            return 0.0
        return (self.accepted - min(self.submitted.values())).total_seconds()

    def bind_seconds(self) -> list[float]:
        """Submission to binding of every piece of work, ascending."""
        return sorted((at - self.submitted[work]).total_seconds() for work, at in self.bound.items())

    def gang_seconds(self, gangs: Iterable[Sequence[str]]) -> list[float]:
        """Last pod submitted to last pod bound of every gang that was bound whole, ascending."""
        return sorted(
            (max(self.bound[pod] for pod in gang) - max(self.submitted[pod] for pod in gang)).total_seconds()
            for gang in gangs
            if all(pod in self.bound for pod in gang)
        )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]

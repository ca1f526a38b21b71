"""Waiting and running workloads as the queue sees them.

A waiting workload is one pod (Request) or a gang (GangRequest). Its run time is known as two points of a distribution,
or not at all; unknown run times are never invented.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang.request import GangRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Gpus, Request
    from kgwe.placement.fleet.snapshot import Grant

    Floats = NDArray[np.float64]

# Odds of the 95th percentile: 19 to 1.
_LOG_ODDS_95: Final = math.log(19.0)
# Beyond this, e to the power of it is of no interest, and near the end of floats.
_STEEPEST: Final = 500.0
# Spreads below this are no distribution: p95 is 1.03 times p50.
_EXACT: Final = 0.01
# A workload that has run for this many times its p95, and a minute, ends at an unknown time: waiting for it could
# take for ever. Of log-logistic run times at most one in fifty gets there.
_OVERDUE: Final = 2.0
_OVERDUE_S: Final = 60.0
# Slices of a GPU are compared by the sevenths of its compute they are named after.
_SEVENTHS: Final = 7
# Orders that are kept: a cycle asks for few quantiles of one moment, many times.
_KEPT_ORDERS: Final = 4


@dataclass(frozen=True, slots=True)
class RunTime:
    """Median and 95th percentile of the run time. Equal: it is known exactly."""

    p50_s: float
    p95_s: float

    def __post_init__(self) -> None:
        if not 0 < self.p50_s <= self.p95_s < math.inf:
            raise errors.Permanent(f"a run time has 0 < p50 <= p95: {self.p50_s:g} s, {self.p95_s:g} s")


def remaining_s(p50_s: Floats, p95_s: Floats, age_s: Floats, part: Floats | float) -> Floats:
    """The quantile `part` of the remaining run time of workloads that have run for `age_s`.

    Run times are modelled as log-logistic: close to the log-normal ones in traces, with a closed form. The longer a
    workload has run, the longer it will. One that was known exactly, and is late, takes as long again as it is late.
    """
    power = np.log(p95_s / p50_s) / _LOG_ODDS_95
    steep = np.maximum(power, 1e-12)
    age = np.maximum(age_s, 0.0)
    with np.errstate(divide="ignore"):
        odds = np.exp(np.clip(np.log(age / p50_s) / steep, -_STEEPEST, _STEEPEST))
    total = p50_s * np.power((1 + odds) / (1 - np.asarray(part)) - 1, power)
    late = np.where(power < _EXACT, age - p95_s, 0.0)
    left: Floats = np.maximum(np.maximum(total, age) - age, late)
    return left


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A waiting workload. Larger priority goes first."""

    key: str
    request: Request | GangRequest
    namespace: str = ""
    priority: int = 0
    since_s: float = 0.0
    run_time: RunTime | None = None
    predicted_p95_s: float = 0.0
    """95th percentile of the run time by history alone; 0: not predicted."""
    timeout_s: float = 0.0
    """How long it may wait in total; 0: no limit."""
    max_attempts: int = 0
    """Consecutive errors after which it is given up; 0: never. Waiting for capacity is no error."""
    first_claim: bool = False
    """It lost its place: it goes before all others of its priority."""
    request_class: Hashable = None
    """Workloads of equal class are refused alike; None: those with the same request."""
    name: str = ""
    """Its name for users, such as `team-a/train`; empty: its key."""

    @property
    def promise_s(self) -> float | None:
        """The time within which it ends, 19 times out of 20; None: unknown.

        History counts where it is longer: a user who declares too little must not go ahead of others.
        """
        return None if self.run_time is None else max(self.run_time.p95_s, self.predicted_p95_s)

    @property
    def level(self) -> tuple[int, bool]:
        """Lower levels go first; within a level, namespaces share fairly."""
        return -self.priority, not self.first_claim


def request_class_of(workload: QueuedWorkload) -> Hashable:
    if workload.request_class is not None:
        return workload.request_class
    request = workload.request
    if isinstance(request, GangRequest) and (request.name or request.priority):
        return dataclasses.replace(request, name="", priority=0)
    return request


def requested_milli(request: Request | GangRequest) -> int:
    """Requested GPUs in thousandths, at least 1: workloads without GPUs count in fair sharing too."""
    if isinstance(request, GangRequest):
        return max(1, sum(role.required_replicas * gpu_milli(role.request.gpus) for role in request.roles))
    return max(1, gpu_milli(request.gpus))


def gpu_milli(gpus: Gpus) -> int:
    """Thousandths of a GPU; a slice counts by its compute slices."""
    if gpus.slices:
        sevenths = gpus.profile.partition("g.")[0]
        return gpus.slices * GPU_MILLI * (int(sevenths) if sevenths.isdigit() else 1) // _SEVENTHS
    return gpus.count * GPU_MILLI + gpus.milli


# --- running workloads -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A workload that has its place."""

    key: str
    namespace: str
    milli: int
    started_s: float
    run_time: RunTime | None = None
    declared_s: float | None = None
    """Run time that its user declared."""


class RunningWorkloads:
    """Running workloads, the GPUs that namespaces use, and when workloads end."""

    def __init__(self, grants_of: Callable[[str], Sequence[Grant]]) -> None:
        self.grants_of = grants_of
        """Key -> the grants of the workload in the current snapshot."""
        self.queued_milli: dict[str, int] = {}
        """Namespace -> milli."""
        # Namespace -> milli used by pods that were never queued, such as plain pods.
        self._unqueued_milli: Mapping[str, int] = {}
        self._workloads: dict[str, RunningWorkload] = {}
        self._timed: tuple[list[RunningWorkload], Floats] | None = None
        # (moment, quantile) -> workloads sorted by their end
        self._sorted: dict[tuple[float, float], Sequence[tuple[float, RunningWorkload]]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._workloads

    def __len__(self) -> int:
        return len(self._workloads)

    def __iter__(self) -> Iterator[str]:
        return iter(self._workloads)

    def find(self, key: str) -> RunningWorkload | None:
        return self._workloads.get(key)

    def list_of_namespace(self, namespace: str) -> list[RunningWorkload]:
        return [each for each in self._workloads.values() if each.namespace == namespace]

    def sum_by_namespace(self) -> dict[str, int]:
        """Namespace -> milli used, queued and unqueued."""
        found = dict(self.queued_milli)
        for namespace, milli in self._unqueued_milli.items():
            found[namespace] = found.get(namespace, 0) + milli
        return found

    def set_unqueued(self, milli_by_namespace: Mapping[str, int]) -> None:
        """Set the usage of pods that were never queued."""
        self._unqueued_milli = dict(milli_by_namespace)

    def put(self, workload: RunningWorkload) -> None:
        self.drop(workload.key)
        self._workloads[workload.key] = workload
        self.queued_milli[workload.namespace] = self.queued_milli.get(workload.namespace, 0) + workload.milli
        self._timed = None

    def drop(self, key: str) -> None:
        workload = self._workloads.pop(key, None)
        if workload is None:
            return
        left = self.queued_milli[workload.namespace] - workload.milli
        if left:
            self.queued_milli[workload.namespace] = left
        else:
            del self.queued_milli[workload.namespace]
        self._timed = None

    def list_timed(self) -> tuple[list[RunningWorkload], Floats]:
        """Workloads with a known run time, and their start, p50 and p95 as rows."""
        if self._timed is None:
            listed = [each for each in self._workloads.values() if each.run_time is not None]
            rows = [(o.started_s, o.run_time.p50_s, o.run_time.p95_s) for o in listed if o.run_time is not None]
            self._timed = listed, np.array(rows, np.float64).reshape(-1, 3).T
        return self._timed

    @property
    def are_exact(self) -> bool:
        """Whether all known run times are exact: every quantile of their ends is the same."""
        _, (_, p50, p95) = self.list_timed()
        return bool((p50 == p95).all())

    def find_overdue(self, now_s: float) -> NDArray[np.bool_]:
        """Which of `list_timed` run for so long that their run time says nothing about their end."""
        _, (started, _, p95) = self.list_timed()
        found: NDArray[np.bool_] = now_s - started > _OVERDUE * p95 + _OVERDUE_S
        return found

    def sort_by_end(self, now_s: float, part: float = 0.5) -> Sequence[tuple[float, RunningWorkload]]:
        """Workloads with a known end, sorted by the given quantile of it; those that are overdue have none."""
        if self._timed is None or len(self._sorted) >= _KEPT_ORDERS:
            self._sorted.clear()
        found = self._sorted.get((now_s, part))
        if found is None:
            listed, (started, p50, p95) = self.list_timed()
            ends = now_s + remaining_s(p50, p95, now_s - started, part)
            is_overdue = self.find_overdue(now_s)
            order = np.argsort(ends, kind="stable").tolist()
            found = self._sorted[now_s, part] = [(float(ends[i]), listed[i]) for i in order if not is_overdue[i]]
        return found

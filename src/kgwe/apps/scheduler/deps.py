"""The collaborators of the leader's controllers, built once by the process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.scheduler.budgets.objects import BudgetObjects
    from kgwe.apps.scheduler.budgets.rates import RateSource
    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.planning_errors import PlanningErrors
    from kgwe.apps.scheduler.recording.recorder import Recorder
    from kgwe.apps.scheduler.settings import Settings
    from kgwe.apps.scheduler.sharing.decisions import SharingDecisions
    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.events import EventRecorder
    from kgwe.kube.translate.quota_room import Quota
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.planning.custom_strategies import Choosers
    from kgwe.placement.queue.workloads import RunTime
    from kgwe.telemetry.tracing import Tracer


class PredictionSource(Protocol):
    """Predicts run times: the optimizer over gRPC, or a predictor in this process."""

    async def predict(self, workloads: Sequence[WorkloadDescription]) -> Sequence[RunTime | None]:
        """Return a run time, or None for unknown, for each workload. Raise a KgweError if the source is down."""
        ...

    async def close(self) -> None: ...


class HintSource(Protocol):
    """Forecasts on which nodes a workload would run faster or slower: the optimizer over gRPC."""

    async def find_hint(self, workload: WorkloadDescription) -> Mapping[str, float]:
        """Return node -> points; raise a KgweError if the source is down."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BudgetSource:
    """What budgets are enforced with."""

    objects: BudgetObjects
    rates: RateSource
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Deps:
    """What the leader's controllers share."""

    #: refuses to write once another replica may hold the Lease
    client: KubeClient
    state: ClusterState
    gangs: ExternalGangs
    settings: Settings
    events: EventRecorder
    metrics: Metrics
    #: counts errors of planning
    faults: PlanningErrors
    tracer: Tracer
    rng: random.Random
    choosers: Choosers
    #: records decisions; None: recording is off
    recorder: Recorder | None = None
    #: predicts run times; None: only declared ones are used
    predictions: PredictionSource | None = None
    #: forecasts of how nodes suit workloads; None: there is no optimizer
    hints: HintSource | None = None
    #: GPUBudgets and prices; None: budgets are not enforced
    budgets: BudgetSource | None = None
    #: decisions of GPUSharingPolicies; None: they are not read
    sharing: SharingDecisions | None = None
    #: ResourceQuotas, for gangs that are planned before their pods exist
    list_quotas: Callable[[], Iterable[Quota]] = tuple
    #: the bytes of a pod as the API server sent them, where they were kept
    bytes_of: Callable[[core.Pod], bytes] = lambda _: b""

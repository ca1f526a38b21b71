"""`/api/v1/waste` and `/api/v1/predictions`: what the optimizer finds and expects."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.console.lists import Name  # noqa: TC001 - read by msgspec when it describes the query
from kgwe.httpapi import problems
from kgwe.httpapi.routes import NoQuery, Route
from kgwe.kube.api import resources, timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.scope import ScopeReader
    from kgwe.httpapi.authentication import User
    from kgwe.optimizerapi.client import OptimizerClient
    from kgwe.proto import optimizer_pb2 as pb

_KEEP_S: Final = 5.0
_MISSING: Final = "no optimizer is configured: set optimizerAddress of the console (see docs/console.md)"


class WasteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/waste`."""

    namespace: Annotated[Name, msgspec.Meta(description="Only this namespace.")] = ""


class FindingRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A pod that wastes GPUs, what to do, and the command for it."""

    namespace: str
    pod: str
    state: str
    gpus: float
    owner: str = ""
    waste_score: float | None = None
    activity: float | None = None
    idle_seconds: float | None = None
    cost_per_hour: float | None = None
    action: str = ""
    target: str = ""
    saving_per_hour: float | None = None
    confidence: float = 0.0
    reasons: list[str] = []
    command: Annotated[str, msgspec.Meta(description="What to run to follow the advice; empty: nothing.")] = ""
    feasible: bool | None = None


class WasteReply(msgspec.Struct, frozen=True, rename="camel"):
    """Findings about pods that the user may list, the largest saving first."""

    findings: list[FindingRow]
    saving_per_hour: float
    judged: Annotated[str, msgspec.Meta(description="When the pods were judged; empty: not yet.")]
    problem: Annotated[str, msgspec.Meta(description="Why usage is missing or old.")]


class ForecastRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """GPUs of one model that are expected to be in use."""

    hours_ahead: int
    gpus: float | None = None
    lower: float | None = None
    upper: float | None = None
    coverage: float = 0.0
    reasons: list[str] = []


class DemandRow(msgspec.Struct, frozen=True, rename="camel"):
    """Demand for one GPU model."""

    model: str
    gpus: float | None
    recorded_hours: int
    forecasts: list[ForecastRow]


class PredictionReply(msgspec.Struct, frozen=True):
    """Forecasts of demand; only for users who see the whole fleet."""

    demand: list[DemandRow]


class AdviceRoutes:
    """Asks the optimizer, and keeps its answers for some seconds."""

    def __init__(
        self,
        watch: ClusterWatch,
        scopes: ScopeReader,
        optimizer: OptimizerClient | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._scopes = scopes
        self._optimizer = optimizer
        self._clock = clock
        self._known: dict[str, tuple[float, Any]] = {}
        self._asking = asyncio.Lock()

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "/api/v1/waste",
                "Pods that waste GPUs, and what to do",
                WasteQuery,
                WasteReply,
                self.read_waste,
                "advice",
            ),
            Route("/api/v1/predictions", "Expected demand", NoQuery, PredictionReply, self.read_demand, "advice"),
        ]

    async def read_waste(self, user: User, query: WasteQuery) -> WasteReply:
        """Return findings about pods that the user may list."""
        scope = await self._scopes.read(user)
        found = await self._ask("findings", lambda optimizer: optimizer.list_findings())
        names = {pod.metadata.key for pod in list(self._watch.stores.get(resources.POD, {}).values())}
        rows = [
            _describe_finding(each)
            for each in found.findings
            if scope.pods.covers(each.namespace)
            and query.namespace in {"", each.namespace}
            and f"{each.namespace}/{each.pod}" in names
        ]
        rows.sort(key=lambda row: (-(row.saving_per_hour or 0.0), -(row.waste_score or 0.0), row.namespace, row.pod))
        saving = sum(row.saving_per_hour or 0.0 for row in rows)
        judged = timestamp.format_time(found.judged_s) if found.HasField("judged_s") else ""
        return WasteReply(rows, round(saving, 4), judged, found.source_problem)

    async def read_demand(self, user: User, _query: NoQuery) -> PredictionReply:
        """Return forecasts of the whole fleet."""
        if not (await self._scopes.read(user)).sees_fleet:
            raise problems.forbidden("forecasts are about the whole fleet: they need list of nodes, gpunodes and pods")
        found = await self._ask("demand", lambda optimizer: optimizer.predict_demand())
        return PredictionReply([_describe_demand(each) for each in found.models])

    async def _ask(self, name: str, call: Callable[[OptimizerClient], Awaitable[Any]]) -> Any:
        if self._optimizer is None:
            raise problems.unavailable(_MISSING)
        async with self._asking:
            known = self._known.get(name)
            if known is None or known[0] <= self._clock():
                try:
                    known = self._known[name] = self._clock() + _KEEP_S, await call(self._optimizer)
                except errors.Transient as exc:
                    raise problems.unavailable(f"the optimizer does not answer: {exc}") from exc
            return known[1]


def _describe_finding(found: pb.Finding) -> FindingRow:
    advice = found.recommendation

    def read(message: Any, name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return FindingRow(
        namespace=found.namespace,
        pod=found.pod,
        state=found.state,
        gpus=found.gpus,
        owner=f"{found.owner_kind}/{found.owner_name}" if found.owner_name else "",
        waste_score=read(found, "waste_score"),
        activity=read(found, "activity"),
        idle_seconds=read(found, "idle_s"),
        cost_per_hour=read(found, "cost_per_hour"),
        action=advice.action,
        target=advice.target,
        saving_per_hour=read(advice, "saving_per_hour"),
        confidence=advice.confidence,
        reasons=[*found.reasoning, *advice.reasoning],
        command=write_command(found),
        feasible=read(advice, "is_feasible"),
    )


def write_command(found: pb.Finding) -> str:
    """Return the command that follows the advice; empty if there is none."""
    advice, kind, name = found.recommendation, found.owner_kind, found.owner_name
    if not name or advice.action in {"", "None"}:
        return ""
    where = f"-n {found.namespace}"
    if kind != "GPUWorkload":
        return f"kubectl edit {kind.lower()} {name} {where}"
    patches = {
        "Suspend": '{"spec":{"suspend":true}}',
        "MIGProfile": f'{{"spec":{{"gpuRequirements":{{"count":null,"mig":{{"profile":"{advice.target}",'
        '"count":1}}}}',
        "Share": f'{{"spec":{{"gpuRequirements":{{"count":null,"share":{advice.target or 0.5}}}}}}}',
        "FewerGPUs": f'{{"spec":{{"gpuRequirements":{{"count":{advice.target or 1}}}}}}}',
    }
    patch = patches.get(advice.action)
    if patch is None:
        return f"kubectl edit gpuworkloads.kgwe.nvidia.io {name} {where}"
    return f"kubectl patch gpuworkloads.kgwe.nvidia.io {name} {where} --type merge -p '{patch}'"


def _describe_demand(found: pb.ModelDemand) -> DemandRow:
    rows = [
        ForecastRow(
            each.hours_ahead,
            each.gpus if each.HasField("gpus") else None,
            each.lower if each.HasField("lower") else None,
            each.upper if each.HasField("upper") else None,
            each.coverage,
            list(each.reasoning),
        )
        for each in found.forecasts
    ]
    return DemandRow(found.gpu_model, found.gpus if found.HasField("gpus") else None, found.recorded_hours, rows)

"""The calls of the optimizer's gRPC service."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgwe import errors
from kgwe.apps.optimizer.waste.detector import Assessment, select_findings
from kgwe.apps.optimizer.waste.savings import sum_realized
from kgwe.optimizerapi import messages
from kgwe.optimizerapi.client import MAX_BATCH
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from kgwe.apps.optimizer.inbox import TelemetryInbox
    from kgwe.apps.optimizer.waste.detector import Assessed
    from kgwe.apps.optimizer.waste.savings import Entry
    from kgwe.model.usage.description import WorkloadDescription

_MAX_NODES: Final = 10_000
_MAX_NAME: Final = 253
# Workloads of a request for which histories of GPU use are read from the store.
_FEW: Final = 50
_MIN_LOOKBACK_S: Final = 60.0
_MAX_LOOKBACK_S: Final = 7 * 86400.0
_MAX_SCORE: Final = 100


class Forecasts(Protocol):
    """What is predicted about workloads."""

    def predict(self, workloads: Sequence[WorkloadDescription], now_s: float) -> list[pb.Prediction]: ...

    def find_hints(self, workload: WorkloadDescription, nodes: Sequence[str]) -> list[pb.NodeHint]: ...

    def classify(self, workload: WorkloadDescription) -> pb.ClassifyReply: ...

    def describe_pod(self, namespace: str, name: str, now_s: float) -> tuple[list[str], pb.Prediction | None]:
        """Return what is known of a pod or workload, one sentence each, and its prediction. Raise NotFound."""
        ...

    def fill_metrics(self, reply: pb.MetricsReply) -> None: ...


class Demand(Protocol):
    """What is forecast about GPUs in use."""

    def predict(self, gpu_model: str = "") -> pb.DemandReply: ...


class Savings(Protocol):
    """What is known of followed recommendations."""

    @property
    def entries(self) -> list[Entry]: ...

    def describe(self, namespace: str, name: str) -> list[str]:
        """Return a sentence for each followed recommendation of an owner."""
        ...


class OptimizerService:
    """Answers from memory. One method per call, with the names of the protocol."""

    def __init__(
        self,
        forecasts: Forecasts,
        inbox: TelemetryInbox,
        *,
        assessment: Callable[[], Assessment],
        assess: Callable[[float], Awaitable[Assessment]],
        load_histories: Callable[[Sequence[str]], Awaitable[None]],
        now: Callable[[], float],
        savings: Savings | None = None,
        demand: Demand | None = None,
        find_cluster_uid: Callable[[], str] = lambda: "",
    ) -> None:
        """`assessment`: the last judgement; `assess`: judges so many seconds before now.

        `load_histories`: reads the GPU use of fingerprints from the store.
        """
        self._load_histories = load_histories
        self._savings = savings
        self._demand = demand
        self._find_cluster_uid = find_cluster_uid
        self._forecasts = forecasts
        self._inbox = inbox
        self._assessment = assessment
        self._assess = assess
        self._now = now

    async def PredictResources(self, request: pb.PredictRequest, context: Any) -> pb.PredictReply:  # noqa: N802 - the protocol's name
        del context
        if len(request.workloads) > MAX_BATCH:
            raise errors.Permanent(f"{len(request.workloads)} workloads in one request; the most is {MAX_BATCH}")
        now_s = self._now()
        workloads = [messages.decode_workload(each, now_s) for each in request.workloads]
        if len(workloads) <= _FEW:
            # The scheduler asks for many at a time, and only for run times.
            with contextlib.suppress(errors.KgweError):
                await self._load_histories([each.make_fingerprint().key for each in workloads])
        known = pb.MetricsReply()
        self._forecasts.fill_metrics(known)
        return pb.PredictReply(predictions=self._forecasts.predict(workloads, now_s), model_version=known.model_version)

    async def GetPlacement(self, request: pb.PlacementRequest, context: Any) -> pb.PlacementReply:  # noqa: N802
        del context
        if len(request.nodes) > _MAX_NODES:
            raise errors.Permanent(f"{len(request.nodes)} nodes in one request; the most is {_MAX_NODES}")
        if any(len(name) > _MAX_NAME for name in request.nodes):
            raise errors.Permanent(f"the name of a node has at most {_MAX_NAME} characters")
        workload = messages.decode_workload(request.workload, self._now())
        with contextlib.suppress(errors.KgweError):
            await self._load_histories([workload.make_fingerprint().key])
        return pb.PlacementReply(hints=self._forecasts.find_hints(workload, list(request.nodes)))

    async def IngestTelemetry(self, requests: AsyncIterator[pb.Telemetry], context: Any) -> pb.IngestReply:  # noqa: N802
        del context
        return await self._inbox.receive(requests)

    async def GetMetrics(self, request: pb.MetricsRequest, context: Any) -> pb.MetricsReply:  # noqa: N802
        del request, context
        assessment = self._assessment()
        reply = pb.MetricsReply(
            samples_accepted=self._inbox.accepted,
            samples_rejected=self._inbox.rejected,
            source_problem=assessment.problem,
            findings=len(assessment.findings),
            cluster_uid=self._find_cluster_uid(),
        )
        self._forecasts.fill_metrics(reply)
        if self._savings is not None:
            entries = self._savings.entries
            reply.recommendations_followed = sum(each.followed_s is not None for each in entries)
            reply.realized_saving_per_hour = sum(sum_realized(entries).values())
        return reply

    async def Classify(self, request: pb.ClassifyRequest, context: Any) -> pb.ClassifyReply:  # noqa: N802
        del context
        return self._forecasts.classify(messages.decode_workload(request.workload, self._now()))

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainReply:  # noqa: N802
        del context
        messages.check_texts(request, _MAX_NAME)
        saved = self._savings.describe(request.namespace, request.name) if self._savings is not None else []
        try:
            reasons, prediction = self._forecasts.describe_pod(request.namespace, request.name, self._now())
        except errors.NotFound:
            if not saved:
                raise
            # A suspended workload has no pods.
            reasons, prediction = [], None
        mine = [
            each
            for each in self._assessment().findings
            if each.facts.key.namespace == request.namespace
            and request.name in {each.facts.key.name, each.facts.owner_name}
        ]
        return pb.ExplainReply(
            findings=[encode_finding(each) for each in mine], reasoning=[*reasons, *saved], prediction=prediction
        )

    async def ListFindings(self, request: pb.FindingsRequest, context: Any) -> pb.FindingsReply:  # noqa: N802
        del context
        messages.check_texts(request, _MAX_NAME)
        # Usage is kept in minutes, so a shorter time has none.
        if request.lookback_s != 0 and not _MIN_LOOKBACK_S <= request.lookback_s <= _MAX_LOOKBACK_S:
            limits = f"0, or from {_MIN_LOOKBACK_S:.0f} to {_MAX_LOOKBACK_S:.0f}"
            raise errors.Permanent(f"lookback_s must be {limits}, not {request.lookback_s}")
        if not 0 <= request.min_waste_score <= _MAX_SCORE:
            raise errors.Permanent(f"min_waste_score must be from 0 to {_MAX_SCORE}, not {request.min_waste_score}")
        assessment = await self._assess(request.lookback_s) if request.lookback_s else self._assessment()
        chosen = select_findings(assessment.findings, request.namespace, request.min_waste_score)
        return pb.FindingsReply(
            findings=[encode_finding(each) for each in chosen],
            judged_s=assessment.at_s or None,
            source_problem=assessment.problem,
        )

    async def PredictDemand(self, request: pb.DemandRequest, context: Any) -> pb.DemandReply:  # noqa: N802
        del context
        messages.check_texts(request, _MAX_NAME)
        return pb.DemandReply() if self._demand is None else self._demand.predict(request.gpu_model)


def encode_finding(each: Assessed) -> pb.Finding:
    """Return the message of a finding. Absent values stay absent."""
    facts, finding, verdict = each.facts, each.finding, each.finding.verdict
    memory = None
    if verdict is not None and verdict.memory_peak_mib is not None and verdict.memory_total_mib:
        memory = verdict.memory_peak_mib / verdict.memory_total_mib
    advised = each.recommendation
    return pb.Finding(
        namespace=facts.key.namespace,
        pod=facts.key.name,
        owner_kind=facts.owner_kind,
        owner_name=facts.owner_name,
        state=str(finding.state) if finding.kind.is_waste else "imbalance",
        waste_score=finding.score,
        activity=verdict.activity if verdict is not None else None,
        memory=memory,
        gpus=facts.fingerprint.shape.milli_gpus / 1000,
        cost_per_hour=advised.hourly_cost if advised is not None else None,
        recommendation=_encode_recommendation(each),
        reasoning=[finding.message],
    )


def _encode_recommendation(each: Assessed) -> pb.Recommendation:
    advised = each.recommendation
    if advised is None:
        return pb.Recommendation(action="None")
    return pb.Recommendation(
        action=str(advised.action),
        target=str(advised.alternative) if advised.alternative is not None else "",
        saving_per_hour=advised.hourly_saving if not advised.is_advice_only else None,
        confidence=advised.confidence,
        reasoning=advised.reasons,
        is_feasible=advised.is_feasible,
    )

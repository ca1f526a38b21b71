"""Forecasts about workloads, put together from run times, memory, class and price. Answers come from memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kgwe import errors
from kgwe.forecast.classification.classify import classify
from kgwe.forecast.classification.kinds import WorkloadClass
from kgwe.forecast.memory import predict_memory
from kgwe.forecast.podfacts import PodFacts as SpecFacts
from kgwe.forecast.preallocators import Answer, detect_preallocation
from kgwe.forecast.resources import forecast_resources
from kgwe.forecast.waste import gpu_parts
from kgwe.model.units import phrasing
from kgwe.model.usage.description import WorkloadDescription
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.history.runs import RunTracker
    from kgwe.apps.optimizer.waste.detector import Assessment
    from kgwe.apps.optimizer.waste.needs import UsageHistory
    from kgwe.forecast.runtime.query import Prediction
    from kgwe.forecast.waste.recommend import Prices


class RunTimeForecast(Protocol):
    """Predicts how long workloads run."""

    def predict(self, workload: WorkloadDescription, now_s: float) -> Prediction: ...

    def count_runs(self, fingerprint: str) -> int:
        """Return how many runs of a fingerprint have ended."""
        ...

    def fill_metrics(self, reply: pb.MetricsReply) -> None: ...


class WorkloadForecasts:
    """Everything that the optimizer predicts about a workload."""

    def __init__(
        self,
        run_times: RunTimeForecast,
        tracker: RunTracker,
        prices: Prices,
        *,
        histories: Callable[[str], UsageHistory],
        hints: Callable[[WorkloadDescription, Sequence[str]], list[pb.NodeHint]],
        assessment: Callable[[], Assessment],
        on_prediction: Callable[[bool, float], None] = lambda _is_known, _seconds: None,
    ) -> None:
        """`histories`: fingerprint -> its GPU use.

        `on_prediction`: called with whether each prediction is known, and the seconds it took.
        """
        self._histories = histories
        self._hints = hints
        self._run_times = run_times
        self._tracker = tracker
        self._prices = prices
        self._assessment = assessment
        self._on_prediction = on_prediction
        self.made = 0
        self.unknown = 0

    def predict(self, workloads: Sequence[WorkloadDescription], now_s: float) -> list[pb.Prediction]:
        """Return one prediction for each workload, in order."""
        return [self._predict_one(each, now_s) for each in workloads]

    def _predict_one(self, workload: WorkloadDescription, now_s: float) -> pb.Prediction:
        started = time.perf_counter()
        fingerprint = workload.make_fingerprint()
        run_time = self._run_times.predict(workload, now_s)
        self.made += 1
        self.unknown += not run_time.is_known
        self._on_prediction(run_time.is_known, time.perf_counter() - started)
        known = self._histories(fingerprint.key)
        preallocation = detect_preallocation(describe_spec(workload))
        memory = predict_memory(
            known.peaks,
            known.out_of_memory,
            is_preallocator=bool(preallocation.engine) and preallocation.answer is not Answer.NO,
        )
        found = forecast_resources(
            requested_gpus=workload.gpus,
            runtime=run_time,
            memory=memory,
            peaks=known.peaks,
            gpu_memory_mib=_find_memory(workload.gpu_model),
            profiles=_list_profiles(workload.gpu_model),
            price_per_gpu_hour=self._prices.find(workload.gpu_model, is_spot=False) if workload.gpu_model else None,
        )
        return pb.Prediction(
            is_known=run_time.is_known or memory.is_known,
            recommended_gpus=found.recommended_gpus,
            recommended_memory_gb=found.recommended_memory_gb,
            expected_utilization=found.expected_utilization,
            expected_duration_seconds=found.expected_duration_seconds,
            duration_lower_seconds=found.duration_lower_seconds,
            duration_upper_seconds=found.duration_upper_seconds,
            duration_quantiles=[pb.Quantile(q=q, seconds=s) for q, s in sorted(run_time.quantiles.items())],
            coverage=run_time.coverage,
            confidence=found.confidence,
            prefer_nvlink=found.prefer_nvlink,
            recommended_mig_profile=found.recommended_mig_profile,
            estimated_cost_per_hour=found.estimated_cost_per_hour,
            reasoning=dict.fromkeys(
                (*run_time.reasons, *found.reasoning, *(preallocation.evidence if preallocation.engine else ()))
            ),
            preallocates_memory=bool(preallocation.engine) and preallocation.answer is not Answer.NO,
            fingerprint=fingerprint.key,
            runs=self._run_times.count_runs(fingerprint.key),
        )

    def find_hints(self, workload: WorkloadDescription, nodes: Sequence[str]) -> list[pb.NodeHint]:
        """Return points for nodes on which the workload would run faster or slower; other nodes are left out."""
        return self._hints(workload, nodes)

    def classify(self, workload: WorkloadDescription) -> pb.ClassifyReply:
        """Return the class of a workload: as it declares, else by rules on its spec."""
        if workload.workload_type:
            return pb.ClassifyReply(
                workload_type=workload.workload_type,
                probabilities={workload.workload_type: 1.0},
                reasoning=["the workload declares its type"],
            )
        found = classify(describe_spec(workload))
        is_known = found.kind is not WorkloadClass.UNKNOWN
        return pb.ClassifyReply(
            workload_type=str(found.kind) if is_known else "",
            probabilities={str(kind): value for kind, value in found.probabilities.items()},
            reasoning=[reason.sentence for reason in found.reasons] or ["nothing in its spec says what it does"],
        )

    def describe_pod(self, namespace: str, name: str, now_s: float) -> tuple[list[str], pb.Prediction | None]:
        """Return what is known of a pod or workload, one sentence each, and its prediction; raise NotFound."""
        mine = [
            facts
            for key, facts in self._tracker.pods.items()
            if key.namespace == namespace and name in {key.name, facts.owner_name}
        ]
        if not mine:
            raise errors.NotFound(f"no GPU pod or workload {name} in namespace {namespace}")
        verdicts = self._assessment().verdicts
        reasons = [
            f"{facts.key.name} is {verdict.state} ({verdict.reason})."
            for facts in mine
            if (verdict := verdicts.get(facts.key)) is not None
        ]
        first = mine[0]
        runs = self._run_times.count_runs(first.fingerprint.key)
        reasons.append(f"{phrasing.format_count(runs, 'earlier run')} of the same work ended.")
        return reasons, self._predict_one(describe_facts(first, len(mine)), now_s)

    def fill_metrics(self, reply: pb.MetricsReply) -> None:
        """Fill in how much is known and how good predictions are."""
        reply.predictions, reply.predictions_unknown = self.made, self.unknown
        self._run_times.fill_metrics(reply)


def describe_spec(workload: WorkloadDescription) -> SpecFacts:
    """Return what the spec of a workload says about its work."""
    return SpecFacts(
        image=workload.image,
        command=workload.command,
        environment=workload.environment,
        labels=workload.labels,
        owner_kind=workload.owner_kind,
        framework=workload.framework,
        replicas=workload.pods,
    )


def describe_container(facts: PodFacts) -> SpecFacts:
    """Return what the spec of a pod says about its work."""
    container = facts.container
    return SpecFacts(
        image=container.image,
        command=(*container.command, *container.args),
        environment={each.name: each.value for each in container.env},
        labels=facts.labels,
        ports=tuple(each.container_port for each in container.ports),
        port_names=tuple(each.name for each in container.ports if each.name),
        owner_kind=facts.owner_kind,
        has_probe=container.readiness_probe is not None,
    )


def is_preallocator(facts: PodFacts) -> bool:
    """Whether a pod takes GPU memory in advance, so that its use is not its need."""
    found = detect_preallocation(describe_container(facts))
    return bool(found.engine) and found.answer is not Answer.NO


def _find_memory(model: str) -> float | None:
    known = gpu_parts.find_model(model) if model else None
    return None if known is None else float(known.memory_mib - known.reserved_mib)


def _list_profiles(model: str) -> list[tuple[str, float]]:
    known = gpu_parts.find_model(model) if model else None
    if known is None or known.geometry is None:
        return []
    return [(each.name, float(each.memory_mib)) for each in known.geometry.profiles.values() if each.is_plain]


def describe_facts(facts: PodFacts, pods: int) -> WorkloadDescription:
    """Return the workload of a pod that exists."""
    shape, container = facts.fingerprint.shape, facts.container
    return WorkloadDescription(
        namespace=facts.key.namespace,
        name=facts.owner_name,
        owner_kind=facts.owner_kind,
        owner_name=facts.owner_name,
        image=container.image,
        command=(*container.command, *container.args),
        labels=facts.labels,
        environment={each.name: each.value for each in container.env},
        pods=pods,
        milli_gpus=shape.milli_gpus,
        mig_profile=shape.mig_profile,
        user=facts.user,
        submitted_s=facts.submitted_s,
        uid=facts.run_uid,
    )

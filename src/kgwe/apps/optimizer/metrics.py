"""Metrics of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from kgwe.apps.optimizer.waste.detector import sum_savings
from kgwe.apps.optimizer.waste.savings import sum_realized
from kgwe.telemetry.reconciles import ReconcileMetrics

if TYPE_CHECKING:
    from kgwe.apps.optimizer.waste.detector import Assessment
    from kgwe.apps.optimizer.waste.savings import Entry

_STATES: Final = ("idle", "idle-holding-memory", "bursty", "busy", "unknown")
_HOURS_PER_MONTH: Final = 730


class Metrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.rounds = ReconcileMetrics(self.registry, "kgwe-optimizer")
        self._add_forecast_metrics(self.registry)
        self._add_waste_metrics(self.registry)

    def _add_forecast_metrics(self, registry: CollectorRegistry) -> None:
        self.predictions = Counter(
            "kgwe_optimizer_predictions",
            "Predictions made, by outcome: known or unknown",
            ["outcome"],
            registry=registry,
        )
        self.prediction_seconds = Histogram(
            "kgwe_optimizer_prediction_seconds",
            "Time of one prediction",
            registry=registry,
            buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05),
        )
        self.trainings = Counter(
            "kgwe_optimizer_trainings", "Trainings of models, by outcome", ["outcome"], registry=registry
        )
        self.fingerprints = Gauge("kgwe_optimizer_fingerprints", "Fingerprints with history", registry=registry)
        self.unstored = Gauge(
            "kgwe_optimizer_unstored", "Observations in memory that are not in the store yet", registry=registry
        )
        self.store_losses = Counter(
            "kgwe_optimizer_store_losses",
            "Times that the store was deleted or replaced while it was in use",
            registry=registry,
        )
        self.samples_rejected = Counter(
            "kgwe_optimizer_samples_rejected",
            "Usage samples that were skipped, by reason",
            ["reason"],
            registry=registry,
        )
        for outcome in ("known", "unknown"):
            self.predictions.labels(outcome)
        for outcome in ("success", "failure"):
            self.trainings.labels(outcome)

    def _add_waste_metrics(self, registry: CollectorRegistry) -> None:
        self._pods = Gauge(
            "kgwe_gpu_pods",
            "Pods with GPUs, by what they did with them in the last window",
            ["state"],
            registry=registry,
        )
        self._findings = Gauge(
            "kgwe_waste_findings",
            "Findings about GPU pods, by namespace and kind",
            ["namespace", "kind"],
            registry=registry,
        )
        self._savings = Gauge(
            "kgwe_cost_savings_recommended_dollars",
            "Dollars per month that the recommendations would save",
            ["namespace"],
            registry=registry,
        )
        self._realized = Gauge(
            "kgwe_cost_savings_realized_dollars",
            "Dollars per month that followed recommendations save, by metered use",
            ["namespace"],
            registry=registry,
        )
        self._saved = Gauge(
            "gpu_autoscaler_total_savings_usd",
            "Dollars that followed recommendations have saved until now; forgotten 30 days after a saving has ended",
            registry=registry,
        )
        self._followed = Gauge(
            "kgwe_recommendations_followed",
            "Recommendations that were followed, by namespace and result",
            ["namespace", "result"],
            registry=registry,
        )
        self.judge_seconds = Histogram(
            "kgwe_waste_judge_seconds",
            "Time to judge all GPU pods once",
            registry=registry,
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10),
        )
        self.source_up = Gauge(
            "kgwe_metric_source_up", "Whether usage data of GPUs is complete and fresh", registry=registry
        )
        self.idle_actions = Counter(
            "kgwe_idle_actions", "Actions on idle workloads, by action", ["action"], registry=registry
        )
        self.rightsizing = Counter(
            "kgwe_rightsizing_events",
            "Decisions on smaller requests: Decided, Changed, Removed, Reverted, Stopped or Mode",
            ["what"],
            registry=registry,
        )
        for what in ("Decided", "Changed", "Removed", "Reverted", "Stopped", "Mode"):
            self.rightsizing.labels(what)
        for state in _STATES:
            self._pods.labels(state).set(0)
        for action in ("notify", "suspend", "restore"):
            self.idle_actions.labels(action)

    def count_prediction(self, is_known: bool, seconds: float) -> None:  # noqa: FBT001 - a callback
        """Count a prediction and its time."""
        self.predictions.labels("known" if is_known else "unknown").inc()
        self.prediction_seconds.observe(seconds)

    def show_assessment(self, assessment: Assessment) -> None:
        """Show the result of one round. Series of namespaces without findings disappear."""
        for state in _STATES:
            self._pods.labels(state).set(assessment.states.get(state, 0))
        self._findings.clear()
        for each in assessment.findings:
            self._findings.labels(each.facts.key.namespace, str(each.finding.kind)).inc()
        self._savings.clear()
        for namespace, dollars in sum_savings(assessment).items():
            self._savings.labels(namespace).set(dollars * _HOURS_PER_MONTH)
        self.source_up.set(0 if assessment.problem else 1)

    def show_savings(self, entries: list[Entry]) -> None:
        """Show what followed recommendations save."""
        self._realized.clear()
        for namespace, dollars in sum_realized(entries).items():
            self._realized.labels(namespace).set(dollars * _HOURS_PER_MONTH)
        self._saved.set(sum((each.realized or 0.0) + each.earlier for each in entries))
        self._followed.clear()
        for each in entries:
            if each.followed_s is not None:
                self._followed.labels(each.namespace, str(each.result)).inc()

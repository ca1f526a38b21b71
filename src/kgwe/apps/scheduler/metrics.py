"""The Prometheus metrics of the scheduler. Durations are in seconds.

Values that follow from the state are computed at each scrape, so no gauge has to be updated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kgwe.kube.api import timestamp
from kgwe.telemetry.reconciles import ReconcileMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import Plan
    from kgwe.placement.refusal import Refusal

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_WAITS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)

_STAGES = (
    "plan", "hold", "explain", "estimate", "commit", "report", "queue", "pass", "reconcile", "preempt", "census",
    "recovery", "gang", "nomination", "count", "listener",
)  # fmt: skip

_RECOVERY_OUTCOMES = ("Replaced", "GangMoved", "Shrunk", "WaitsForRoom", "Restarted")

Sample = tuple[tuple[str, ...], float]
"""(label values, value)"""


class Metrics:
    """One registry per process (and per test)."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        # (strategy, placed) -> what counts it: looking that up takes longer than counting
        self._pod_decisions: dict[tuple[str, bool], tuple[Histogram, Counter]] = {}
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self._add_workload_metrics(registry)
        self._add_scheduling_metrics(registry)
        self._add_process_metrics(registry)
        self.waiting = Gauge("kgwe_workload_queue_depth", "Workloads and gangs waiting for room", registry=registry)

    def _add_workload_metrics(self, registry: CollectorRegistry) -> None:
        self.scheduled = Counter(
            "warp_gpuworkload_scheduled", "Workloads given a node and a Job", ["strategy"], registry=registry
        )
        self.failed = Counter(
            "warp_gpuworkload_failed",
            "Attempts that did not lead to a Job: no_suitable_node (it waits) or job_creation_failed (an error)",
            ["reason"],
            registry=registry,
        )
        self.retries = Counter("warp_gpuworkload_retries", "Retries after errors", registry=registry)
        self.reconcile_seconds = Histogram(
            "warp_gpuworkload_reconcile_duration_seconds",
            "Time of one reconcile by result: done, waiting, retry or error",
            ["result"],
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.workload_seconds = Histogram(
            "kgwe_workload_duration_seconds",
            "Time workloads ran, by how they ended",
            ["phase"],
            registry=registry,
            buckets=(10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 168 * 3600),
        )
        self.rounds = ReconcileMetrics(registry, "kgwe-scheduler")
        # Both outcomes exist from the start, so that rates and alerts see zero rather than nothing.
        for reason in ("no_suitable_node", "job_creation_failed"):
            self.failed.labels(reason)

    def _add_scheduling_metrics(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter(
            "kgwe_scheduling_attempts", "Plans asked for: workloads, gangs and plain pods", registry=registry
        )
        self.successes = Counter("kgwe_scheduling_successes", "Plans made", registry=registry)
        self.failures = Counter("kgwe_scheduling_failures", "Plans refused, by reason", ["reason"], registry=registry)
        self.latency = Histogram(
            "kgwe_scheduling_latency_seconds",
            "Time from creation of a workload or gang to its placement",
            registry=registry,
            buckets=_WAITS,
        )
        self.optimal = Counter(
            "kgwe_topology_optimal_placements", "Plans within the level that was preferred, or any", registry=registry
        )
        self.predictions = Counter(
            "kgwe_prediction_refreshes", "Refreshes of predicted run times, by outcome", ["outcome"], registry=registry
        )
        for outcome in ("success", "failure"):
            self.predictions.labels(outcome)
        self.preemptions = Counter("kgwe_preemptions", "Pods stopped for more important work", registry=registry)
        self.decision_seconds = Histogram(
            "topology_scheduler_latency_seconds",
            "Time of one decision by strategy",
            ["strategy"],
            registry=registry,
            buckets=_FAST,
        )
        self.decisions = Counter(
            "topology_placement_decisions",
            "Decisions by strategy and result",
            ["strategy", "result"],
            registry=registry,
        )
        self.recovery_seconds = Histogram(
            "topology_recovery_duration_seconds",
            "From when a failure was seen to when what it hit was running again",
            registry=registry,
            buckets=(0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
        )
        self.recovery_plan_seconds = Histogram(
            "kgwe_recovery_plan_duration_seconds",
            "From when a failure was seen to when there was a new plan for what it hit",
            registry=registry,
            buckets=(0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 300),
        )
        self.recoveries = Counter(
            "kgwe_recoveries",
            "Workloads and gangs hit by a failure, by outcome",
            ["outcome"],
            registry=registry,
        )
        for outcome in _RECOVERY_OUTCOMES:
            self.recoveries.labels(outcome)
        self.rejections = Counter(
            "kgwe_pod_rejections", "Pods of workloads that a kubelet rejected before they started", registry=registry
        )
        self.dispatch_seconds = Histogram(
            "kgwe_dispatch_duration_seconds",
            "Time of one planning pass over all that waits",
            registry=registry,
            buckets=_FAST,
        )
        self.forged = Counter(
            "kgwe_forged_decisions",
            "Pods, Jobs and Deployments with a decision that KGWE did not sign, which was ignored; each counted once",
            ["kind"],
            registry=registry,
        )
        self.planning_errors = Counter(
            "kgwe_planning_errors",
            "Planning errors confined to one workload, gang or pod, by stage",
            ["stage"],
            registry=registry,
        )
        # All stages exist from the start, so that rates and alerts see zero rather than nothing.
        for stage in _STAGES:
            self.planning_errors.labels(stage)
        self.passes_failed = Counter(
            "kgwe_planning_passes_failed", "Planning passes that failed as a whole", registry=registry
        )
        self.extender_requests = Counter(
            "kgwe_extender_requests",
            "Calls of kube-scheduler by verb and outcome",
            ["verb", "outcome"],
            registry=registry,
        )
        self.extender_seconds = Histogram(
            "kgwe_extender_duration_seconds",
            "Time of one call of kube-scheduler, from its body's last byte to the reply",
            ["verb"],
            registry=registry,
            buckets=_FAST,
        )
        self.extender_waits = Counter(
            "kgwe_extender_waits",
            "Calls of kube-scheduler that came before the watch showed their pod, and waited for it",
            registry=registry,
        )

        self.offers = Counter(
            "kgwe_seat_offers",
            "Gangs planned while their first pod was created: made, refused, expired; and seats given so",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("made", "seat", "refused", "expired"):
            self.offers.labels(outcome)
        self.offer_seconds = Histogram(
            "kgwe_seat_offer_duration_seconds",
            "Time of one answer to the API server about a pod of a gang",
            registry=registry,
            buckets=_FAST,
        )

    def _add_process_metrics(self, registry: CollectorRegistry) -> None:
        self.queue = Gauge("kgwe_scheduler_reconcile_queue_depth", "Keys to reconcile", registry=registry)
        self.leader = Gauge("kgwe_scheduler_leader", "1 on the replica that acts", registry=registry)
        self.loop_lag = Gauge(
            "kgwe_event_loop_lag_seconds", "How late the event loop was, at most, in the last second", registry=registry
        )

    def add_gauge(
        self, name: str, about: str, labels: tuple[str, ...], samples: Callable[[], Iterable[Sample]]
    ) -> None:
        """A gauge that is computed at each scrape."""
        self.registry.register(_Read(name, about, labels, samples))

    def observe_plan(self, strategy: str, took_s: float) -> None:
        self.decision_seconds.labels(strategy).observe(took_s)

    def count_placed(self, ask: Ask, plan: Plan, now_s: float) -> None:
        """An owner was given its place."""
        self.attempts.inc()
        self.successes.inc()
        self.decisions.labels(ask.strategy or "score", "placed").inc()
        if plan.preferred_met:
            self.optimal.inc()
        if ask.since:
            self.latency.observe(max(now_s - timestamp.epoch_seconds(ask.since), 0.0))

    def count_refused(self, ask: Ask, refusal: Refusal, *, is_first: bool) -> None:
        """An owner was refused a place; `is_first`: it was not refused before."""
        if is_first:
            self.failed.labels("no_suitable_node").inc()
        self.attempts.inc()
        self.failures.labels(refusal.code).inc()
        self.decisions.labels(ask.strategy or "score", "refused").inc()

    def count_pod_decision(self, strategy: str, *, placed: bool, took_s: float) -> None:
        """The extender decided on a pod."""
        known = self._pod_decisions.get((strategy, placed))
        if known is None:
            decisions = self.decisions.labels(strategy, "placed" if placed else "refused")
            known = self._pod_decisions[strategy, placed] = self.decision_seconds.labels(strategy), decisions
        known[0].observe(took_s)
        self.attempts.inc()
        if placed:
            self.successes.inc()
        known[1].inc()


class _Read(Collector):
    """Computed at each scrape: nothing to keep in step, and an object that is gone leaves no stale series."""

    def __init__(self, name: str, about: str, labels: tuple[str, ...], samples: Callable[[], Iterable[Sample]]) -> None:
        self._name, self._about, self._labels, self._samples = name, about, labels, samples

    def describe(self) -> Iterable[Metric]:
        return (GaugeMetricFamily(self._name, self._about, labels=self._labels),)

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._about, labels=self._labels)
        for labels, value in self._samples():
            family.add_metric(labels, value)
        return (family,)

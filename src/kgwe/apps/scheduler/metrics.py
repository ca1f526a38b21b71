"""What the controller counts. Names of the gpu-orchestrator are kept; ours start with kgwe_."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric


class Metrics:
    """One registry per process (and per test)."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
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
        self.dispatch_seconds = Histogram(
            "kgwe_dispatch_duration_seconds",
            "Time of one placement pass over all waiting workloads",
            registry=registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
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
            buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
        )
        self.waiting = Gauge("kgwe_workload_queue_depth", "Workloads waiting for room", registry=registry)
        self.active: Callable[[], Iterable[tuple[str, str]]] = lambda: ()
        registry.register(_ActiveWorkloads(self))
        self.queue = Gauge("kgwe_controller_reconcile_queue_depth", "Keys to reconcile", registry=registry)
        self.leader = Gauge("kgwe_controller_leader", "1 on the replica that acts", registry=registry)
        # Both outcomes exist from the start, so that rates and alerts see zero rather than nothing.
        for reason in ("no_suitable_node", "job_creation_failed"):
            self.failed.labels(reason)


class _ActiveWorkloads(Collector):
    """Counted when somebody looks: nothing to keep in step, and a namespace without work has no stale series."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return (self._family(),)

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, count in Tally(self._metrics.active()).items():
            family.add_metric(labels, count)
        return (family,)

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "kgwe_active_workloads", "Workloads not finished", labels=("namespace", "workload_type")
        )

"""Metrics of the cost engine. Totals are counters, in dollars of the ledger's currency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kgwe.costing.money import MICROS, TICKS
from kgwe.costing.segments import HELD, Bucket
from kgwe.telemetry.reconciles import ReconcileMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from kgwe.costing.books import Books
    from kgwe.costing.segments import Segment

_DOLLAR: Final = MICROS * TICKS
_BUCKETS: Final = {
    Bucket.FLEET: "fleet",
    Bucket.ALLOCATED: "allocated",
    Bucket.OVERHEAD: "overhead",
    Bucket.UNALLOCATED: "unallocated",
    Bucket.RESERVED_IDLE: "reserved-idle",
    Bucket.QUOTA_HELD: "quota-held",
}


# More would be a burden for Prometheus; the ledger has all.
_MOST_PODS: Final = 5_000


class PodSeries(NamedTuple):
    """The labels that dashboards of the GPU Autoscaler select on."""

    namespace: str
    pod: str
    gpu_type: str
    capacity_type: str


class Metrics(Collector):
    """What the last count found."""

    def __init__(self) -> None:
        self.rates: dict[tuple[str, str], int] = {}
        self.bucket_rates: dict[Bucket, int] = {}
        self.unpriced: dict[str, str] = {}
        self.counted_until_s = 0
        self.segments = 0
        self.failures = 0
        self.node_failures = 0
        self.unbalanced = 0
        self.prices_fetched_s: dict[str, int] = {}
        self.pods: dict[PodSeries, int] = {}
        """Ticks of the pods that hold GPUs now, since this replica leads."""
        self._totals: dict[tuple[str, str], int] = {}
        self._buckets: dict[Bucket, int] = {}
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.rounds = ReconcileMetrics(self.registry, "kgwe-cost-engine")
        self.registry.register(self)

    def add_pods(self, segments: Iterable[Segment], since_s: int, until_s: int) -> None:
        """Add what pods cost since the last count; pods that hold nothing any more are forgotten."""
        found: dict[PodSeries, int] = {}
        for each in segments:
            if each.end_s == until_s and each.seconds and each.bucket in HELD and each.holder and each.piece.gpu:
                holder, piece = each.holder, each.piece
                key = PodSeries(holder.account.namespace, holder.pod, piece.model, piece.capacity)
                added = each.rate * (until_s - max(each.start_s, since_s))
                found[key] = found.get(key, self.pods.get(key, 0)) + added
        self.pods = found

    def set_totals(self, books: Books, totals: dict[tuple[str, str], int]) -> None:
        """Set the totals of the ledger. A correction of the last minutes never lets a counter fall."""
        for key, ticks in totals.items():
            self._totals[key] = max(self._totals.get(key, 0), ticks)
        for bucket in _BUCKETS:
            self._buckets[bucket] = max(self._buckets.get(bucket, 0), books.sums(bucket).ticks)
        self.unbalanced = books.unbalanced

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        names = ("namespace", "team")
        total = CounterMetricFamily("kgwe_gpu_cost_dollars", "Cost of what pods held.", labels=names)
        # The name that dashboards of the first KGWE select on; as a counter it would end in _total.
        seed = GaugeMetricFamily(
            "kgwe_gpu_cost_total_dollars", "The same as kgwe_gpu_cost_dollars_total.", labels=names
        )
        for key, ticks in sorted(self._totals.items()):
            total.add_metric(key, ticks / _DOLLAR)
            seed.add_metric(key, ticks / _DOLLAR)
        yield total
        yield seed
        rate = GaugeMetricFamily(
            "kgwe_gpu_cost_per_hour_dollars", "Cost per hour of what pods hold.", labels=("namespace", "team")
        )
        for key, micros in sorted(self.rates.items()):
            rate.add_metric(key, micros / MICROS)
        yield rate
        fleet = CounterMetricFamily(
            "kgwe_gpu_cost_fleet_dollars", "Cost of GPU nodes, by line of the books.", labels=("line",)
        )
        for bucket, ticks in self._buckets.items():
            fleet.add_metric((_BUCKETS[bucket],), ticks / _DOLLAR)
        yield fleet
        fleet_rate = GaugeMetricFamily(
            "kgwe_gpu_cost_fleet_per_hour_dollars", "Cost per hour of GPU nodes.", labels=("line",)
        )
        for bucket, name in _BUCKETS.items():
            fleet_rate.add_metric((name,), self.bucket_rates.get(bucket, 0) / MICROS)
        yield fleet_rate
        # The names that dashboards of the GPU Autoscaler select on.
        total_usd = self._buckets.get(Bucket.FLEET, 0) / _DOLLAR
        yield GaugeMetricFamily(
            "gpu_autoscaler_total_cost_usd", "The same as the line fleet of kgwe_gpu_cost_fleet_dollars.", total_usd
        )
        rate_usd = self.bucket_rates.get(Bucket.FLEET, 0) / MICROS
        yield GaugeMetricFamily(
            "gpu_autoscaler_hourly_cost_rate_usd",
            "The same as the line fleet of kgwe_gpu_cost_fleet_per_hour_dollars.",
            rate_usd,
        )
        pods = GaugeMetricFamily(
            "gpu_autoscaler_pod_cost_usd",
            "Cost of a pod that holds GPUs now, since this replica leads.",
            labels=PodSeries._fields,
        )
        for series, ticks in sorted(self.pods.items())[:_MOST_PODS]:
            pods.add_metric(series, ticks / _DOLLAR)
        yield pods
        fetched = GaugeMetricFamily(
            "kgwe_gpu_cost_prices_fetched_timestamp_seconds",
            "When a price list was last read; older than two hours: the prices are stale.",
            labels=("source",),
        )
        for source, at_s in sorted(self.prices_fetched_s.items()):
            fetched.add_metric((source,), at_s)
        yield fetched
        yield GaugeMetricFamily("kgwe_gpu_cost_unpriced_nodes", "GPU nodes without a price.", value=len(self.unpriced))
        yield GaugeMetricFamily(
            "kgwe_gpu_cost_counted_until_timestamp_seconds",
            "The time up to which costs are stored.",
            value=self.counted_until_s,
        )
        yield GaugeMetricFamily(
            "kgwe_gpu_cost_unbalanced_dollars",
            "What the lines miss of the fleet's cost.",
            value=self.unbalanced / _DOLLAR,
        )
        yield CounterMetricFamily("kgwe_gpu_cost_segments_written", "Segments sent to the ledger.", value=self.segments)
        yield CounterMetricFamily("kgwe_gpu_cost_write_failures", "Counts that were not stored.", value=self.failures)
        yield GaugeMetricFamily(
            "kgwe_gpu_cost_node_failures", "Nodes that could not be counted in this term.", value=self.node_failures
        )

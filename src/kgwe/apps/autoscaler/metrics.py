"""Metrics of the autoscaler, under the names of the first design (`gpu_autoscaler_*`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kgwe.telemetry.reconciles import ReconcileMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

_PREFIX: Final = "gpu_autoscaler"
_MICROS: Final = 1_000_000
_HOURS_PER_MONTH: Final = 730
_CAPACITY_TYPES: Final = ("reserved", "spot", "on-demand")


@dataclass
class PolicyNumbers:
    """What the last round found for one policy."""

    nodes: Counter[str] = field(default_factory=Counter)
    """By capacity type."""
    stages: Counter[str] = field(default_factory=Counter)
    desired: int = 0
    cost_micro: Counter[str] = field(default_factory=Counter)
    """Per hour, by capacity type."""
    saved_micro: int = 0
    on_demand_micro: int = 0
    up_cooldown_s: float = 0.0
    down_cooldown_s: float = 0.0
    underused: int = 0
    orphans: int = 0
    multi_tier: bool = False
    predictive: bool = False
    unmet: Counter[str] = field(default_factory=Counter)
    """By reason."""


class Metrics(Collector):
    """Numbers of all policies."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.policies: dict[str, PolicyNumbers] = {}
        self.actions: Counter[tuple[str, str, str]] = Counter()
        """By action, capacity type and success."""
        self.interruptions = 0
        self.warnings = 0
        self.pending_pods = 0
        self.use: float | None = None
        self.errors = 0
        self.last_round_s = 0.0
        self.launch_errors: Counter[str] = Counter()
        self.ownerless: dict[str, int] = {}
        """Instances without a policy, by provider."""
        self.timeouts: dict[str, int] = {}
        """By provider."""
        self.round_s = Histogram(f"{_PREFIX}_reconcile_duration_seconds", "Duration of a round", registry=self.registry)
        self.ready_s = Histogram(
            f"{_PREFIX}_scaling_duration_seconds",
            "From the launch of a node until all of its GPUs are ready",
            buckets=(5, 15, 30, 60, 120, 180, 300, 600, 900, 1800),
            registry=self.registry,
        )
        self.rounds = ReconcileMetrics(self.registry, "kgwe-autoscaler")
        self.registry.register(self)

    def count_action(self, action: str, capacity_type: str, count: int = 1, *, success: bool = True) -> None:
        self.actions[action, capacity_type, str(success).lower()] += count

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._collect_actions()
        yield from self._collect_nodes()
        yield from self._collect_cost()
        yield from self._collect_state()

    def _collect_actions(self) -> Iterator[Metric]:
        actions = CounterMetricFamily(
            f"{_PREFIX}_scaling_actions", "Nodes added, drained and removed",
            labels=["action", "capacity_type", "success"],
        )  # fmt: skip
        for labels, count in sorted(self.actions.items()):
            actions.add_metric(labels, count)
        yield actions
        refused = CounterMetricFamily(f"{_PREFIX}_launch_errors", "Launches that failed, by kind", labels=["kind"])
        for kind, count in sorted(self.launch_errors.items()):
            refused.add_metric([kind], count)
        yield refused
        late = CounterMetricFamily(
            f"{_PREFIX}_cloud_timeouts", "Calls that a provider did not answer in time", labels=["provider"]
        )
        for provider, count in sorted(self.timeouts.items()):
            late.add_metric([provider], count)
        yield late
        for name, about, value in (
            ("spot_interruptions", "Spot nodes taken back by their provider", self.interruptions),
            ("reconcile_errors", "Rounds that failed for a policy", self.errors),
        ):
            family = CounterMetricFamily(f"{_PREFIX}_{name}", about)
            family.add_metric([], value)
            yield family

    def _collect_nodes(self) -> Iterator[Metric]:
        counts: Counter[str] = Counter()
        stages: Counter[str] = Counter()
        for each in self.policies.values():
            counts += each.nodes
            stages += each.stages
        nodes = GaugeMetricFamily(f"{_PREFIX}_node_count", "Nodes bought", labels=["capacity_type"])
        for kind in _CAPACITY_TYPES:
            nodes.add_metric([kind], counts[kind])
        yield nodes
        by_stage = GaugeMetricFamily(f"{_PREFIX}_node_stages", "Nodes by the stage of their life", labels=["stage"])
        for stage, count in sorted(stages.items()):
            by_stage.add_metric([stage], count)
        yield by_stage
        unmet = GaugeMetricFamily(
            f"{_PREFIX}_unmet_demand", "Workloads, gangs and pods for which nothing is bought", labels=["reason"]
        )
        reasons: Counter[str] = Counter()
        for each in self.policies.values():
            reasons += each.unmet
        for reason, count in sorted(reasons.items()):
            unmet.add_metric([reason], count)
        yield unmet
        share = GaugeMetricFamily(
            f"{_PREFIX}_capacity_type_preference", "Fraction of nodes by capacity type", labels=["capacity_type"]
        )
        for kind in _CAPACITY_TYPES:
            share.add_metric([kind], counts[kind] / max(counts.total(), 1))
        yield share

    def _collect_cost(self) -> Iterator[Metric]:
        costs: Counter[str] = Counter()
        for each in self.policies.values():
            costs += each.cost_micro
        cost = GaugeMetricFamily(
            f"{_PREFIX}_estimated_monthly_cost_usd", "Cost of a month at the present size", labels=["capacity_type"]
        )
        for kind in _CAPACITY_TYPES:
            cost.add_metric([kind], costs[kind] * _HOURS_PER_MONTH / _MICROS)
        yield cost
        saved = sum(each.saved_micro for each in self.policies.values())
        full = sum(each.on_demand_micro for each in self.policies.values())
        yield _gauge("estimated_monthly_savings_usd", "Saved against all on demand", saved * _HOURS_PER_MONTH / _MICROS)
        yield _gauge("spot_savings_percentage", "Saved against all on demand, in percent", 100 * saved / full if full
                     else 0.0)  # fmt: skip

    def _collect_state(self) -> Iterator[Metric]:
        numbers = self.policies.values()
        yield _gauge("desired_node_count", "Nodes wanted", sum(each.desired for each in numbers))
        yield _gauge("pending_pods", "GPU pods without a place", self.pending_pods)
        yield _gauge("underutilized_nodes", "Nodes whose GPUs do little", sum(each.underused for each in numbers))
        yield _gauge(
            "orphaned_instances",
            "Instances that no purchase, pool or policy explains",
            sum(each.orphans for each in numbers) + sum(self.ownerless.values()),
        )
        ownerless = GaugeMetricFamily(
            f"{_PREFIX}_instances_without_policy", "Instances whose policy is gone", labels=["provider"]
        )
        for provider, count in sorted(self.ownerless.items()):
            ownerless.add_metric([provider], count)
        yield ownerless
        yield _gauge("spot_termination_warnings", "Nodes with a notice of their provider", self.warnings)
        if self.use is not None:
            yield _gauge("cluster_utilization", "Fraction of GPUs in use", self.use)
        yield _gauge(
            "multi_tier_scaling_enabled",
            "Whether reservations come first, then spot",
            float(any(each.multi_tier for each in numbers)),
        )
        yield _gauge(
            "predictive_scaling_enabled",
            "Whether forecasts are acted on",
            float(any(each.predictive for each in numbers)),
        )
        yield _gauge("last_reconcile_timestamp", "When the last round ended", self.last_round_s)
        for name, attribute in (("scale_up", "up_cooldown_s"), ("scale_down", "down_cooldown_s")):
            family = GaugeMetricFamily(
                f"{_PREFIX}_{name}_cooldown_remaining_seconds", "Until the next action is allowed", labels=["policy"]
            )
            for policy, each in sorted(self.policies.items()):
                family.add_metric([policy], getattr(each, attribute))
            yield family


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", about)
    family.add_metric([], value)
    return family

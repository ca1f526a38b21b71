"""kgwe-dashboard: the dashboard of the first KGWE, with its rows and thresholds."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own, quantile, ratio

_COUNT: Final = own("kgwe_gpu_count", "node")

DASHBOARD: Final = Dashboard(
    "kgwe-dashboard",
    "kgwe-dashboard",
    "Cluster, GPUs, scheduling and cost on one page.",
    (
        Row(
            "Cluster Overview",
            (
                Panel("Total GPUs", "stat", (Query(f"sum(max by (node, model) ({_COUNT}))"),), width=4, height=4),
                Panel(
                    "GPU utilization", "stat", (Query("kgwe:cluster_gpu_activity:ratio * 100"),), "percent", 4, 4,
                    limits=(50, 80), falling=True,
                ),
                Panel(
                    "Active workloads", "stat", (Query(f"sum({own('kgwe_active_workloads', 'namespace')})"),), width=4,
                    height=4,
                ),
                Panel("Queue depth", "stat", (Query("max(kgwe_workload_queue_depth)"),), width=4, height=4),
                Panel(
                    "Decision p99", "stat",
                    (Query("max(kgwe:extender_duration_seconds:p99_5m) * 1000"),), "ms", 4, 4, limits=(50, 100),
                ),
                Panel(
                    "Cost per hour", "stat",
                    (Query('max(kgwe_gpu_cost_fleet_per_hour_dollars{line="fleet"})'),), "currencyUSD", 4, 4,
                ),
            ),
        ),
        Row(
            "GPU Metrics",
            (
                Panel(
                    "Utilization", "timeseries",
                    (Query("kgwe:node_gpu_activity:ratio * 100", "{{node}}"),), "percent", limits=(50, 80), top=100,
                ),
                Panel(
                    "Memory", "timeseries",
                    (Query("sum by (node) (kgwe:gpu_memory_used:bytes)"
                           " / sum by (node) (kgwe:gpu_memory_total:bytes)", "{{node}}"),), "percentunit", top=1,
                ),
                Panel(
                    "Temperature", "timeseries",
                    (Query("max by (node) (kgwe:gpu_temperature:celsius)", "{{node}}"),), "celsius", limits=(70, 85),
                ),
                Panel("Power", "timeseries", (Query("sum by (node) (kgwe:gpu_power:watts)", "{{node}}"),), "watt"),
            ),
        ),
        Row(
            "Scheduling & Topology",
            (
                Panel(
                    "Decision latency", "timeseries",
                    (Query(quantile(0.5, "kgwe_extender_duration_seconds"), "p50"),
                     Query(quantile(0.99, "kgwe_extender_duration_seconds"), "p99")), "s", 8, limits=(0.05, 0.1),
                ),
                Panel(
                    "Plans", "timeseries",
                    (Query("sum(rate(kgwe_scheduling_successes_total[$__rate_interval]))", "made"),
                     Query("sum(rate(kgwe_scheduling_attempts_total[$__rate_interval]))", "asked for")), "ops", 8,
                ),
                Panel(
                    "Placements with the best topology", "stat",
                    (Query(ratio("sum(increase(kgwe_topology_optimal_placements_total[$__range]))",
                                 "sum(increase(kgwe_scheduling_successes_total[$__range]))")),), "percentunit", 8,
                    limits=(0.5, 0.8), falling=True,
                ),
            ),
        ),
        Row(
            "Cost & Budget",
            (
                Panel(
                    "Cost per hour by namespace", "timeseries",
                    (Query(f"sum by (namespace) ({own('kgwe_gpu_cost_per_hour_dollars', 'namespace')})",
                           "{{namespace}}"),), "currencyUSD", 12, stacked=True,
                ),
                Panel(
                    "Budgets", "bargauge",
                    (Query("max by (budget_id) (kgwe_budget_utilization_percent)", "{{budget_id}}"),), "percent", 12,
                    limits=(75, 90), top=100,
                ),
            ),
        ),
    ),
)  # fmt: skip

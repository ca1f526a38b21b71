"""GPU Cluster Overview: how full and how busy the fleet is, with a heat map."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.dashboards.variables import NODE
from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own

_SELECTED: Final = '{node=~"$node"}'

_COUNT: Final = own("kgwe_gpu_count", "node")

DASHBOARD: Final = Dashboard(
    "gpu-cluster-overview",
    "GPU Cluster Overview",
    "How many GPUs there are, how many are given away, and how much they do.",
    (
        Row(
            "Fleet",
            (
                Panel("GPUs", "stat", (Query(f"sum(max by (node, model) ({_COUNT}))"),), width=4, height=4),
                Panel("GPU nodes", "stat", (Query(f"count(count by (node) ({_COUNT}))"),), width=4, height=4),
                Panel(
                    "Allocated", "stat", (Query("max(topology_gpu_allocation_ratio)"),), "percentunit", 4, 4,
                    "Share of healthy GPUs that is in use or reserved", (0.5, 0.8), falling=True,
                ),
                Panel(
                    "Mean activity", "stat", (Query("kgwe:cluster_gpu_activity:ratio"),), "percentunit", 4, 4,
                    "Share of time in which GPUs worked", (0.5, 0.8), falling=True,
                ),
                Panel("Workloads waiting", "stat", (Query("max(kgwe_workload_queue_depth)"),), width=4, height=4),
                Panel("Power", "stat", (Query("sum(kgwe:gpu_power:watts)"),), "watt", 4, 4),
            ),
        ),
        Row(
            "Heat map",
            (
                Panel(
                    "Activity of nodes", "status-history",
                    (Query(f"kgwe:node_gpu_activity:ratio{_SELECTED}", "{{node}}"),), "percentunit", 12, 10,
                    "One line per node; red is busy", top=1,
                ),
                Panel(
                    "Activity of GPUs", "heatmap", (Query(f"kgwe:gpu_activity:ratio{_SELECTED}", "{{gpu_uuid}}"),),
                    "percentunit", 12, 10, "How many GPUs were how busy",
                ),
            ),
        ),
        Row(
            "Use",
            (
                Panel(
                    "Activity by model", "timeseries",
                    (Query(f"avg by (model) (kgwe:gpu_activity:ratio{_SELECTED})", "{{model}}"),),
                    "percentunit", 8, top=1,
                ),
                Panel(
                    "Memory in use", "timeseries",
                    (Query(f"sum(kgwe:gpu_memory_used:bytes{_SELECTED})", "used"),
                     Query(f"sum(kgwe:gpu_memory_total:bytes{_SELECTED})", "total")), "bytes", 8,
                ),
                Panel(
                    "GPUs and slices held, by namespace", "timeseries",
                    (Query("kgwe:namespace_gpu_devices:count", "{{namespace}}"),), width=8, stacked=True,
                ),
                Panel(
                    "Active workloads", "timeseries",
                    (Query(f"sum by (workload_type) ({own('kgwe_active_workloads', 'namespace')})",
                           "{{workload_type}}"),), width=8, stacked=True,
                ),
                Panel(
                    "Temperature", "timeseries",
                    (Query(f"max by (node) (kgwe:gpu_temperature:celsius{_SELECTED})", "{{node}}"),), "celsius", 8,
                    limits=(70, 85),
                ),
                Panel(
                    "Least busy GPUs", "table",
                    (Query(f"bottomk(10, kgwe:gpu_activity:ratio{_SELECTED})"),), "percentunit", 8,
                ),
            ),
        ),
    ),
    (NODE,),
)  # fmt: skip

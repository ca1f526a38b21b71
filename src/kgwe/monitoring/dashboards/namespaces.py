"""GPU Namespaces: what the pods of a namespace hold, do and cost."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.dashboards.variables import NAMESPACE
from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own

_CHOSEN: Final = '{namespace=~"$namespace"}'

DASHBOARD: Final = Dashboard(
    "gpu-namespaces",
    "GPU Namespaces",
    "GPUs, activity, cost and waste of one namespace or several.",
    (
        Row(
            "Use",
            (
                Panel(
                    "GPUs and slices held", "timeseries",
                    (Query(f"kgwe:namespace_gpu_devices:count{_CHOSEN}", "{{namespace}}"),), width=8, stacked=True,
                ),
                Panel(
                    "Activity", "timeseries",
                    (Query(f"avg by (namespace) (kgwe:pod_gpu_activity:ratio{_CHOSEN})", "{{namespace}}"),),
                    "percentunit", 8, top=1,
                ),
                Panel(
                    "GPU memory", "timeseries",
                    (Query(f"sum by (namespace) (kgwe:pod_gpu_memory:bytes{_CHOSEN})", "{{namespace}}"),), "bytes", 8,
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Pods",
            (
                Panel(
                    "Pods by activity", "table",
                    (Query(f"sort(avg by (namespace, pod) (kgwe:pod_gpu_activity:ratio{_CHOSEN}))"),),
                    "percentunit", 12,
                ),
                Panel(
                    "Pods by memory", "table",
                    (Query(f"sort_desc(sum by (namespace, pod) (kgwe:pod_gpu_memory:bytes{_CHOSEN}))"),), "bytes", 12,
                ),
            ),
        ),
        Row(
            "Workloads and money",
            (
                Panel(
                    "Active workloads", "timeseries",
                    (Query(f"sum by (namespace, workload_type) ({own('kgwe_active_workloads', 'namespace')})",
                           "{{namespace}} {{workload_type}}"),), width=8, stacked=True, about="Of all namespaces",
                ),
                Panel(
                    "Cost per hour", "timeseries",
                    (Query(f"sum by (namespace) ({own('kgwe_gpu_cost_per_hour_dollars', 'namespace')})",
                           "{{namespace}}"),), "currencyUSD", 8, stacked=True, about="Of all namespaces",
                ),
                Panel(
                    "Findings", "timeseries",
                    (Query(f"sum by (namespace, kind) ({own('kgwe_waste_findings', 'namespace')})",
                           "{{namespace}} {{kind}}"),), width=8, about="Pods that waste GPUs, of all namespaces",
                ),
            ),
        ),
    ),
    (NAMESPACE,),
)  # fmt: skip

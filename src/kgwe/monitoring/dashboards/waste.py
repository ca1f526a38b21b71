"""GPU Waste: what GPUs were held and not used, and what recommendations save."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own

DASHBOARD: Final = Dashboard(
    "gpu-waste",
    "GPU Waste",
    "Pods that hold GPUs without using them, recommendations, and what was saved.",
    (
        Row(
            "Now",
            (
                Panel(
                    "Idle pods", "stat",
                    (Query('max(kgwe_gpu_pods{state="idle"}) + max(kgwe_gpu_pods{state="idle-holding-memory"})'),),
                    height=4, limits=(1, 5),
                ),
                Panel("Findings", "stat", (Query("(sum(kgwe_waste_findings) or vector(0))"),), height=4),
                Panel(
                    "Recommended savings per month", "stat",
                    (Query("(sum(kgwe_cost_savings_recommended_dollars) or vector(0))"),), "currencyUSD", height=4,
                ),
                Panel(
                    "Usage data", "stat", (Query("max(kgwe_metric_source_up)"),), "bool_yes_no", height=4,
                    about="Without complete data nothing is judged",
                ),
            ),
        ),
        Row(
            "Pods",
            (
                Panel(
                    "Pods by what they do", "timeseries", (Query("max by (state) (kgwe_gpu_pods)", "{{state}}"),),
                    width=8, stacked=True,
                ),
                Panel(
                    "Findings by kind", "timeseries",
                    (Query(f"sum by (namespace, kind) ({own('kgwe_waste_findings', 'namespace')})",
                           "{{namespace}} {{kind}}"),), width=8, stacked=True,
                ),
                Panel(
                    "Least active pods", "table",
                    (Query("bottomk(15, avg by (namespace, pod) (kgwe:pod_gpu_activity:ratio))"),), "percentunit", 8,
                ),
            ),
        ),
        Row(
            "Savings",
            (
                Panel(
                    "Recommended by namespace", "timeseries",
                    (Query(f"sum by (namespace) ({own('kgwe_cost_savings_recommended_dollars', 'namespace')})",
                           "{{namespace}}"),), "currencyUSD", 8, stacked=True, about="Dollars per month",
                ),
                Panel("Saved until now", "stat", (Query("max(gpu_autoscaler_total_savings_usd)"),), "currencyUSD", 8),
                Panel(
                    "Actions on idle work", "timeseries",
                    (Query("sum by (action) (rate(kgwe_idle_actions_total[$__rate_interval]))", "{{action}}"),),
                    "ops", 8,
                ),
                Panel(
                    "Right-sizing", "timeseries",
                    (Query("sum by (what) (rate(kgwe_rightsizing_events_total[$__rate_interval]))", "{{what}}"),),
                    "ops", 8,
                ),
                Panel(
                    "Predictions", "timeseries",
                    (Query("sum by (outcome) (rate(kgwe_optimizer_predictions_total[$__rate_interval]))",
                           "{{outcome}}"),), "ops", 8,
                ),
                Panel("Workloads with history", "stat", (Query("max(kgwe_optimizer_fingerprints)"),), width=8),
            ),
        ),
    ),
)  # fmt: skip

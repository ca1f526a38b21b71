"""GPU Autoscaler: nodes, purchases, what is not bought, and cost."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row

DASHBOARD: Final = Dashboard(
    "gpu-autoscaler",
    "GPU Autoscaler",
    "Nodes that were bought and removed, why, and what they cost.",
    (
        Row(
            "Nodes",
            (
                Panel(
                    "Nodes by capacity type", "timeseries",
                    (Query("max by (capacity_type) (gpu_autoscaler_node_count)", "{{capacity_type}}"),
                     Query("max(gpu_autoscaler_desired_node_count)", "wanted")), width=8,
                ),
                Panel(
                    "Nodes by stage", "timeseries",
                    (Query("max by (stage) (gpu_autoscaler_node_stages)", "{{stage}}"),),
                    width=8, stacked=True,
                ),
                Panel(
                    "Actions", "timeseries",
                    (Query("sum by (action, capacity_type, success)"
                           " (increase(gpu_autoscaler_scaling_actions_total[$__rate_interval]))",
                           "{{action}} {{capacity_type}} {{success}}"),), width=8,
                ),
            ),
        ),
        Row(
            "Demand",
            (
                Panel("Pods without a place", "timeseries", (Query("max(gpu_autoscaler_pending_pods)", "pods"),),
                      width=8),
                Panel(
                    "Nothing is bought for", "timeseries",
                    (Query("max by (reason) (gpu_autoscaler_unmet_demand)", "{{reason}}"),), width=8, stacked=True,
                ),
                Panel(
                    "From launch to ready GPUs", "timeseries",
                    (Query("sum by (le) (rate(gpu_autoscaler_scaling_duration_seconds_bucket[$__rate_interval]))",
                           "{{le}} s"),), "ops", 8, about="Nodes that took at most so long",
                ),
                Panel(
                    "Time until the next action", "timeseries",
                    (Query("max by (policy) (gpu_autoscaler_scale_up_cooldown_remaining_seconds)", "{{policy}} up"),
                     Query("max by (policy) (gpu_autoscaler_scale_down_cooldown_remaining_seconds)",
                           "{{policy}} down")), "s", 8,
                ),
                Panel("Nodes that do little", "stat", (Query("max(gpu_autoscaler_underutilized_nodes)"),), width=8),
                Panel("Orphaned instances", "stat", (Query("max(gpu_autoscaler_orphaned_instances)"),), width=8,
                      limits=(1, 2)),
            ),
        ),
        Row(
            "Spot and cost",
            (
                Panel(
                    "Spot nodes taken back", "timeseries",
                    (Query("sum(increase(gpu_autoscaler_spot_interruptions_total[$__rate_interval]))", "nodes"),
                     Query("max(gpu_autoscaler_spot_termination_warnings)", "notices")), width=8,
                ),
                Panel(
                    "Cost of a month", "timeseries",
                    (Query("max by (capacity_type) (gpu_autoscaler_estimated_monthly_cost_usd)",
                           "{{capacity_type}}"),), "currencyUSD", 8, stacked=True,
                ),
                Panel(
                    "Saved per month", "stat", (Query("max(gpu_autoscaler_estimated_monthly_savings_usd)"),),
                    "currencyUSD", 8,
                ),
            ),
        ),
        Row(
            "Process",
            (
                Panel(
                    "Time since the last round", "stat",
                    (Query("time() - max(gpu_autoscaler_last_reconcile_timestamp)"),), "s", 8, limits=(120, 600),
                ),
                Panel(
                    "Time of a round, p95", "timeseries",
                    (Query("histogram_quantile(0.95, sum by (le)"
                           " (rate(gpu_autoscaler_reconcile_duration_seconds_bucket[$__rate_interval])))", "p95"),),
                    "s", 8,
                ),
                Panel(
                    "Errors", "timeseries",
                    (Query("sum(increase(gpu_autoscaler_reconcile_errors_total[$__rate_interval]))", "rounds"),),
                    width=8,
                ),
            ),
        ),
    ),
)  # fmt: skip

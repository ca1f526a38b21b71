"""KGWE Health: KGWE's own processes."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own, quantile

DASHBOARD: Final = Dashboard(
    "kgwe-health",
    "KGWE Health",
    "Whether the processes of KGWE run, keep up and can write.",
    (
        Row(
            "Processes",
            (
                Panel("Leaders of the scheduler", "stat", (Query("sum(kgwe_scheduler_leader)"),), height=4,
                      about="Always 1"),
                Panel(
                    "Agents without driver", "stat",
                    (Query(f"(count(max by (node) ({own('kgwe_agent_driver_ready', 'node')}) == 0) or vector(0))"),),
                    height=4, limits=(1, 2),
                ),
                Panel(
                    "Oldest GPU sample", "stat",
                    (Query(f"max(max by (node) ({own('kgwe_exporter_sample_age_seconds', 'node')}))"),), "s", height=4,
                    limits=(30, 60),
                ),
                Panel(
                    "First certificate ends in", "stat",
                    (Query("min(kgwe_certificate_expires_timestamp_seconds) - time()"),), "s", height=4,
                    limits=(259200, 864000), falling=True,
                ),
                Panel(
                    "Memory", "timeseries",
                    (Query('sum by (job, instance) (process_resident_memory_bytes{job=~".*kgwe.*"})',
                           "{{job}} {{instance}}"),), "bytes", 12,
                ),
                Panel(
                    "CPU", "timeseries",
                    (Query('sum by (job, instance) (rate(process_cpu_seconds_total{job=~".*kgwe.*"}'
                           "[$__rate_interval]))",
                           "{{job}} {{instance}}"),), "short", 12, about="Cores",
                ),
            ),
        ),
        Row(
            "Controllers",
            (
                Panel(
                    "Time of a reconcile, p95", "timeseries",
                    (Query(quantile(0.95, "controller_reconcile_duration_seconds", "controller"), "{{controller}}"),),
                    "s", 8, limits=(1, 5),
                ),
                Panel(
                    "Reconcile errors", "timeseries",
                    (Query("sum by (controller) (increase(controller_reconcile_errors_total[$__rate_interval]))",
                           "{{controller}}"),), width=8,
                ),
                Panel(
                    "Planning errors", "timeseries",
                    (Query("sum by (stage) (increase(kgwe_planning_errors_total[$__rate_interval]))", "{{stage}}"),),
                    width=8,
                ),
                Panel(
                    "Reconciles of GPUWorkloads", "timeseries",
                    (Query("sum by (result)"
                           " (rate(warp_gpuworkload_reconcile_duration_seconds_count[$__rate_interval]))",
                           "{{result}}"),), "ops", 8,
                ),
                Panel(
                    "Keys to reconcile", "timeseries",
                    (Query("max by (instance) (kgwe_scheduler_reconcile_queue_depth)", "{{instance}}"),), width=8,
                ),
                Panel(
                    "Event loop lag", "timeseries",
                    (Query("max by (instance) (kgwe_event_loop_lag_seconds)", "{{instance}}"),), "s", 8,
                    limits=(0.25, 1),
                ),
            ),
        ),
        Row(
            "Stores, webhook and API",
            (
                Panel(
                    "Costs stored until", "stat",
                    (Query("time() - max(kgwe_gpu_cost_counted_until_timestamp_seconds)"),), "s", 6, limits=(600, 1800),
                ),
                Panel("Observations not stored yet", "stat", (Query("max(kgwe_optimizer_unstored)"),), width=6),
                Panel(
                    "Webhook", "timeseries",
                    (Query("sum by (outcome) (rate(kgwe_webhook_requests_total[$__rate_interval]))", "{{outcome}}"),),
                    "ops", 6,
                ),
                Panel(
                    "Writes of agents", "timeseries",
                    (Query(f"sum by (kind) ({own('rate(kgwe_agent_api_writes_total[$__rate_interval])', 'node')})",
                           "{{kind}}"),), "ops", 6,
                ),
            ),
        ),
    ),
)  # fmt: skip

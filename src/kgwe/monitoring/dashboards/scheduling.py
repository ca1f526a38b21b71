"""GPU Scheduling and Topology: plans, waiting times, and where free GPUs are."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row, Variable
from kgwe.monitoring.promql import own, quantile

_LEVEL: Final = Variable("level", "topology_domain_utilization_ratio", "level", "Level")

DASHBOARD: Final = Dashboard(
    "gpu-scheduling",
    "GPU Scheduling and Topology",
    "How fast and how well KGWE places work, and where free GPUs are.",
    (
        Row(
            "Queue",
            (
                Panel("Waiting", "timeseries", (Query("max(kgwe_workload_queue_depth)", "workloads and gangs"),),
                      width=8),
                Panel(
                    "From creation to placement", "timeseries",
                    (Query(quantile(0.5, "kgwe_scheduling_latency_seconds"), "p50"),
                     Query(quantile(0.95, "kgwe_scheduling_latency_seconds"), "p95")), "s", 8,
                ),
                Panel(
                    "Refusals by reason", "timeseries",
                    (Query("sum by (reason) (rate(kgwe_scheduling_failures_total[$__rate_interval]))", "{{reason}}"),),
                    "ops", 8, stacked=True,
                ),
                Panel(
                    "Started by strategy", "timeseries",
                    (Query("sum by (strategy) (rate(warp_gpuworkload_scheduled_total[$__rate_interval]))",
                           "{{strategy}}"),), "ops", 8, stacked=True,
                ),
                Panel(
                    "Decisions by result", "timeseries",
                    (Query("sum by (result) (rate(topology_placement_decisions_total[$__rate_interval]))",
                           "{{result}}"),), "ops", 8, stacked=True,
                ),
                Panel(
                    "Time of a decision", "timeseries",
                    (Query(quantile(0.99, "topology_scheduler_latency_seconds", "strategy"), "{{strategy}}"),), "s", 8,
                ),
            ),
        ),
        Row(
            "kube-scheduler",
            (
                Panel(
                    "Calls", "timeseries",
                    (Query("sum by (verb, outcome) (rate(kgwe_extender_requests_total[$__rate_interval]))",
                           "{{verb}} {{outcome}}"),), "ops", 12, stacked=True,
                ),
                Panel(
                    "Time of a call, p99", "timeseries",
                    (Query(quantile(0.99, "kgwe_extender_duration_seconds", "verb"), "{{verb}}"),), "s", 12,
                    limits=(0.05, 0.1),
                ),
            ),
        ),
        Row(
            "Topology",
            (
                Panel(
                    "Allocation of domains", "bargauge",
                    (Query('topology_domain_utilization_ratio{level=~"$level"}', "{{level}} {{domain}}"),),
                    "percentunit", 8, 10, top=1,
                ),
                Panel(
                    "Fragmentation of domains", "bargauge",
                    (Query('topology_domain_fragmentation_ratio{level=~"$level"}', "{{level}} {{domain}}"),),
                    "percentunit", 8, 10, "Share of free GPUs on nodes that are partly used", top=1,
                ),
                Panel(
                    "Nearness of free GPUs", "bargauge",
                    (Query(f"max by (node) ({own('kgwe_topology_score', 'node')})", "{{node}}"),), "short", 8, 10,
                    "50: across sockets, 100: NVLink, 0: none is free", top=100,
                ),
            ),
        ),
        Row(
            "Disruption",
            (
                Panel(
                    "Preempted pods", "timeseries",
                    (Query("sum(rate(kgwe_preemptions_total[$__rate_interval]))", "pods"),), "ops", 8,
                ),
                Panel(
                    "Recoveries", "timeseries",
                    (Query("sum by (outcome) (rate(kgwe_recoveries_total[$__rate_interval]))", "{{outcome}}"),),
                    "ops", 8,
                ),
                Panel(
                    "From failure to running again", "timeseries",
                    (Query("sum by (le) (rate(topology_recovery_duration_seconds_bucket[$__rate_interval]))",
                           "{{le}} s"),), "ops", 8, about="Recoveries that took at most so long",
                ),
            ),
        ),
    ),
    (_LEVEL,),
)  # fmt: skip

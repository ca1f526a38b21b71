"""Recorded series of the scheduler."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.promql import quantile, ratio
from kgwe.monitoring.rules.types import Group, Recording

GROUP: Final = Group(
    "kgwe-scheduling",
    recordings=(
        Recording(
            "kgwe:extender_duration_seconds:p99_5m",
            quantile(0.99, "kgwe_extender_duration_seconds", "verb", window="5m"),
            "99th percentile of the time of one call of kube-scheduler",
        ),
        Recording(
            "kgwe:reconcile_duration_seconds:p95_5m",
            quantile(0.95, "warp_gpuworkload_reconcile_duration_seconds", window="5m"),
            "95th percentile of the time of one reconcile",
        ),
        Recording(
            "kgwe:workload_errors:ratio_5m",
            ratio(
                'sum(rate(warp_gpuworkload_failed_total{reason="job_creation_failed"}[5m]))',
                'sum(rate(warp_gpuworkload_failed_total{reason="job_creation_failed"}[5m]))'
                " + (sum(rate(warp_gpuworkload_scheduled_total[5m])) or vector(0))",
            ),
            "Share of attempts that ended with an error; a workload that waits for room is no error",
        ),
        Recording(
            "kgwe:preemptions:ratio_1h",
            ratio("sum(increase(kgwe_preemptions_total[1h]))", "sum(increase(kgwe_scheduling_successes_total[1h]))"),
            "Pods stopped for more important work, per placement",
        ),
    ),
)

"""GPU MIG and Sharing: slices, their use, layout changes and MPS."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own, rename

_SLICES: Final = rename(
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""}',
    node="Hostname", gpu_uuid="UUID", profile="GPU_I_PROFILE", gpu_instance="GPU_I_ID",
)  # fmt: skip
_SLICE: Final = "node, gpu_uuid, gpu_instance, profile"
_AGENT: Final = rename(own("kgwe_mig_instance_utilization_percent", "node"), gpu_instance="gpu_instance_id")
_ACTIVITY: Final = f"(max by ({_SLICE}) ({_AGENT} / 100) or max by ({_SLICE}) ({_SLICES}))"
_SHARERS: Final = "count by (node, gpu_uuid) (kgwe:pod_gpu_activity:ratio)"

DASHBOARD: Final = Dashboard(
    "gpu-sharing",
    "GPU MIG and Sharing",
    "MIG slices and shared GPUs: how many there are, and what they do.",
    (
        Row(
            "MIG",
            (
                Panel("Slices", "stat", (Query(f"count({_ACTIVITY})"),), height=4),
                Panel(
                    "Mean activity of slices", "stat", (Query(f"avg({_ACTIVITY})"),), "percentunit", height=4,
                    limits=(0.5, 0.9), falling=True,
                ),
                Panel("Requests that wait", "stat", (Query("max(kgwe_mig_waiting)"),), height=4, limits=(1, 5)),
                Panel(
                    "Layout changes", "stat", (Query("sum(increase(kgwe_mig_recuts_total[$__range]))"),), height=4,
                    about="In the chosen time",
                ),
                Panel(
                    "Slices by profile", "timeseries", (Query(f"count by (profile) ({_ACTIVITY})", "{{profile}}"),),
                    width=8, stacked=True,
                ),
                Panel(
                    "Activity by profile", "timeseries", (Query(f"avg by (profile) ({_ACTIVITY})", "{{profile}}"),),
                    "percentunit", 8, top=1,
                ),
                Panel(
                    "GPUs by phase of their layout", "timeseries",
                    (Query("max by (phase) (kgwe_mig_cards)", "{{phase}}"),), width=8, stacked=True,
                ),
                Panel(
                    "Activity of slices", "status-history",
                    (Query(_ACTIVITY, "{{node}} {{gpu_uuid}} {{gpu_instance}} {{profile}}"),), "percentunit", 24, 10,
                    top=1,
                ),
            ),
        ),
        Row(
            "Shared GPUs",
            (
                Panel(
                    "Pods per GPU", "timeseries", (Query(f"max by (node) ({_SHARERS})", "{{node}}"),), width=8,
                    about="The most pods on one GPU of a node",
                ),
                Panel("GPUs that several pods hold", "stat", (Query(f"(count({_SHARERS} > 1) or vector(0))"),),
                      width=8),
                Panel(
                    "Busiest shared GPUs", "table",
                    (Query(f"topk(10, kgwe:gpu_activity:ratio and on (gpu_uuid) {_SHARERS})"),), "percentunit", 8,
                ),
            ),
        ),
    ),
)  # fmt: skip

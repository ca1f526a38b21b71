"""GPU Pods: the GPUs and slices of one pod."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.dashboards.variables import NAMESPACE, POD
from kgwe.monitoring.panels import Dashboard, Panel, Query, Row

_CHOSEN: Final = '{namespace=~"$namespace", pod=~"$pod"}'


def _of_its_gpus(series: str) -> str:
    """Return a series of GPUs, of those that the pod holds."""
    return f"{series} and on (gpu_uuid) kgwe:pod_gpu_activity:ratio{_CHOSEN}"


DASHBOARD: Final = Dashboard(
    "gpu-pods",
    "GPU Pods",
    "What one pod does with each of its GPUs.",
    (
        Row(
            "The pod",
            (
                Panel("GPUs and slices", "stat", (Query(f"count(kgwe:pod_gpu_activity:ratio{_CHOSEN})"),), height=4),
                Panel(
                    "Mean activity", "stat", (Query(f"avg(kgwe:pod_gpu_activity:ratio{_CHOSEN})"),), "percentunit",
                    height=4, limits=(0.5, 0.8), falling=True,
                ),
                Panel("GPU memory", "stat", (Query(f"sum(kgwe:pod_gpu_memory:bytes{_CHOSEN})"),), "bytes", height=4),
                Panel(
                    "Power of its GPUs", "stat", (Query(f"sum({_of_its_gpus('kgwe:gpu_power:watts')})"),), "watt",
                    height=4,
                ),
            ),
        ),
        Row(
            "By GPU",
            (
                Panel(
                    "Activity", "timeseries",
                    (Query(f"kgwe:pod_gpu_activity:ratio{_CHOSEN}", "{{pod}} {{gpu_uuid}}"),), "percentunit", 12,
                    top=1,
                ),
                Panel(
                    "Memory", "timeseries",
                    (Query(f"kgwe:pod_gpu_memory:bytes{_CHOSEN}", "{{pod}} {{gpu_uuid}}"),), "bytes", 12,
                ),
                Panel(
                    "Activity of the whole GPU", "timeseries",
                    (Query(_of_its_gpus("kgwe:gpu_activity:ratio"), "{{gpu_uuid}}"),), "percentunit", 12, top=1,
                    about="With all pods that share it",
                ),
                Panel(
                    "Temperature", "timeseries",
                    (Query(_of_its_gpus("kgwe:gpu_temperature:celsius"), "{{gpu_uuid}}"),), "celsius", 12,
                    limits=(70, 85),
                ),
                Panel(
                    "Where it runs", "table",
                    (Query(f"max by (namespace, pod, node, gpu_uuid) (kgwe:pod_gpu_activity:ratio{_CHOSEN})"),),
                    "percentunit", 24,
                ),
            ),
        ),
    ),
    (NAMESPACE, POD),
)  # fmt: skip

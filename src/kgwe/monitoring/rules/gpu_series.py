"""Recorded series of GPUs and of the pods that hold them: the same names for KGWE's agent and for dcgm-exporter.

KGWE's agent comes first; dcgm-exporter fills in for GPUs without one. A GPU without any reading has no series.
"""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.promql import own, rename
from kgwe.monitoring.rules.types import Group, Recording

_CARD: Final = "node, gpu_uuid, model"
_HELD: Final = "namespace, pod, node, gpu_uuid, gpu_instance"
_MIB: Final = 1024 * 1024


def _name_device(expr: str) -> str:
    """Return series of dcgm-exporter with the labels of KGWE's agent."""
    return rename(expr, node="Hostname", gpu_uuid="UUID", model="modelName", gpu_instance="GPU_I_ID")


def _of_card(metric: str) -> str:
    """Return a value of dcgm-exporter by GPU: repeated for each pod and slice, it counts once."""
    return f"max by ({_CARD}) ({_name_device(metric)})"


def _sum_of_slices(metric: str) -> str:
    """Return a value of dcgm-exporter by GPU: the sum of its slices, each once."""
    return f"sum by ({_CARD}) (max by ({_CARD}, gpu_instance) ({_name_device(metric)}))"


def _by_agent(metric: str) -> str:
    return f"max by ({_CARD}) ({own(metric, 'node')})"


def _of_pods(metric: str) -> str:
    """Return series of pods. If a job uses `exported_pod`, its label `pod` is that of the exporter itself."""
    renamed = own(f'{metric}{{exported_pod!=""}}', "pod", "namespace")
    plain = f'({metric}{{exported_pod="",pod!=""}} unless on (job) {metric}{{exported_pod!=""}})'
    return f"({renamed} or {plain})"


def _held_by_pods(agent: str, dcgm: str, scale: str, dcgm_scale: str) -> str:
    ours = f"max by ({_HELD}) ({own(_of_pods(agent), 'node')}{scale})"
    theirs = f"max by ({_HELD}) ({_name_device(_of_pods(dcgm))}{dcgm_scale})"
    return f"{ours} or on (namespace, pod, gpu_uuid) {theirs}"


_SLICES: Final = f"avg by ({_CARD}) ({own('kgwe_mig_instance_utilization_percent', 'node')}) / 100"
_ENGINE: Final = f"avg by ({_CARD}) ({_name_device('DCGM_FI_PROF_GR_ENGINE_ACTIVE')})"
_UTIL: Final = _of_card('DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=""}')

GROUP: Final = Group(
    "kgwe-gpus",
    recordings=(
        Recording(
            "kgwe:gpu_activity:ratio",
            f"{_by_agent('kgwe_gpu_utilization_percent')} / 100 or on (gpu_uuid) {_SLICES}"
            f" or on (gpu_uuid) {_ENGINE} or on (gpu_uuid) {_UTIL} / 100",
            "Share of time in which a GPU worked, 0 to 1; for a GPU cut by MIG the mean of its slices",
        ),
        Recording(
            "kgwe:gpu_memory_used:bytes",
            f"{_by_agent('kgwe_gpu_memory_used_bytes')}"
            f" or on (gpu_uuid) {_sum_of_slices('DCGM_FI_DEV_FB_USED')} * {_MIB}",
            "GPU memory in use",
        ),
        Recording(
            "kgwe:gpu_memory_total:bytes",
            f"{_by_agent('kgwe_gpu_memory_total_bytes')}"
            f" or on (gpu_uuid) ({_sum_of_slices('DCGM_FI_DEV_FB_USED')} + {_sum_of_slices('DCGM_FI_DEV_FB_FREE')})"
            f" * {_MIB}",
            "Memory of a GPU",
        ),
        Recording(
            "kgwe:gpu_temperature:celsius",
            f"{_by_agent('kgwe_gpu_temperature_celsius')} or on (gpu_uuid) {_of_card('DCGM_FI_DEV_GPU_TEMP')}",
            "Temperature of a GPU",
        ),
        Recording(
            "kgwe:gpu_power:watts",
            f"{_by_agent('kgwe_gpu_power_watts')} or on (gpu_uuid) {_of_card('DCGM_FI_DEV_POWER_USAGE')}",
            "Power draw of a GPU",
        ),
        Recording(
            "kgwe:pod_gpu_activity:ratio",
            _held_by_pods("kgwe_gpu_pod_share_percent", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", " / 100", ""),
            "Share of time in which the GPU or slice that a pod holds worked for it",
        ),
        Recording(
            "kgwe:pod_gpu_memory:bytes",
            _held_by_pods("kgwe_gpu_pod_memory_bytes", "DCGM_FI_DEV_FB_USED", "", f" * {_MIB}"),
            "GPU memory that a pod holds",
        ),
        Recording("kgwe:node_gpu_activity:ratio", "avg by (node) (kgwe:gpu_activity:ratio)", "Mean over a node's GPUs"),
        Recording("kgwe:cluster_gpu_activity:ratio", "avg(kgwe:gpu_activity:ratio)", "Mean over all GPUs"),
        Recording(
            "kgwe:namespace_gpu_devices:count",
            "count by (namespace) (kgwe:pod_gpu_activity:ratio)",
            "GPUs and slices that pods of a namespace hold",
        ),
    ),
)

"""Alerts of the autoscaler."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.promql import quantile
from kgwe.monitoring.rules.types import Alert, Group

_LOGS: Final = "`kubectl -n kgwe-system logs deploy/kgwe-autoscaler`"
_STATUS: Final = "`kgwe scale status`"
_BUCKETS: Final = "gpu_autoscaler_scaling_duration_seconds_bucket"

GROUP: Final = Group(
    "kgwe-autoscaler-alerts",
    alerts=(
        Alert(
            "GPUAutoscalerErrors",
            "sum(increase(gpu_autoscaler_reconcile_errors_total[15m])) > 0",
            "warning",
            "The autoscaler cannot act on a policy",
            "A round failed for at least one AutoscalingPolicy. Other policies are not affected.",
            (_STATUS, "`kubectl get autoscalingpolicies -o yaml`: the condition `Ready`", _LOGS),
            ("the reason of the condition has a runbook: `CannotAct`, `CloudFails` or `InvalidPolicy`",),
            (("gpu_autoscaler_reconcile_errors_total", "0+1x60"),),
            (("gpu_autoscaler_reconcile_errors_total", "2x1440"),),
        ),
        Alert(
            "GPUAutoscalerStopped",
            "time() - max(gpu_autoscaler_last_reconcile_timestamp > 0) > 600",
            "critical",
            "The autoscaler has made no round for {{ $value | humanizeDuration }}",
            "No node is bought or removed. Idle nodes cost money.",
            (_STATUS, "`/readyz` of the autoscaler", _LOGS),
            ("restart the pod", "it lacks a right: the log names it"),
            (("gpu_autoscaler_last_reconcile_timestamp", "1x60"),),
            (("gpu_autoscaler_last_reconcile_timestamp", "0+60x1440"),),
            wait="0m",
        ),
        Alert(
            "GPUNodeLaunchFailures",
            "sum by (kind) (increase(gpu_autoscaler_launch_errors_total[15m])) > 2",
            "warning",
            "Launches of nodes fail: {{ $labels.kind }}",
            "The cloud refused nodes. Other zones and pools are tried.",
            (_STATUS, "quota and capacity of the region in the cloud's console"),
            ("raise the quota", "allow more zones, instance types or on-demand in the policy"),
            (('gpu_autoscaler_launch_errors_total{kind="capacity"}', "0+1x60"),),
            (('gpu_autoscaler_launch_errors_total{kind="capacity"}', "5x1440"),),
            wait="0m",
        ),
        Alert(
            "GPUCloudSilent",
            "sum by (provider) (increase(gpu_autoscaler_cloud_timeouts_total[15m])) > 2",
            "warning",
            "{{ $labels.provider }} does not answer in time",
            "KGWE does not act on policies of this provider until the provider answers. It acts on all other policies.",
            (_LOGS, "status page of the cloud", "network policies and proxies of kgwe-system"),
            ("wait, or allow the flow to the cloud's API",),
            (('gpu_autoscaler_cloud_timeouts_total{provider="aws"}', "0+1x60"),),
            (('gpu_autoscaler_cloud_timeouts_total{provider="aws"}', "1x1440"),),
            wait="0m",
        ),
        Alert(
            "GPUNodesSlowToStart",
            f"{quantile(0.95, 'gpu_autoscaler_scaling_duration_seconds', window='1h')} > 900",
            "info",
            "Bought nodes need {{ $value | humanizeDuration }} until their GPUs are ready",
            "Workloads wait long for bought capacity.",
            ("which stage takes long: `gpu_autoscaler_node_stages`",),
            ("an image with driver and toolkit", "keep spare nodes: `minNodes`, CapacityBuffer"),
            ((f'{_BUCKETS}{{le="900"}}', "0+1x120"), (f'{_BUCKETS}{{le="1800"}}', "0+9x120"),
             (f'{_BUCKETS}{{le="+Inf"}}', "0+9x120")),
            ((f'{_BUCKETS}{{le="900"}}', "0+1x1440"), (f'{_BUCKETS}{{le="1800"}}', "0+1x1440"),
             (f'{_BUCKETS}{{le="+Inf"}}', "0+1x1440")),
            wait="0m",
        ),
        Alert(
            "GPUInstancesOrphaned",
            "max(gpu_autoscaler_orphaned_instances) > 0",
            "warning",
            "{{ $value }} paid instances belong to no policy, pool or purchase",
            "They cost money and do nothing. KGWE returns those whose owner it can prove.",
            (_STATUS, "the condition `OrphansFound` of the policies"),
            ("return them in the cloud's console if they are not yours to keep",),
            (("gpu_autoscaler_orphaned_instances", "1x120"),),
            (("gpu_autoscaler_orphaned_instances", "0x700 1x5 0x735"),),
            wait="15m",
        ),
        Alert(
            "GPUDemandUnmet",
            "sum by (reason) (gpu_autoscaler_unmet_demand) > 0",
            "info",
            "{{ $value }} workloads wait and nothing is bought for them: {{ $labels.reason }}",
            "No pool of any policy can hold these workloads, or a limit or budget is reached.",
            (_STATUS, "the runbook of the reason"),
            ("add a pool, raise the limit, or change the workload",),
            (('gpu_autoscaler_unmet_demand{reason="NoPoolFits"}', "1x120"),),
            (('gpu_autoscaler_unmet_demand{reason="NoPoolFits"}', "0x1440"),),
            wait="30m",
        ),
        Alert(
            "GPUSpotInterruptions",
            "sum(increase(gpu_autoscaler_spot_interruptions_total[1h])) > 3",
            "info",
            "{{ $value | humanize }} spot nodes were taken back within an hour",
            "Checkpoints were ordered and the pods moved.",
            (_STATUS, "price and availability of the instance types"),
            ("more instance types and zones in the policy", "on-demand for what has a deadline"),
            (("gpu_autoscaler_spot_interruptions_total", "0+1x120"),),
            (("gpu_autoscaler_spot_interruptions_total", "0x700 1x740"),),
            wait="0m",
        ),
    ),
)  # fmt: skip

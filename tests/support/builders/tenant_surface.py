"""Everything that KGWE reads from objects that a tenant may write: one table, from which the attacks are made.

A test reads the source for keys of labels and annotations, and fails on one that is in none of these tables: to add a
key, say here what a tenant could write there.
"""

from __future__ import annotations

from typing import Final

# What stands in the victim's objects; the tenant copies it.
NAMESPACE: Final = "victim"
GANG: Final = "g"
WORKLOAD: Final = "w"

#: key of an annotation or label on pods, Jobs, Deployments -> what the tenant writes there, besides what the victim's
#: objects have under the same key
SURFACE: Final[dict[str, tuple[str, ...]]] = {
    # decisions
    "kgwe.nvidia.io/seat": ("gang:victim/kgwe.nvidia.io/g/0", "gang:tenant/kgwe.nvidia.io/g/0"),
    "kgwe.nvidia.io/cards": ("ff",),
    "kgwe.nvidia.io/slices": ("0@0,0@1",),
    "kgwe.nvidia.io/signature": ("00000000.00000000000000000000000000000000.n1",),
    "kgwe.nvidia.io/round": ("9",),
    "kgwe.nvidia.io/seated": ("true",),
    "kgwe.nvidia.io/seats": ("00000000.00000000000000000000000000000000.n1 ff ", "x"),
    "kgwe.nvidia.io/plan": ("n1=ff", "n1=ff;n2=ff"),
    "kgwe.nvidia.io/plan-details": ("{}",),
    "kgwe.nvidia.io/plan-amounts": ('{"cpu":100000000}', "[", '{"cpu":-1}'),
    "kgwe.nvidia.io/generation": ("1",),
    "kgwe.nvidia.io/recovery-note": ("moved",),
    "kgwe.nvidia.io/request-decision": ('{"profile":"7g.80gb"}', '{"share":0.5,"source":"me"}', "["),
    "kgwe.nvidia.io/original-gpu-request": ("8",),
    "kgwe.nvidia.io/spec-hash": ("00",),
    # suspension
    "kgwe.nvidia.io/suspended-by": ("kgwe-optimizer",),
    "kgwe.nvidia.io/suspended-at": ("2026-01-01T00:00:00Z",),
    "kgwe.nvidia.io/suspended-reason": ("IdleGPU",),
    "kgwe.nvidia.io/suspended-replicas": ("1000000", "-1"),
    "kgwe.nvidia.io/keep-until": ("9999-01-01T00:00:00Z",),
    "kgwe.nvidia.io/idle-since": ("2026-01-01T00:00:00Z",),
    "kgwe.nvidia.io/idle-action-at": ("2026-01-01T00:00:00Z",),
    "kgwe.nvidia.io/idle-saving-per-hour": ("1e308",),
    # whose it is
    "kueue.x-k8s.io/queue-name": ("team-queue",),
    "kgwe.nvidia.io/workload-uid": (),
    "kgwe.nvidia.io/workload": (WORKLOAD,),
    "kgwe.nvidia.io/workload-type": ("Training",),
    "kgwe.nvidia.io/run": (),
    "kgwe.nvidia.io/model": ("llama",),
    "app.kubernetes.io/managed-by": ("kgwe-scheduler",),
    "gpu.warp.dev/controller": ("kgwe-scheduler",),
    "gpu.warp.dev/created-by": ("kgwe-scheduler",),
    "gpu.warp.dev/model": ("llama",),
    "gpu.warp.dev/workload": (WORKLOAD,),
    "batch.kubernetes.io/job-completion-index": ("0",),
    "apps.kubernetes.io/pod-index": ("0",),
    # gangs
    "kgwe.nvidia.io/gang": (GANG, "true"),
    "kgwe.nvidia.io/gang-size": ("2", "1000"),
    "kgwe.nvidia.io/gang-min-size": ("1",),
    "kgwe.nvidia.io/gang-role": ("worker",),
    "kgwe.nvidia.io/rank": ("0",),
    "kgwe.nvidia.io/segment": ("1@leaf",),
    "kgwe.nvidia.io/topology-required": ("leaf",),
    "kgwe.nvidia.io/topology-preferred": ("leaf",),
    "scheduling.x-k8s.io/pod-group": (GANG,),
    "pod-group.scheduling.sigs.k8s.io": (GANG,),
    "pod-group.scheduling.sigs.k8s.io/name": (GANG,),
    "pod-group.scheduling.sigs.k8s.io/min-available": ("2",),
    "scheduling.k8s.io/group-name": (GANG,),
    "scheduling.volcano.sh/group-name": (GANG,),
    "volcano.sh/task-spec": ("worker",),
    "volcano.sh/task-index": ("0",),
    "pod-group-name": (GANG,),
    "kai.scheduler/subgroup-name": ("worker",),
    "kai.scheduler/segment-size": ("1",),
    "kai.scheduler/segment-topology-required-placement": ("leaf",),
    "kai.scheduler/topology-preferred-placement": ("leaf",),
    "kai.scheduler/topology-required-placement": ("leaf",),
    "kueue.x-k8s.io/pod-group-name": (GANG,),
    "kueue.x-k8s.io/pod-group-total-count": ("2",),
    "kueue.x-k8s.io/pod-group-pod-index": ("0",),
    "kueue.x-k8s.io/pod-group-pod-index-label": ("kgwe.nvidia.io/rank",),
    "kueue.x-k8s.io/podset-group-name": (GANG,),
    "kueue.x-k8s.io/podset-required-topology": ("leaf",),
    "kueue.x-k8s.io/podset-preferred-topology": ("leaf",),
    "kueue.x-k8s.io/podset-unconstrained-topology": ("true",),
    "kueue.x-k8s.io/podset-slice-required-topology": ("leaf",),
    "kueue.x-k8s.io/podset-slice-required-topology-constraints": ("[]",),
    "kueue.x-k8s.io/podset-slice-size": ("1",),
    "jobset.sigs.k8s.io/jobset-name": (GANG,),
    "jobset.sigs.k8s.io/replicatedjob-name": ("worker",),
    "jobset.sigs.k8s.io/job-index": ("0",),
    "alpha.jobset.sigs.k8s.io/exclusive-topology": ("leaf",),
    "alpha.jobset.sigs.k8s.io/node-selector": ("true",),
    "leaderworkerset.sigs.k8s.io/name": (GANG,),
    "leaderworkerset.sigs.k8s.io/group-index": ("0",),
    "leaderworkerset.sigs.k8s.io/size": ("2",),
    "leaderworkerset.sigs.k8s.io/worker-index": ("0",),
    "leaderworkerset.sigs.k8s.io/exclusive-topology": ("leaf",),
    "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": ("leaf",),
    "leaderworkerset.sigs.k8s.io/subgroup-policy-type": ("LeaderExcluded",),
    "leaderworkerset.sigs.k8s.io/subgroup-size": ("1",),
    "training.kubeflow.org/job-name": (GANG,),
    "training.kubeflow.org/job-role": ("worker",),
    "training.kubeflow.org/replica-type": ("worker",),
    "training.kubeflow.org/replica-index": ("0",),
    "topology.scheduler/gpu-count": ("8",),
    "topology.scheduler/latency-sensitive": ("true",),
    "topology.scheduler/network-bandwidth": ("100",),
    "topology.scheduler/preferred-domain": ("n1",),
    "topology.scheduler/placement-strategy": ("consolidated",),
    # what a pod is like
    "kgwe.nvidia.io/preemptible": ("false",),
    "kgwe.nvidia.io/recovery": ("RestartGang",),
    "kgwe.nvidia.io/drain": ("consent",),
    "kgwe.nvidia.io/allow-move": ("true",),
    "kgwe.nvidia.io/checkpoint": ("signal=SIGUSR1", "http=1/x"),
    "kgwe.nvidia.io/do-not-disrupt": ("true",),
    "cluster-autoscaler.kubernetes.io/safe-to-evict": ("false",),
    "gpu-autoscaler.io/eviction-priority": ("low",),
    "kgwe.nvidia.io/gpu-architecture": ("Hopper",),
    "kgwe.nvidia.io/gpu-model": ("H100",),
    "kgwe.nvidia.io/gpu-share": ("0.5",),
    "kgwe.nvidia.io/min-bandwidth-gbps": ("600",),
    "kgwe.nvidia.io/min-memory-gb": ("80",),
    "kgwe.nvidia.io/strategy": ("pack",),
    "kgwe.nvidia.io/topology-preference": ("NVLinkRequired",),
    "kgwe.nvidia.io/spot-policy": ("Require",),
    "kgwe.nvidia.io/hardware": ("Same",),
    "gpu-autoscaler.io/spot-ok": ("true",),
    "kgwe.nvidia.io/sharing-mode": ("mig", "exclusive"),
    "kgwe.nvidia.io/mig-profile": ("7g.80gb",),
    "kgwe.nvidia.io/use-profile": ("batch",),
    "gpu-autoscaler.io/workload-type": ("training",),
    "resource.kubernetes.io/pod-claim-name": ("kgwe-gpus",),
}

#: what the source calls a key by a part of it
PREFIXES: Final = (
    "kgwe.nvidia.io/",
    "gpu-autoscaler.io/",
    "kai.scheduler/",
    "kueue.x-k8s.io/pod-group-",
    "kueue.x-k8s.io/podset-",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "training.kubeflow.org/",
    "topology.scheduler/",
)

#: read by the optimizer only, about workloads of the same namespace; the scheduler places nothing by them
NOT_PLACEMENT: Final = (
    "app.kubernetes.io/component",
    "app.kubernetes.io/name",
    "gpu-autoscaler.io/cost-limit",
    "kgwe.nvidia.io/GPUUnderused",
    "kgwe.nvidia.io/cost-limit",
    "kgwe.nvidia.io/notify",
    "kgwe.nvidia.io/spot-ok",
    "kgwe.nvidia.io/user",
)

#: on nodes, in names of resources and of API groups: not for tenants to write
NOT_TENANTS: Final = (
    "accelerator.topograph.run/",
    "apiextensions.k8s.io/v1",
    "batch.kubernetes.io/job-tracking",
    "beta.kubernetes.io/",
    "cloud.google.com/",
    "eks.amazonaws.com/",
    "fabric.topograph.run/",
    "failure-domain.beta.kubernetes.io/",
    "gpu-autoscaler.io/capacity-type",
    "gpu-autoscaler.io/gpu-type",
    "gpu-autoscaler.io/instance-type",
    "gpu-autoscaler.io/node-pool",
    "gpu.warp.dev/finalizer",
    "karpenter.sh/",
    "kgwe.nvidia.io/defrag",  # a taint
    "kgwe.nvidia.io/autoscaling-policy",
    "kgwe.nvidia.io/block",
    "kgwe.nvidia.io/checkpoints",  # on GPUNodes: reports of agents
    "kgwe.nvidia.io/core",
    "kgwe.nvidia.io/defrag",  # a taint
    "kgwe.nvidia.io/finalizer",
    "kgwe.nvidia.io/fleet",
    "kgwe.nvidia.io/gpu-ready-at",
    "kgwe.nvidia.io/gpu-reset",
    "kgwe.nvidia.io/gpu-unhealthy",
    "kgwe.nvidia.io/interruption",  # a taint
    "kgwe.nvidia.io/launch-request",
    "kgwe.nvidia.io/leaf",
    "kgwe.nvidia.io/nvlink-domain",
    "kgwe.nvidia.io/promised-devices",
    "kgwe.nvidia.io/resource-claims",
    "kgwe.nvidia.io/scale-down-drain",
    "kgwe.nvidia.io/scale-down-removal",
    "kgwe.nvidia.io/spine",
    "kubernetes.azure.com/",
    "kubernetes.io/",
    "kubescheduler.config.k8s.io/v1",
    "limits.nvidia.com/gpu",  # of a ResourceQuota
    "network.topology.nvidia.com/",
    "node.kubernetes.io/",
    "nvidia.com/",
    "oci.oraclecloud.com/",
    "requests.nvidia.com/gpu",
    "topology.k8s.aws/",
    "topology.kubernetes.io/",
    # finalizers: written by KGWE and by the Job controller, and read to be removed
)

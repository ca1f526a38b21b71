"""The same job with wishes: where its pods should be, seen from each other."""

from __future__ import annotations

from string import Template

from tests.support.builders.dialect_worlds import LEAF, SPINE

# --- in one leaf ----------------------------------------------------------------------------------------

_REQUIRED = {
    "kgwe": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  annotations:
    kgwe.nvidia.io/gang: llama
    kgwe.nvidia.io/gang-size: "8"
    kgwe.nvidia.io/topology-required: leaf
""",
    "coscheduling with Kueue's annotation": """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8}
---
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {scheduling.x-k8s.io/pod-group: llama}
  annotations: {kueue.x-k8s.io/podset-required-topology: ${leaf}}
""",
    "volcano": """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, networkTopology: {mode: hard, highestTierAllowed: 1}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, annotations: {scheduling.k8s.io/group-name: llama}}
""",
    "volcano by name of the tier": """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: rack-1}
spec: {tier: 1, tierName: rack}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, networkTopology: {highestTierName: rack}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, annotations: {scheduling.k8s.io/group-name: llama}}
""",
    "kai": """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, topologyConstraint: {topology: cluster, requiredTopologyLevel: ${leaf}}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, annotations: {pod-group-name: llama}}
""",
    "kai without its pod grouper": """
apiVersion: batch/v1
kind: Job
metadata:
  name: llama
  namespace: train
  uid: j1
  annotations: {kai.scheduler/topology: cluster, kai.scheduler/topology-required-placement: ${leaf}}
spec: {parallelism: 8, completions: 8}
---
kind: Pod
metadata:
  name: llama-$i-xyz
  namespace: train
  labels: {batch.kubernetes.io/job-completion-index: "$i"}
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llama, uid: j1, controller: true}]
""",
    "kueue": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {kueue.x-k8s.io/pod-group-name: llama}
  annotations:
    kueue.x-k8s.io/pod-group-total-count: "8"
    kueue.x-k8s.io/podset-required-topology: ${leaf}
""",
    "kubernetes": """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec:
  schedulingPolicy: {gang: {minCount: 8}}
  schedulingConstraints: {topology: [{key: ${leaf}}]}
---
kind: Pod
metadata: {name: llama-$i, namespace: train}
spec: {schedulingGroup: {podGroupName: llama}}
""",
}

# --- fours in one leaf each, all in one spine -----------------------------------------------------------

_SEGMENTED = {
    "kgwe": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  annotations:
    kgwe.nvidia.io/gang: llama
    kgwe.nvidia.io/gang-size: "8"
    kgwe.nvidia.io/topology-required: spine
    kgwe.nvidia.io/segment: 4@leaf
""",
    "volcano": """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec:
  minMember: 8
  networkTopology: {mode: hard, highestTierAllowed: 2}
  subGroupPolicy:
  - name: worker
    subGroupSize: 4
    minSubGroups: 2
    labelSelector: {matchLabels: {volcano.sh/task-spec: worker}}
    matchLabelKeys: [volcano.sh/partition-id]
    networkTopology: {mode: hard, highestTierAllowed: 1}
---
kind: Pod
metadata:
  name: llama-worker-$i
  namespace: train
  annotations: {scheduling.k8s.io/group-name: llama}
  labels: {volcano.sh/task-spec: worker, volcano.sh/task-index: "$i", volcano.sh/partition-id: "$q"}
""",
    "kai": """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec:
  topologyConstraint: {topology: cluster, requiredTopologyLevel: ${spine}}
  subGroups:
  - {name: worker, minSubGroup: 2}
  - {name: worker-0, parent: worker, minMember: 4, topologyConstraint: {requiredTopologyLevel: ${leaf}}}
  - {name: worker-1, parent: worker, minMember: 4, topologyConstraint: {requiredTopologyLevel: ${leaf}}}
---
kind: Pod
metadata:
  name: llama-worker-$i
  namespace: train
  annotations: {pod-group-name: llama}
  labels: {kai.scheduler/subgroup-name: worker-$q, training.kubeflow.org/replica-index: "$i"}
""",
    "kueue": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {kueue.x-k8s.io/pod-group-name: llama, kueue.x-k8s.io/pod-group-pod-index: "$i"}
  annotations:
    kueue.x-k8s.io/pod-group-total-count: "8"
    kueue.x-k8s.io/podset-required-topology: ${spine}
    kueue.x-k8s.io/podset-slice-required-topology: ${leaf}
    kueue.x-k8s.io/podset-slice-size: "4"
""",
    "kueue in layers": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {kueue.x-k8s.io/pod-group-name: llama}
  annotations:
    kueue.x-k8s.io/pod-group-total-count: "8"
    kueue.x-k8s.io/podset-required-topology: ${spine}
    kueue.x-k8s.io/podset-slice-required-topology-constraints: '[{"topology": "${leaf}", "size": 4}]'
""",
    "kubernetes with KAI's annotations": """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec:
  schedulingPolicy: {gang: {minCount: 8}}
  schedulingConstraints: {topology: [{key: ${spine}}]}
---
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  annotations: {kai.scheduler/segment-size: "4", kai.scheduler/segment-topology-required-placement: ${leaf}}
spec: {schedulingGroup: {podGroupName: llama}}
""",
    "jobset with Kueue's annotation": """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: llama, namespace: train, uid: js}
spec:
  replicatedJobs:
  - {name: workers, replicas: 2, template: {spec: {parallelism: 4, completions: 4}}}
---
kind: Pod
metadata:
  name: llama-workers-$q-$i
  namespace: train
  labels: {jobset.sigs.k8s.io/jobset-name: llama, jobset.sigs.k8s.io/replicatedjob-name: workers,
           jobset.sigs.k8s.io/job-index: "$q"}
  annotations:
    kueue.x-k8s.io/podset-required-topology: ${spine}
    kueue.x-k8s.io/podset-slice-required-topology: ${leaf}
    kueue.x-k8s.io/podset-slice-size: "4"
""",
}

# --- in one leaf if that can be -------------------------------------------------------------------------

_PREFERRED = {
    "kgwe": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  annotations:
    kgwe.nvidia.io/gang: llama
    kgwe.nvidia.io/gang-size: "8"
    kgwe.nvidia.io/topology-preferred: ${leaf}
""",
    "volcano": """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, networkTopology: {mode: soft, highestTierAllowed: 2}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, annotations: {scheduling.volcano.sh/group-name: llama}}
""",
    "kai": """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, topologyConstraint: {topology: cluster, preferredTopologyLevel: ${leaf}}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, labels: {pod-group-name: llama}}
""",
    "kueue": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {kueue.x-k8s.io/pod-group-name: llama}
  annotations:
    kueue.x-k8s.io/pod-group-total-count: "8"
    kueue.x-k8s.io/podset-preferred-topology: ${leaf}
""",
    "coscheduling with KAI's annotation": """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8}
---
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {scheduling.x-k8s.io/pod-group: llama}
  annotations: {kai.scheduler/topology-preferred-placement: ${leaf}}
""",
}


def _labelled(manifests: dict[str, str]) -> dict[str, str]:
    return {name: Template(text).safe_substitute(leaf=LEAF, spine=SPINE) for name, text in manifests.items()}


REQUIRED = _labelled(_REQUIRED)
SEGMENTED = _labelled(_SEGMENTED)
PREFERRED = _labelled(_PREFERRED)

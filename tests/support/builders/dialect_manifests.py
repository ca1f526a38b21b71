"""One job in many dialects: eight pods of one node each, called train/llama."""

from __future__ import annotations

PLAIN = {
    "kgwe": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  annotations: {kgwe.nvidia.io/gang: llama, kgwe.nvidia.io/gang-size: "8"}
""",
    "coscheduling": """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, scheduleTimeoutSeconds: 60}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, labels: {scheduling.x-k8s.io/pod-group: llama}}
""",
    "coscheduling before 0.25": """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, labels: {pod-group.scheduling.sigs.k8s.io: llama}}
""",
    "coscheduling before 0.19": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels:
    pod-group.scheduling.sigs.k8s.io/name: llama
    pod-group.scheduling.sigs.k8s.io/min-available: "8"
""",
    "volcano": """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, minTaskMember: {worker: 8}, queue: default}
---
kind: Pod
metadata:
  name: llama-worker-$i
  namespace: train
  annotations:
    scheduling.k8s.io/group-name: llama
    volcano.sh/task-spec: worker
    volcano.sh/task-index: "$i"
""",
    "kai": """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {minMember: 8, queue: default-queue, priorityClassName: train}
---
kind: Pod
metadata: {name: llama-$i, namespace: train, annotations: {pod-group-name: llama}}
""",
    "kueue": """
kind: Pod
metadata:
  name: llama-$i
  namespace: train
  labels: {kueue.x-k8s.io/pod-group-name: llama, kueue.x-k8s.io/queue-name: user-queue}
  annotations: {kueue.x-k8s.io/pod-group-total-count: "8"}
""",
    "kubernetes": """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec: {schedulingPolicy: {gang: {minCount: 8}}}
---
kind: Pod
metadata: {name: llama-$i, namespace: train}
spec: {schedulingGroup: {podGroupName: llama}}
""",
    "jobset": """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: llama, namespace: train, uid: js}
spec:
  replicatedJobs:
  - name: workers
    replicas: 2
    template: {spec: {parallelism: 4, completions: 4, completionMode: Indexed}}
---
kind: Pod
count: 4
metadata:
  name: llama-workers-0-$i
  namespace: train
  labels:
    jobset.sigs.k8s.io/jobset-name: llama
    jobset.sigs.k8s.io/replicatedjob-name: workers
    jobset.sigs.k8s.io/job-index: "0"
    batch.kubernetes.io/job-completion-index: "$i"
---
kind: Pod
count: 4
metadata:
  name: llama-workers-1-$i
  namespace: train
  labels:
    jobset.sigs.k8s.io/jobset-name: llama
    jobset.sigs.k8s.io/replicatedjob-name: workers
    jobset.sigs.k8s.io/job-index: "1"
    batch.kubernetes.io/job-completion-index: "$i"
""",
    "job": """
apiVersion: batch/v1
kind: Job
metadata: {name: llama, namespace: train, uid: j1}
spec: {parallelism: 8, completions: 8}
---
kind: Pod
metadata:
  name: llama-$i-xyz
  namespace: train
  labels: {batch.kubernetes.io/job-completion-index: "$i"}
  annotations: {kgwe.nvidia.io/gang: "true"}
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llama, uid: j1, controller: true}]
""",
    "kubeflow": """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: llama, namespace: train, uid: pt}
spec:
  pytorchReplicaSpecs: {Master: {replicas: 1}, Worker: {replicas: 7}}
---
kind: Pod
count: 1
metadata:
  name: llama-master-0
  namespace: train
  labels: {training.kubeflow.org/job-name: llama, training.kubeflow.org/replica-type: master,
           training.kubeflow.org/replica-index: "0"}
  ownerReferences: [{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: llama, uid: pt, controller: true}]
---
kind: Pod
count: 7
metadata:
  name: llama-worker-$i
  namespace: train
  labels: {training.kubeflow.org/job-name: llama, training.kubeflow.org/replica-type: worker,
           training.kubeflow.org/replica-index: "$i"}
  ownerReferences: [{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: llama, uid: pt, controller: true}]
""",
}

"""Slim views of the built-in kinds KGWE reads: Node, Pod, Job, Namespace, Lease."""

from __future__ import annotations

from typing import Any

import msgspec

from kgwe.kube.api.meta import Condition, ObjectMeta, OwnerReference

__all__ = ["Condition", "EndedPod", "Job", "Lease", "Node", "ObjectMeta", "OwnerReference", "Pod"]


class Taint(msgspec.Struct, frozen=True, gc=False):
    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    #: name of the instance at its cloud
    providerID: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class Node(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceLabels(msgspec.Struct, frozen=True):
    """A namespace without its spec and status."""

    metadata: ObjectMeta


class ConfigMap(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class ResourceRequirements(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restartPolicy: str = ""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeRequirement(msgspec.Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(msgspec.Struct, frozen=True, gc=False):
    matchExpressions: tuple[NodeRequirement, ...] = ()
    matchFields: tuple[NodeRequirement, ...] = ()


class NodeSelector(msgspec.Struct, frozen=True, gc=False):
    nodeSelectorTerms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(msgspec.Struct, frozen=True, gc=False):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(msgspec.Struct, frozen=True, gc=False):
    nodeAffinity: NodeAffinity = NodeAffinity()


class SchedulingGate(msgspec.Struct, frozen=True, gc=False):
    name: str


class SchedulingGroup(msgspec.Struct, frozen=True, gc=False):
    """Kubernetes 1.36 and later: the PodGroup a pod belongs to."""

    podGroupName: str = ""


class WorkloadReference(msgspec.Struct, frozen=True, gc=False):
    """Kubernetes 1.35: the part of a Workload a pod belongs to."""

    name: str
    podGroup: str = ""
    podGroupReplicaKey: str = ""


class PodResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """Devices that a pod has by a ResourceClaim."""

    name: str
    resourceClaimTemplateName: str = ""


class PodSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""
    schedulerName: str = ""
    priority: int = 0
    preemptionPolicy: str = ""
    containers: tuple[Container, ...] = ()
    initContainers: tuple[Container, ...] = ()
    overhead: dict[str, str] = {}
    #: of the pod as a whole; replaces the sum over containers for CPU, memory and huge pages
    resources: ResourceRequirements = ResourceRequirements()
    nodeSelector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    #: kube-scheduler does not schedule the pod before all of them are removed
    schedulingGates: tuple[SchedulingGate, ...] = ()
    resourceClaims: tuple[PodResourceClaim, ...] = ()
    schedulingGroup: SchedulingGroup | None = None
    workloadRef: WorkloadReference | None = None


class PodResourceClaimStatus(msgspec.Struct, frozen=True, gc=False):
    """The ResourceClaim that was made for one of a pod's claims."""

    name: str
    resourceClaimName: str = ""


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    startTime: str | None = None
    nominatedNodeName: str = ""
    resourceClaimStatuses: tuple[PodResourceClaimStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ContainerEnd(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    running: dict[str, Any] | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    state: ContainerState = ContainerState()
    lastState: ContainerState = ContainerState()


class EndedPodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    containerStatuses: tuple[ContainerStatus, ...] = ()
    initContainerStatuses: tuple[ContainerStatus, ...] = ()


class EndedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod with what tells how it ended. Informers leave that out: it is the largest part of a pod's status."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: EndedPodStatus = EndedPodStatus()


class JobStatus(msgspec.Struct, frozen=True, gc=False):
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    completedIndexes: str = ""
    startTime: str | None = None
    completionTime: str | None = None
    conditions: tuple[Condition, ...] = ()


class PodTemplate(msgspec.Struct, frozen=True, gc=False):
    spec: PodSpec = PodSpec()


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False
    activeDeadlineSeconds: int | None = None
    template: PodTemplate = PodTemplate()


class Job(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Secret(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class LeaseSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    holderIdentity: str = ""
    leaseDurationSeconds: int = 0
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int = 0


class Lease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()

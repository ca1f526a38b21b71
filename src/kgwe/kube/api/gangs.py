"""Slim views of the objects in which other systems describe gangs. Where each is documented: docs/dialects.md."""

from __future__ import annotations

from typing import Any

import msgspec

from kgwe.kube.api.core import PodTemplate
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time

# --- coscheduling (scheduler-plugins) -------------------------------------------------------------------


class CoschedulingSpec(msgspec.Struct, frozen=True):
    minMember: int = 0
    scheduleTimeoutSeconds: int | None = None


class CoschedulingPodGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: CoschedulingSpec = CoschedulingSpec()


# --- Volcano --------------------------------------------------------------------------------------------


class NetworkTopology(msgspec.Struct, frozen=True):
    mode: str = "hard"
    highestTierAllowed: int | None = None
    highestTierName: str = ""


class LabelRequirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(msgspec.Struct, frozen=True):
    matchLabels: dict[str, str] = {}
    matchExpressions: tuple[LabelRequirement, ...] = ()


class SubGroupPolicy(msgspec.Struct, frozen=True):
    name: str = ""
    networkTopology: NetworkTopology | None = None
    subGroupSize: int | None = None
    minSubGroups: int | None = None
    labelSelector: LabelSelector | None = None
    matchLabelKeys: tuple[str, ...] = ()


class VolcanoSpec(msgspec.Struct, frozen=True):
    minMember: int = 0
    minTaskMember: dict[str, int] = {}
    networkTopology: NetworkTopology | None = None
    subGroupPolicy: tuple[SubGroupPolicy, ...] = ()


class VolcanoPodGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: VolcanoSpec = VolcanoSpec()


class HyperNodeSpec(msgspec.Struct, frozen=True):
    tier: int = 0
    tierName: str = ""


class HyperNode(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: HyperNodeSpec = HyperNodeSpec()


# --- KAI ------------------------------------------------------------------------------------------------


class TopologyConstraint(msgspec.Struct, frozen=True):
    requiredTopologyLevel: str = ""
    preferredTopologyLevel: str = ""


class SubGroup(msgspec.Struct, frozen=True):
    name: str
    minMember: int | None = None
    minSubGroup: int | None = None
    parent: str | None = None
    topologyConstraint: TopologyConstraint | None = None


class KaiSpec(msgspec.Struct, frozen=True):
    minMember: int | None = None
    minSubGroup: int | None = None
    topologyConstraint: TopologyConstraint | None = None
    subGroups: tuple[SubGroup, ...] = ()


class KaiPodGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: KaiSpec = KaiSpec()


# --- Kubernetes -----------------------------------------------------------------------------------------


class GangPolicy(msgspec.Struct, frozen=True):
    minCount: int


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """Without `gang` it is `basic`: each pod for itself."""

    gang: GangPolicy | None = None


class TopologyKey(msgspec.Struct, frozen=True):
    key: str


class SchedulingConstraints(msgspec.Struct, frozen=True):
    topology: tuple[TopologyKey, ...] = ()


class PodGroupSpec(msgspec.Struct, frozen=True):
    schedulingPolicy: SchedulingPolicy = SchedulingPolicy()
    schedulingConstraints: SchedulingConstraints | None = None
    priority: int | None = None
    parentCompositePodGroupName: str | None = None


class PodGroup(msgspec.Struct, frozen=True):
    """scheduling.k8s.io, Kubernetes 1.36 and later."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()


class WorkloadPodGroup(msgspec.Struct, frozen=True):
    name: str
    policy: SchedulingPolicy = SchedulingPolicy()


class WorkloadSpec(msgspec.Struct, frozen=True):
    podGroups: tuple[WorkloadPodGroup, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """scheduling.k8s.io, Kubernetes 1.35."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()


# --- owners ---------------------------------------------------------------------------------------------


class ChildJobSpec(msgspec.Struct, frozen=True):
    parallelism: int = 1
    completions: int | None = None


class ChildJob(msgspec.Struct, frozen=True):
    spec: ChildJobSpec = ChildJobSpec()


class ReplicatedJob(msgspec.Struct, frozen=True):
    name: str
    replicas: int = 1
    template: ChildJob = ChildJob()
    dependsOn: tuple[dict[str, Any], ...] = ()


class StartupPolicy(msgspec.Struct, frozen=True):
    startupPolicyOrder: str = "AnyOrder"


class JobSetSpec(msgspec.Struct, frozen=True):
    replicatedJobs: tuple[ReplicatedJob, ...] = ()
    startupPolicy: StartupPolicy | None = None


class JobSet(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: JobSetSpec = JobSetSpec()


class LwsSubGroupPolicy(msgspec.Struct, frozen=True):
    subGroupPolicyType: str = "LeaderWorker"


class LeaderWorkerTemplate(msgspec.Struct, frozen=True):
    size: int = 1
    workerTemplate: PodTemplate = PodTemplate()
    subGroupPolicy: LwsSubGroupPolicy | None = None


class LeaderWorkerSetSpec(msgspec.Struct, frozen=True):
    leaderWorkerTemplate: LeaderWorkerTemplate = LeaderWorkerTemplate()
    startupPolicy: str = "LeaderCreated"


class LeaderWorkerSet(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class ReplicaSpec(msgspec.Struct, frozen=True):
    replicas: int = 1


class RunSchedulingPolicy(msgspec.Struct, frozen=True):
    minAvailable: int | None = None


class RunPolicy(msgspec.Struct, frozen=True):
    schedulingPolicy: RunSchedulingPolicy | None = None


class ElasticPolicy(msgspec.Struct, frozen=True):
    minReplicas: int | None = None


class TrainingJobSpec(msgspec.Struct, frozen=True):
    """Every kind of the training operator fills one of the maps."""

    pytorchReplicaSpecs: dict[str, ReplicaSpec] = {}
    mpiReplicaSpecs: dict[str, ReplicaSpec] = {}
    tfReplicaSpecs: dict[str, ReplicaSpec] = {}
    xgbReplicaSpecs: dict[str, ReplicaSpec] = {}
    paddleReplicaSpecs: dict[str, ReplicaSpec] = {}
    jaxReplicaSpecs: dict[str, ReplicaSpec] = {}
    runPolicy: RunPolicy = RunPolicy()
    elasticPolicy: ElasticPolicy | None = None
    launcherCreationPolicy: str = "AtStartup"

    @property
    def replicas(self) -> dict[str, int]:
        """Replica type, in lower case as pods are labelled with it -> pods."""
        maps = (
            self.pytorchReplicaSpecs,
            self.mpiReplicaSpecs,
            self.tfReplicaSpecs,
            self.xgbReplicaSpecs,
            self.paddleReplicaSpecs,
            self.jaxReplicaSpecs,
        )
        return {name.lower(): spec.replicas for each in maps for name, spec in each.items()}


class ReplicaStatus(msgspec.Struct, frozen=True):
    succeeded: int = 0


class TrainingJobStatus(msgspec.Struct, frozen=True):
    replicaStatuses: dict[str, ReplicaStatus] | None = None

    def count_succeeded(self, role: str) -> int:
        """Pods of a replica type, named in lower case, that are done."""
        return sum(each.succeeded for name, each in (self.replicaStatuses or {}).items() if name.lower() == role)


class TrainingJob(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: TrainingJobSpec = TrainingJobSpec()
    status: TrainingJobStatus = TrainingJobStatus()

"""GPUWorkload of kgwe.nvidia.io/v1: one object for a whole GPU job."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from kgwe.kube.api.kgwe.gpu_requirements import GPURequirements
from kgwe.kube.api.kgwe.gpuworkload_status import DEGRADED_REASON, SUSPENDED, GPUWorkloadStatus
from kgwe.kube.api.kgwe.podtemplate import POD_TEMPLATE
from kgwe.kube.api.kgwe.schedulerconfig import DEVICE_MODES
from kgwe.kube.api.schema import (
    AGE,
    ApiStruct,
    Column,
    CustomObject,
    Definition,
    Rule,
    Timestamp,
    about,
    match_pattern,
)
from kgwe.model.units.limits import MAX_GPUS_PER_NODE, MOST_REPLICAS

# Names end up in labels, Job names and host names, all of which stop at a DNS label.
NAME_IS_A_LABEL = Rule(
    "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
    "the name becomes part of Job, pod and host names: use at most 63 characters, only a-z, 0-9 and -, and no dots",
)


class SpotPolicy(StrEnum):
    """Whether the pods run on spot nodes, which their provider may take back at any time."""

    AVOID = "Avoid"
    ALLOW = "Allow"
    REQUIRE = "Require"


SPOT_POLICY = about(
    "Whether the pods run on spot nodes, which their provider may take back at any time. Allow: spot nodes are as good"
    " as any. Require: only spot nodes; the work waits for them. Avoid, one pod: a spot node only when no other node"
    " fits. Avoid, several pods: spot nodes only when no plan without them is good enough. Such a plan has all pods and"
    " keeps preferredLevel. It is at the same level or a lower one, or it has at least half the bandwidth. Left out:"
    " Allow for work that is preemptible, costOptimized or has spot terms, else Avoid.",
    enum=SpotPolicy,
)


class SpotTerms(ApiStruct, frozen=True):
    """What the autoscaler needs to know to choose between spot, waiting for spot, and on-demand."""

    deadline: Annotated[Timestamp | None, about("When the work must be done.")] = None
    checkpointIntervalSeconds: Annotated[
        int | None,
        about(
            "How often it saves its work; as much is lost at worst when a node is taken back. Left out: all of it is"
            " lost, or nothing if its pods have the annotation kgwe.nvidia.io/checkpoint.",
            ge=1,
            le=31_536_000,
        ),
    ] = None
    restartSeconds: Annotated[
        int, about("How long a start takes before the work goes on: images, data, last checkpoint.", ge=0, le=86_400)
    ] = 180
    maxWaitSeconds: Annotated[
        int | None,
        about(
            "How long it waits for spot nodes at most; then on-demand nodes are bought. Left out: as the deadline"
            " allows, or not at all without a deadline.",
            ge=0,
            le=31_536_000,
        ),
    ] = None
    extraReplicas: Annotated[
        int,
        about(
            "Of Inference: replicas beside spec.replicas, so that enough serve while lost ones start again. They run"
            " on spot nodes only; on-demand nodes are bought for spec.replicas at most.",
            ge=0,
            le=16,
        ),
    ] = 0


SUSPEND = about(
    "Whether it is suspended. Suspended, its pods are stopped, it holds no GPUs, and it does not wait in the queue. Set"
    " back to false, it waits in the queue with the time of its creation, and starts from the beginning. A workload"
    " that has succeeded or failed is not changed."
)


class WorkloadType(StrEnum):
    TRAINING = "Training"
    INFERENCE = "Inference"
    FINE_TUNING = "FineTuning"
    DATA_PREPROCESSING = "DataPreprocessing"
    REINFORCEMENT = "Reinforcement"
    VISUALIZATION = "Visualization"


class DistributedConfig(ApiStruct, frozen=True):
    """How the ranks of a distributed job work together."""

    strategy: Annotated[
        str,
        about(
            "How the model is spread over the ranks. Ranks of all but DataParallel and PipelineParallel talk all the"
            " time: without a topology.preference of their own they get the best wired GPUs (NVLinkOptimal).",
            enum=("DataParallel", "ModelParallel", "PipelineParallel", "Hybrid", "FSDP", "DeepSpeed"),
        ),
    ] = ""
    worldSize: Annotated[
        int | None,
        about("Number of ranks, divided equally over the pods. With NCCL each rank needs a GPU.", ge=1),
    ] = None
    backend: Annotated[str, about("Communication backend of the ranks.", enum=("NCCL", "Gloo", "MPI"))] = "NCCL"


class RecoveryPolicy(StrEnum):
    """What is done when a node or GPU fails under the workload."""

    REPLACE_FAILED = "ReplaceFailed"
    RESTART_GANG = "RestartGang"
    NONE = "None"


class RetryPolicy(ApiStruct, frozen=True):
    """Retries after errors. Waiting for free GPUs is not an error and is never counted."""

    maxRetries: Annotated[int, about("Errors tolerated before the workload is Failed.", ge=1, le=10)] = 3
    backoffSeconds: Annotated[
        int, about("Wait before the first retry; it doubles each time, up to five minutes.", ge=1, le=300)
    ] = 30


STRATEGY_NAME = match_pattern(
    "[a-zA-Z][a-zA-Z0-9]*",
    "schedulingStrategy is the name of a strategy, letters and digits only: score, pack, spread, leastLoaded, random,"
    " costOptimized, mixfit or one that your administrator installed",
)


class GPUWorkloadSpec(ApiStruct, frozen=True):
    """What to run and what it needs."""

    rules: ClassVar = (
        Rule(
            "!has(self.gpuRequirements.share) || !has(self.deviceMode) || self.deviceMode != 'DRA'",
            "ResourceClaims are for whole GPUs and MIG slices: remove deviceMode DRA, or gpuRequirements.share",
            field=".deviceMode",
        ),
        Rule(
            "!has(self.gpuRequirements.share) || !has(self.distributedConfig)"
            " || !has(self.distributedConfig.worldSize) || self.distributedConfig.worldSize == 1",
            "a share is for one pod with one rank: remove distributedConfig.worldSize, or ask for whole GPUs",
            field=".distributedConfig",
        ),
        Rule(
            "!has(self.gpusPerPod) || has(self.gpuRequirements.count)",
            "gpusPerPod divides whole GPUs among pods: set gpuRequirements.count too, or remove gpusPerPod",
            field=".gpusPerPod",
        ),
        Rule(
            "!has(self.gpusPerPod) || !has(self.gpuRequirements.count)"
            " || self.gpuRequirements.count % self.gpusPerPod == 0",
            "gpuRequirements.count must be a multiple of gpusPerPod, so that every pod gets the same number of GPUs",
            field=".gpusPerPod",
        ),
        Rule(
            "!has(self.gpusPerPod) || !has(self.gpuRequirements.count) || !has(self.gpuRequirements.topology)"
            " || !has(self.gpuRequirements.topology.segmentSize)"
            " || (self.gpuRequirements.count / self.gpusPerPod) % self.gpuRequirements.topology.segmentSize == 0",
            "pods come in whole segments: make the pods, which are gpuRequirements.count / gpusPerPod, a multiple of"
            " topology.segmentSize",
            field=".gpusPerPod",
        ),
        Rule(
            "!has(self.distributedConfig) || !has(self.distributedConfig.worldSize)"
            " || self.distributedConfig.backend != 'NCCL' || !has(self.gpuRequirements.count)"
            " || self.distributedConfig.worldSize <= self.gpuRequirements.count",
            "NCCL needs a GPU for every rank: lower distributedConfig.worldSize or raise gpuRequirements.count",
            field=".distributedConfig",
        ),
        Rule(
            "!has(self.distributedConfig) || !has(self.distributedConfig.worldSize)"
            " || self.distributedConfig.backend != 'NCCL' || !has(self.gpuRequirements.count)"
            " || self.gpuRequirements.count % self.distributedConfig.worldSize == 0",
            "every rank gets the same number of GPUs: make gpuRequirements.count a multiple of"
            " distributedConfig.worldSize",
            field=".distributedConfig",
        ),
        Rule(
            "!has(self.distributedConfig) || !has(self.distributedConfig.worldSize) || !has(self.gpusPerPod)"
            " || !has(self.gpuRequirements.count) || self.gpuRequirements.count < self.gpusPerPod"
            " || self.distributedConfig.worldSize % (self.gpuRequirements.count / self.gpusPerPod) == 0",
            "every pod runs the same number of ranks: make distributedConfig.worldSize a multiple of the pods, which"
            " are gpuRequirements.count / gpusPerPod",
            field=".distributedConfig",
        ),
        Rule(
            "self.workloadType == 'Inference' || !has(self.replicas) || self.replicas == 1",
            "only inference has replicas: set workloadType to Inference, or remove replicas",
            field=".replicas",
        ),
        Rule(
            "self.workloadType != 'Inference' || !(has(self.activeDeadlineSeconds)"
            " || has(self.ttlSecondsAfterFinished))",
            "inference runs until it is deleted: remove activeDeadlineSeconds and ttlSecondsAfterFinished",
            field=".workloadType",
        ),
        Rule(
            "!has(self.spot) || !has(self.spot.deadline) || has(self.expectedDurationSeconds)",
            "a deadline needs the run time: set expectedDurationSeconds, or remove spot.deadline",
            field=".spot",
        ),
        Rule(
            "self.workloadType == 'Inference' || !has(self.spot) || self.spot.extraReplicas == 0",
            "only inference has replicas: set workloadType to Inference, or remove spot.extraReplicas",
            field=".spot",
        ),
        Rule(
            "self.workloadType != 'Inference' || !has(self.spot) || !has(self.spot.deadline)",
            "inference runs until it is deleted: remove spot.deadline",
            field=".spot",
        ),
    )

    gpuRequirements: GPURequirements
    workloadType: Annotated[str, about("What kind of work it is.", enum=WorkloadType)] = WorkloadType.TRAINING
    framework: Annotated[
        str,
        about(
            "The framework it is written for: pods of a distributed workload find each other through the environment"
            " its launcher reads.",
            enum=("PyTorch", "TensorFlow", "JAX", "MXNet", "Triton"),
        ),
    ] = ""
    distributedConfig: Annotated[
        DistributedConfig | None, about("How the ranks of a distributed job work together.")
    ] = None
    gpusPerPod: Annotated[
        int | None,
        about(
            "GPUs of each pod; count / gpusPerPod pods are created. Left out, one pod gets them all, or the fewest"
            " equal pods when no node has that many.",
            ge=1,
            le=MAX_GPUS_PER_NODE,
        ),
    ] = None
    replicas: Annotated[
        int,
        about(
            "Of Inference: how many times its pods and GPUs are run. Each replica is planned by itself, all its pods or"
            " none, and away from the others where there is room. `kubectl scale` and autoscalers set it. Fewer: the"
            " replicas that are not ready go first, then the newest. 0: none runs, and no GPUs are held.",
            ge=0,
            le=MOST_REPLICAS,
        ),
    ] = 1
    deviceMode: Annotated[
        str,
        about(
            "How pods get GPUs: as nvidia.com resources, the node's device plugin choosing the cards, or (DRA) by"
            " ResourceClaims that name the planned ones. Left out: as the SchedulerConfig says.",
            enum=DEVICE_MODES,
        ),
    ] = ""
    priority: Annotated[
        int,
        about(
            "Higher goes first and may preempt lower. Above maxUnprivilegedPriority of the SchedulerConfig it needs a"
            " PriorityClass in podTemplate.spec.priorityClassName that the user may use.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    preemptible: Annotated[bool, about("Whether workloads of higher priority may stop this one.")] = False
    spotPolicy: Annotated[str, SPOT_POLICY] = ""
    spot: Annotated[
        SpotTerms | None,
        about("Deadline and losses, for the choice between spot and on-demand nodes. With it, spotPolicy is Allow."),
    ] = None
    suspend: Annotated[bool, SUSPEND] = False
    recoveryPolicy: Annotated[
        str,
        about(
            "What to do when a node or GPU fails. ReplaceFailed gives the lost pods new nodes near "
            "the others, RestartGang restarts all pods, None does nothing.",
            enum=RecoveryPolicy,
        ),
    ] = RecoveryPolicy.REPLACE_FAILED
    schedulingStrategy: Annotated[
        str,
        about(
            "How a place is chosen among those that fit. Left out: by the strategy of the SchedulerConfig (score unless"
            " changed), and for inference over several pods spread so that one failure takes away least.",
            min_length=1,
            max_length=63,
            rules=(STRATEGY_NAME,),
        ),
    ] = ""
    retryPolicy: Annotated[RetryPolicy, about("Retries after errors.")] = RetryPolicy()
    expectedDurationSeconds: Annotated[
        int | None, about("Expected run time; a hint for planning, never a limit.", ge=1, le=31_536_000)
    ] = None
    activeDeadlineSeconds: Annotated[
        int | None,
        about(
            "Seconds it may run, counted from the start of its Job. Then its pods are stopped, and it is Failed with"
            " reason DeadlineExceeded. Time in the queue does not count. Not for Inference.",
            ge=1,
            le=31_536_000,
        ),
    ] = None
    ttlSecondsAfterFinished: Annotated[
        int | None,
        about(
            "Seconds after which it is deleted once it has succeeded or failed, together with its Job and pods. Left"
            " out: it stays until it is deleted.",
            ge=0,
            le=31_536_000,
        ),
    ] = None
    podTemplate: Annotated[
        dict[str, Any],
        about(
            "The pods to run, as in a Job: metadata and spec are passed on as they are. The first container gets"
            " the GPUs. Left out, the scheduler's default image runs.",
            schema=POD_TEMPLATE,
        ),
    ] = {}

    @property
    def pods(self) -> int:
        """How many pods the workload is made of."""
        count = self.gpuRequirements.count
        return count // self.gpusPerPod if count and self.gpusPerPod else 1


class GPUWorkload(CustomObject, frozen=True):
    """A GPU job as one object: the GPUs it needs, their topology, and the pods to run.

    It is planned as a whole before any of its pods exists; the plan and its reasons are in the status.
    """

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="GPUWorkload",
        plural="gpuworkloads",
        namespaced=True,
        # gpuw is the small kind's alone: a short name of two kinds shows only one of them.
        short_names=("gw",),
        scalable=True,
        columns=(
            Column("GPUs", ".status.requestedGPUs"),
            Column("Status", ".status.phase"),
            Column("Node", ".status.nodeSummary"),
            AGE,
            Column("Degraded", DEGRADED_REASON),
            Column("Suspended", SUSPENDED),
            Column("Type", ".spec.workloadType", priority=1),
            Column("Ready", ".status.readyReplicas", "integer", priority=1),
            Column("MIG", ".spec.gpuRequirements.mig.profile", priority=1),
            Column("Share", ".spec.gpuRequirements.share", "number", priority=1),
            Column("Advice", ".status.optimization.recommendation", priority=1),
            Column("Message", ".status.message", priority=1),
        ),
    )
    rules: ClassVar = (NAME_IS_A_LABEL,)

    spec: GPUWorkloadSpec
    status: GPUWorkloadStatus = GPUWorkloadStatus()

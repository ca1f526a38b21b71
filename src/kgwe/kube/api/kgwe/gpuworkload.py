"""GPUWorkload of kgwe.nvidia.io/v1: one object for a whole GPU job, from what it needs to where it ran."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from kgwe.kube.api.kgwe.mig import PROFILES
from kgwe.kube.api.kgwe.podtemplate import POD_TEMPLATE
from kgwe.kube.api.kgwe.schedulerconfig import DEVICE_MODES
from kgwe.kube.api.schema import (
    AGE,
    ApiStruct,
    Column,
    Conditions,
    CustomObject,
    Definition,
    Rule,
    Timestamp,
    about,
    matching,
)
from kgwe.model.devices import shares as pieces
from kgwe.model.gpu.catalog import Architecture
from kgwe.model.units.limits import MAX_GPUS_PER_NODE, MOST_GPUS, MOST_PODS

#: of both kinds: why a running workload is not whole; empty while it is
DEGRADED_REASON = ".status.conditions[?(@.type=='Degraded')].reason"

# Names end up in labels, Job names and host names, all of which stop at a DNS label.
NAME_IS_A_LABEL = Rule(
    "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
    "the name becomes part of Job, pod and host names: use at most 63 characters, only a-z, 0-9 and -, and no dots",
)


class Phase(StrEnum):
    """How far a workload has come. Pending waits for room, Scheduling is being planned, Scheduled has its Job."""

    PENDING = "Pending"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class TopologyPreference(StrEnum):
    NONE = "None"
    NVLINK_OPTIMAL = "NVLinkOptimal"
    NVLINK_REQUIRED = "NVLinkRequired"
    SAME_NUMA = "SameNUMA"
    SAME_PCIE_SWITCH = "SamePCIeSwitch"


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
    " Allow for work that is preemptible or costOptimized, else Avoid.",
    enum=SpotPolicy,
)


class HardwareUniformity(StrEnum):
    """Whether all pods are on nodes of one CPU architecture and one GPU model."""

    SAME = "Same"
    PREFER_SAME = "PreferSame"
    ANY = "Any"


class WorkloadType(StrEnum):
    TRAINING = "Training"
    INFERENCE = "Inference"
    FINE_TUNING = "FineTuning"
    DATA_PREPROCESSING = "DataPreprocessing"
    REINFORCEMENT = "Reinforcement"
    VISUALIZATION = "Visualization"


class Topology(ApiStruct, frozen=True):
    """How the GPUs must be connected and how close the pods must be."""

    preference: Annotated[
        str,
        about(
            "NVLinkRequired never runs without NVLink between all GPUs of a pod, SameNUMA only on GPUs of one NUMA"
            " node, SamePCIeSwitch only on GPUs with no host bridge between them; all three wait until such GPUs are"
            " free, and GPUs whose wiring is not known never count. NVLinkOptimal raises the score of better wired GPUs"
            " and, like None, never keeps the workload waiting.",
            enum=TopologyPreference,
        ),
    ] = TopologyPreference.NONE
    minBandwidthGBps: Annotated[
        float | None,
        about(
            "Least bandwidth, in GB/s, between the GPUs of a pod; slower sets of GPUs are never used.",
            gt=0,
        ),
    ] = None
    requiredLevel: Annotated[
        str,
        about(
            "Network level (leaf, spine, nvlink, node …) of which one domain must hold all pods. "
            "Otherwise the workload waits.",
            max_length=63,
        ),
    ] = ""
    preferredLevel: Annotated[
        str, about("Network level of which one domain should hold all pods, if one can.", max_length=63)
    ] = ""
    segmentSize: Annotated[
        int | None,
        about("Groups of so many consecutive pods each stay inside one domain of segmentLevel.", ge=2, le=MOST_PODS),
    ] = None
    segmentLevel: Annotated[str, about("Level that each segment stays inside; left out: nvlink.", max_length=63)] = ""


class MIGRequest(ApiStruct, frozen=True):
    """Slices of GPUs instead of whole ones."""

    profile: Annotated[str, about("The MIG profile of every slice, such as 1g.10gb.", enum=PROFILES)]
    count: Annotated[int, about("How many slices.", ge=1, le=448)] = 1


class GPURequirements(ApiStruct, frozen=True):
    """What the workload needs from GPUs: whole ones (count), a share of one (share) or slices (mig)."""

    rules: ClassVar = (
        Rule(
            "has(self.count) || has(self.mig) || has(self.share)",
            "say how many GPUs: set gpuRequirements.count for whole GPUs, gpuRequirements.share for a part of one or"
            " gpuRequirements.mig for MIG slices",
        ),
        Rule(
            "!(has(self.count) && has(self.mig))",
            "count asks for whole GPUs and mig for slices: remove gpuRequirements.count and give the number of slices"
            " in gpuRequirements.mig.count",
        ),
        Rule(
            "!has(self.share) || !(has(self.count) || has(self.mig))",
            "share asks for a part of one GPU: remove gpuRequirements.share, or both count and mig",
        ),
        Rule(
            "!has(self.share) || !has(self.topology) || self.topology.preference != 'NVLinkRequired'",
            "a share is of one GPU and has nothing to be wired to: remove topology.preference NVLinkRequired, or ask"
            " for whole GPUs with count",
        ),
        Rule(
            "!has(self.minBandwidthGBps) || !has(self.topology) || !has(self.topology.minBandwidthGBps)"
            " || self.minBandwidthGBps == self.topology.minBandwidthGBps",
            "minBandwidthGBps is given twice with different values: keep gpuRequirements.topology.minBandwidthGBps"
            " and remove gpuRequirements.minBandwidthGBps",
        ),
        Rule(
            "!has(self.mig) || !has(self.topology) || self.topology.preference != 'NVLinkRequired'",
            "MIG slices have no NVLink: remove topology.preference NVLinkRequired, or ask for whole GPUs with count",
        ),
    )

    count: Annotated[int | None, about("How many whole GPUs, over all pods together.", ge=1, le=MOST_GPUS)] = None
    minMemoryGB: Annotated[
        int | None,
        about(
            "Least memory of each GPU, in GB.",
            ge=1,
            rules=(Rule("self <= 1024", "minMemoryGB is the memory of one GPU in GB, not MB: give at most 1024"),),
        ),
    ] = None
    minBandwidthGBps: Annotated[
        float | None, about("Older place of topology.minBandwidthGBps; give it in one of the two.", gt=0)
    ] = None
    topology: Annotated[Topology, about("How the GPUs must be connected and how close the pods must be.")] = Topology()
    mig: Annotated[MIGRequest | None, about("MIG slices instead of whole GPUs; not together with count.")] = None
    share: Annotated[
        float | None,
        about(
            "A part of one GPU instead of whole ones: one of the equal pieces (nvidia.com/gpu.shared) that some nodes"
            " divide their GPUs into, 0.5 for a half. Pieces take turns, or run side by side with MPS; see the docs on"
            " sharing for what keeps them apart.",
            gt=0,
            rules=(
                Rule(
                    f"[{', '.join(str(each) for each in range(pieces.FEWEST, pieces.MOST + 1))}].exists(n,"
                    f" self * double(n) >= {1 - pieces.TOLERANCE} && self * double(n) <= {1 + pieces.TOLERANCE})",
                    f"gpuRequirements.share is {pieces.MEANING}",
                ),
            ),
        ),
    ] = None
    gpuModel: Annotated[
        str,
        about(
            "Only GPUs of this model: a product name as GPU feature discovery labels it (NVIDIA-H100-80GB-HBM3) or"
            " a word of it (H100).",
            max_length=128,
        ),
    ] = ""
    architecture: Annotated[str, about("Only GPUs of this architecture.", enum=Architecture)] = ""
    hardware: Annotated[
        str,
        about(
            "Whether all pods are on nodes of one CPU architecture and one GPU model: Same waits for such nodes,"
            " PreferSame mixes GPU models where it would wait otherwise, Any mixes both. A podTemplate that names"
            " kubernetes.io/arch in its node selector or required affinity decides on the CPU architecture itself.",
            enum=HardwareUniformity,
        ),
    ] = HardwareUniformity.SAME

    @property
    def required_bandwidth_gb_per_s(self) -> float | None:
        """The bandwidth asked for, wherever it was written; the schema refuses two different answers."""
        if self.topology.minBandwidthGBps is not None:
            return self.topology.minBandwidthGBps
        return self.minBandwidthGBps


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


STRATEGY_NAME = matching(
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


class MIGInstance(ApiStruct, frozen=True):
    """One slice the workload holds."""

    parentGPU: Annotated[str, about("UUID of the GPU that it is cut from.")]
    instanceUUID: Annotated[str, about("UUID of the slice.")]
    profile: Annotated[str, about("Its MIG profile.")]


class PodPlacement(ApiStruct, frozen=True):
    """A run of consecutive ranks on one node."""

    node: Annotated[str, about("The node.")]
    pods: Annotated[int, about("How many pods are planned there.", ge=1)] = 1
    gpus: Annotated[tuple[str, ...], about("UUIDs of the GPUs planned for them, in rank order.", max_items=1024)] = ()


class ScorePart(ApiStruct, frozen=True):
    """One part of the score."""

    name: Annotated[str, about("What it measures.")]
    points: Annotated[float, about("Points of this part.", ge=0)]


class StartEstimate(ApiStruct, frozen=True):
    """When a waiting workload is thought to start, from the run times that are known."""

    p50: Annotated[Timestamp, about("The workload starts before this time with a probability of one half.")]
    p90: Annotated[Timestamp, about("The workload starts before this time with a probability of nine tenths.")]


class GPUWorkloadStatus(ApiStruct, frozen=True):
    """Where the workload is and how it is doing; written by the controller."""

    phase: Annotated[str, about("Phase of the workload.", enum=Phase)] = ""
    message: Annotated[str, about("What the workload waits for, or what went wrong.", max_length=4096)] = ""
    requestedGPUs: Annotated[
        str,
        about("The GPUs asked for, as kubectl get shows them: 8, 2×1g.10gb or 0.5.", max_length=64),
    ] = ""
    scheduledNode: Annotated[str, about("The node of the first pod.")] = ""
    placements: Annotated[
        tuple[PodPlacement, ...],
        about(
            "The planned nodes in rank order; the first 512 of a larger plan, with the UUIDs of its first 512 GPUs.",
            max_items=1024,
        ),
    ] = ()
    nodeCount: Annotated[int, about("How many nodes are planned, also those that placements leaves out.", ge=0)] = 0
    nodeSummary: Annotated[
        str,
        about("The planned nodes, as kubectl get shows them: the first one, and how many more.", max_length=300),
    ] = ""
    domain: Annotated[str, about("Lowest network domain that holds all of it, as level/name.", max_length=256)] = ""
    reasons: Annotated[str, about("Why it was placed there, or what would start it now.", max_length=4096)] = ""
    scoreParts: Annotated[tuple[ScorePart, ...], about("Parts of the score.", max_items=8)] = ()
    estimatedStart: Annotated[StartEstimate | None, about("Estimated start of a waiting workload.")] = None
    jobName: Annotated[str, about("The Job, or for inference the Deployment, that runs the pods.")] = ""
    allocatedGPUs: Annotated[
        tuple[str, ...], about("UUIDs of the GPUs it holds; the first 512 of a larger plan.", max_items=512)
    ] = ()
    allocatedGPUCount: Annotated[
        int, about("How many whole GPUs it holds, also those that allocatedGPUs leaves out.", ge=0)
    ] = 0
    migInstances: Annotated[tuple[MIGInstance, ...], about("MIG slices it holds.", max_items=448)] = ()
    schedulingScore: Annotated[int | None, about("How good the placement is, 0 to 100.", ge=0, le=100)] = None
    estimatedBandwidth: Annotated[float | None, about("Estimated bandwidth between its GPUs, in GB/s.", ge=0)] = None
    retryCount: Annotated[int, about("Errors so far under this generation.", ge=0)] = 0
    lastScheduleTime: Annotated[Timestamp | None, about("When it was last planned.")] = None
    startTime: Annotated[Timestamp | None, about("When its pods began to run.")] = None
    completionTime: Annotated[Timestamp | None, about("When it succeeded or failed.")] = None
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


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
        columns=(
            Column("GPUs", ".status.requestedGPUs"),
            Column("Status", ".status.phase"),
            Column("Node", ".status.nodeSummary"),
            AGE,
            Column("Degraded", DEGRADED_REASON),
            Column("Type", ".spec.workloadType", priority=1),
            Column("MIG", ".spec.gpuRequirements.mig.profile", priority=1),
            Column("Share", ".spec.gpuRequirements.share", "number", priority=1),
            Column("Message", ".status.message", priority=1),
        ),
    )
    rules: ClassVar = (NAME_IS_A_LABEL,)

    spec: GPUWorkloadSpec
    status: GPUWorkloadStatus = GPUWorkloadStatus()

"""The status of a GPUWorkload: its phase, its placement, and when it is expected to start."""

from enum import StrEnum
from typing import Annotated

from kgwe.kube.api.schema import ApiStruct, Conditions, Timestamp, about

#: JSON path, for both kinds: why a running workload is degraded; empty if it is not
DEGRADED_REASON = ".status.conditions[?(@.type=='Degraded')].reason"
#: JSON path, for both kinds: True while it is suspended
SUSPENDED = ".status.conditions[?(@.type=='Suspended')].status"
SPEC_HASH = about("Of a failed workload: a hash of its spec without suspend.", max_length=64)


class Phase(StrEnum):
    """How far a workload has come. Pending waits for room, Scheduling is being planned, Scheduled has its Job."""

    PENDING = "Pending"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


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


class Optimization(ApiStruct, frozen=True):
    """What the optimizer found about its GPUs, and recommends."""

    finding: Annotated[str, about("What was found, such as Idle or Underused.", max_length=64)]
    message: Annotated[str, about("The finding and the recommendation in words.", max_length=1024)] = ""
    recommendation: Annotated[
        str, about("What to run it with instead, such as MIG profile 1g.10gb; absent if nothing.", max_length=128)
    ] = ""
    savingPerMonth: Annotated[
        float | None, about("US dollars that the recommendation would save in a month; absent if unknown.")
    ] = None
    since: Annotated[Timestamp | None, about("When this was found first.")] = None


class WorkloadCost(ApiStruct, frozen=True):
    """What an admitted workload encumbers of its budgets."""

    ratePerHour: Annotated[
        str, about("What its place costs per hour, in the currency of the prices.", max_length=40)
    ] = ""
    predictedCost: Annotated[str, about("What it costs at most, with a probability of nine tenths.", max_length=40)] = (
        ""
    )
    admittedAt: Annotated[Timestamp | None, about("When its cost was encumbered.")] = None
    expectedSeconds: Annotated[int, about("How long it is expected to run.", ge=0)] = 0
    longestSeconds: Annotated[int, about("How long it runs at most, with a probability of nine tenths.", ge=0)] = 0
    budgets: Annotated[tuple[str, ...], about("The GPUBudgets that count it, as namespace/name.", max_items=16)] = ()


class EffectiveRequirements(ApiStruct, frozen=True):
    """The GPUs that the workload gets instead of those in its spec, and why. The spec is never changed."""

    original: Annotated[str, about("The GPUs that the spec asks for.", max_length=64)] = ""
    effective: Annotated[str, about("The GPUs that it is planned with: 1×1g.10gb or 0.5.", max_length=64)] = ""
    wouldBe: Annotated[
        str, about("In shadow mode: the GPUs that it would be planned with; nothing is changed.", max_length=64)
    ] = ""
    resource: Annotated[str, about("The resource that its pod asks for.", max_length=253)] = ""
    source: Annotated[str, about("The kind that decided this.", max_length=63)] = ""
    reason: Annotated[str, about("Why it was decided.", max_length=1024)] = ""


EFFECTIVE = about(
    "The GPUs it gets instead of those in its spec, by right-sizing or a sharing policy; absent without a decision."
)


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
    replicas: Annotated[int, about("Of inference: replicas that have a place.", ge=0)] = 0
    readyReplicas: Annotated[int, about("Of inference: replicas whose pods are all ready.", ge=0)] = 0
    updatedReplicas: Annotated[int, about("Of inference: replicas that run the present spec.", ge=0)] = 0
    selector: Annotated[str, about("Of inference: label selector of its pods, for autoscalers.", max_length=512)] = ""
    retryCount: Annotated[int, about("Errors so far under this generation.", ge=0)] = 0
    lastScheduleTime: Annotated[Timestamp | None, about("When it was last planned.")] = None
    startTime: Annotated[Timestamp | None, about("When its pods began to run.")] = None
    completionTime: Annotated[Timestamp | None, about("When it succeeded or failed.")] = None
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    specHash: Annotated[str, SPEC_HASH] = ""
    effectiveRequirements: Annotated[EffectiveRequirements | None, EFFECTIVE] = None
    optimization: Annotated[
        Optimization | None, about("How its GPUs are wasted; written by the optimizer, absent if they are used.")
    ] = None
    cost: Annotated[
        WorkloadCost | None, about("What it encumbers; absent if no budget counts it, and while it waits.")
    ] = None
    conditions: Conditions = ()

"""GPUWorkload of gpu.warp.dev/v1alpha1: the small kind; a model's name and a number of GPUs are enough."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.kgwe.gpuworkload import NAME_IS_A_LABEL, SPOT_POLICY, SUSPEND, RetryPolicy
from kgwe.kube.api.kgwe.gpuworkload_status import (
    DEGRADED_REASON,
    EFFECTIVE,
    SPEC_HASH,
    SUSPENDED,
    EffectiveRequirements,
    Phase,
    WorkloadCost,
)
from kgwe.kube.api.schema import AGE, ApiStruct, Column, Conditions, CustomObject, Definition, Timestamp, about


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class WarpGPUWorkloadSpec(ApiStruct, frozen=True):
    """What to run and what it needs."""

    modelName: Annotated[
        str,
        about("Name of the model or workload; the container sees it as MODEL_NAME.", min_length=1, max_length=255),
    ]
    gpuCount: Annotated[int, about("GPUs of its one pod; the container sees the number as GPU_COUNT.", ge=1, le=8)]
    priority: Annotated[str, about("Higher goes first.", enum=Priority)] = Priority.NORMAL
    schedulingStrategy: Annotated[
        str,
        about(
            "leastLoaded takes the node with most free GPUs, random any that fits, costOptimized one labelled"
            " gpu-orchestrator/cheap-node=true if there is room.",
            enum=("leastLoaded", "random", "costOptimized"),
        ),
    ] = "leastLoaded"
    spotPolicy: Annotated[str, SPOT_POLICY] = ""
    suspend: Annotated[bool, SUSPEND] = False
    retryPolicy: Annotated[RetryPolicy, about("Retries after errors.")] = RetryPolicy()


class WarpGPUWorkloadStatus(ApiStruct, frozen=True):
    """Where the workload is and how it is doing; written by the controller."""

    phase: Annotated[str, about("Phase of the workload.", enum=Phase)] = ""
    message: Annotated[str, about("What the workload waits for, or what went wrong.", max_length=4096)] = ""
    assignedNode: Annotated[str, about("The node of its pod.")] = ""
    jobName: Annotated[str, about("The Job that runs the pod.")] = ""
    retryCount: Annotated[int, about("Errors so far under this generation.", ge=0)] = 0
    lastScheduleTime: Annotated[Timestamp | None, about("When it was last planned.")] = None
    startTime: Annotated[Timestamp | None, about("When its pod began to run.")] = None
    completionTime: Annotated[Timestamp | None, about("When it succeeded or failed.")] = None
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    specHash: Annotated[str, SPEC_HASH] = ""
    effectiveRequirements: Annotated[EffectiveRequirements | None, EFFECTIVE] = None
    cost: Annotated[
        WorkloadCost | None, about("What it encumbers; absent if no budget counts it, and while it waits.")
    ] = None
    conditions: Conditions = ()


class WarpGPUWorkload(CustomObject, frozen=True):
    """A model to run on a number of GPUs of one node."""

    definition: ClassVar = Definition(
        group="gpu.warp.dev",
        version="v1alpha1",
        kind="GPUWorkload",
        plural="gpuworkloads",
        namespaced=True,
        short_names=("gpuw",),
        columns=(
            Column("Model", ".spec.modelName"),
            Column("GPUs", ".spec.gpuCount", "integer"),
            Column("Phase", ".status.phase"),
            Column("Node", ".status.assignedNode"),
            AGE,
            Column("Degraded", DEGRADED_REASON),
            Column("Suspended", SUSPENDED),
            Column("Message", ".status.message", priority=1),
        ),
    )
    rules: ClassVar = (NAME_IS_A_LABEL,)

    spec: WarpGPUWorkloadSpec
    status: WarpGPUWorkloadStatus = WarpGPUWorkloadStatus()

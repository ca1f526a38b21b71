"""Both GPUWorkload kinds as one noun, and back.

The two kinds differ in how a user writes them. From here on there is one Workload: what it asks for, what
to run, how errors are retried, and the status it has. Only this file knows which status field of which
kind holds the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.kube import resources
from kgwe.kube.api.gpuworkload import GPUWorkload, Phase, TopologyPreference, WorkloadType
from kgwe.kube.api.warp import Priority, WarpGPUWorkload
from kgwe.model import amounts, mig
from kgwe.placement.taints import Needs

if TYPE_CHECKING:
    from kgwe.kube.api.meta import Condition, ObjectMeta
    from kgwe.kube.resources import Resource

#: Where the small kind's words sit on the large kind's scale of 0 to 1,000,000.
WARP_PRIORITY: dict[str, int] = {Priority.LOW: 0, Priority.NORMAL: 1_000, Priority.HIGH: 10_000}


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the kinds as far as the API is concerned."""

    resource: Resource[Any]
    finalizer: str
    node_field: str


WARP = Kind(resources.WARP_GPU_WORKLOAD, "gpu.warp.dev/finalizer", "assignedNode")
KGWE = Kind(resources.GPU_WORKLOAD, "kgwe.nvidia.io/finalizer", "scheduledNode")


@dataclass(frozen=True, slots=True)
class Status:
    """The part of a status that the controller reads and writes, under one name for both kinds."""

    phase: str = ""
    message: str = ""
    node: str = ""
    job_name: str = ""
    retry_count: int = 0
    last_schedule_time: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """One GPUWorkload of either kind."""

    kind: Kind
    meta: ObjectMeta
    #: GPU resource one pod asks for, and how many of it
    resource: str
    per_pod: int
    pods: int
    needs: Needs
    strategy: str
    priority: int
    max_retries: int
    backoff_s: int
    workload_type: str
    model_name: str
    template: dict[str, Any]
    status: Status

    @property
    def key(self) -> tuple[str, str]:
        """(group, namespace/name): unique over both kinds."""
        return (self.kind.resource.group, self.meta.key)

    @property
    def finished(self) -> bool:
        """It ended, and was not edited since: an edit of failed work asks for another try."""
        if self.status.phase == Phase.SUCCEEDED:
            return True
        return self.status.phase == Phase.FAILED and self.status.observed_generation == self.meta.generation


def from_warp(obj: WarpGPUWorkload) -> Workload:
    spec, status = obj.spec, obj.status
    return Workload(
        kind=WARP,
        meta=obj.metadata,
        resource=amounts.GPU,
        per_pod=spec.gpuCount,
        pods=1,
        needs=Needs(),
        strategy=spec.schedulingStrategy,
        priority=WARP_PRIORITY.get(spec.priority, 0),
        max_retries=spec.retryPolicy.maxRetries,
        backoff_s=spec.retryPolicy.backoffSeconds,
        workload_type=WorkloadType.TRAINING,
        model_name=spec.modelName,
        template={},
        status=_status(status, status.assignedNode),
    )


def from_kgwe(obj: GPUWorkload) -> Workload:
    spec, status = obj.spec, obj.status
    wants = spec.gpuRequirements
    if wants.mig is not None:
        resource, per_pod = mig.resource_of(wants.mig.profile), wants.mig.count
    else:
        resource, per_pod = amounts.GPU, spec.gpusPerPod or wants.count or 1
    preference = wants.topology.preference
    return Workload(
        kind=KGWE,
        meta=obj.metadata,
        resource=resource,
        per_pod=per_pod,
        pods=spec.pods,
        needs=Needs(
            min_memory_gb=wants.minMemoryGB or 0,
            gpu_model=wants.gpuModel,
            architecture=wants.architecture,
            nvlink=preference == TopologyPreference.NVLINK_REQUIRED,
            prefers_nvlink=preference == TopologyPreference.NVLINK_OPTIMAL,
            min_bandwidth_gbps=wants.required_bandwidth_gb_per_s or 0.0,
        ),
        strategy=spec.schedulingStrategy,
        priority=spec.priority,
        max_retries=spec.retryPolicy.maxRetries,
        backoff_s=spec.retryPolicy.backoffSeconds,
        workload_type=spec.workloadType,
        model_name="",
        template=spec.podTemplate,
        status=_status(status, status.scheduledNode),
    )


def _status(status: Any, node: str) -> Status:
    return Status(
        phase=status.phase,
        message=status.message,
        node=node,
        job_name=status.jobName,
        retry_count=status.retryCount,
        last_schedule_time=status.lastScheduleTime,
        start_time=status.startTime,
        completion_time=status.completionTime,
        observed_generation=status.observedGeneration,
        conditions=status.conditions,
    )


def status_patch(workload: Workload, new: Status) -> dict[str, Any] | None:
    """The merge patch that turns the stored status into `new`; None when they are equal."""
    old_body, new_body = _body(workload.kind, workload.status), _body(workload.kind, new)
    changed = {field: value for field, value in new_body.items() if old_body[field] != value}
    return {"status": changed} if changed else None


def _body(kind: Kind, status: Status) -> dict[str, Any]:
    # Absent and empty mean the same to a reader; null in a merge patch takes the field away.
    return {
        "phase": status.phase or None,
        "message": status.message or None,
        kind.node_field: status.node or None,
        "jobName": status.job_name or None,
        "retryCount": status.retry_count or None,
        "lastScheduleTime": status.last_schedule_time,
        "startTime": status.start_time,
        "completionTime": status.completion_time,
        "observedGeneration": status.observed_generation,
        "conditions": msgspec.to_builtins(status.conditions),
    }

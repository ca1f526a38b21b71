"""Workloads: both GPUWorkload kinds read into one type, and their status written back.

The two kinds differ in how a user writes them. A Workload has what both say: what it asks for, what it runs, how
errors are retried, and its status. Only this module knows the names of the status fields of each kind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from kgwe.cluster.workload import metadata_keys, replica_uid
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload, GPUWorkloadSpec, RecoveryPolicy, WorkloadType
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.api.kgwe.warp import Priority, WarpGPUWorkload
from kgwe.kube.translate import spot_terms
from kgwe.model.gpu import mig
from kgwe.model.units import amounts
from kgwe.model.units.limits import MOST_REPLICAS
from kgwe.model.units.phrasing import shorten
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gang.request import NVLINK, Hardware, Segment
from kgwe.placement.planning.ask import TopologyRequest
from kgwe.visible_text import escape_line, escape_text

if TYPE_CHECKING:
    from kgwe.cluster.workload.effective_request import SmallerRequest
    from kgwe.kube.api.kgwe.gpuworkload_status import EffectiveRequirements, Optimization, WorkloadCost
    from kgwe.kube.api.kgwe.warp import WarpGPUWorkloadSpec
    from kgwe.kube.api.meta import Condition, ObjectMeta
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.translate.spot_terms import SpotTerms

Key = tuple[str, str]
"""(API group, namespace/name) of a workload."""

#: the priorities of the `gpu.warp.dev` kind as numbers from 0 to 1,000,000, as the other kind has them
WARP_PRIORITY: dict[str, int] = {Priority.LOW: 0, Priority.NORMAL: 1_000, Priority.HIGH: 10_000}


@dataclass(frozen=True, slots=True)
class Kind:
    """How the API of the two kinds differs."""

    resource: Resource[Any]
    #: written by earlier releases, and removed: owner references delete the run
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
    placed: Placed | None = None
    #: (p50, p90) of its estimated start
    estimate: tuple[str, str] | None = None
    #: what would let it start now
    certificate: str = ""
    #: what it asked for and where it is, as `kubectl get` shows them
    gpus: str = ""
    nodes: str = ""
    #: what the optimizer found; written by it alone
    optimization: Optimization | None = None
    #: of a failed workload: the hash of the spec that failed
    spec_hash: str = ""
    #: what it encumbers of its budgets
    cost: WorkloadCost | None = None
    #: the request it has and the one of its spec, if a decision is about it. Written and never read for decisions
    effective: EffectiveRequirements | None = None
    #: of inference
    replicas: Replicas | None = None


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas of an inference workload there are, as autoscalers read it."""

    placed: int = 0
    ready: int = 0
    #: those of the present spec
    updated: int = 0
    #: label selector of their pods
    selector: str = ""


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a plan was chosen; stored with the plan, for the status after a restart. Limits are those of the CRD."""

    score: Annotated[int, Meta(ge=0, le=100)] | None = None
    parts: Annotated[tuple[tuple[str, Annotated[float, Meta(ge=0)]], ...], Meta(max_length=8)] = ()
    gb_per_s: Annotated[float, Meta(ge=0)] | None = None
    domain: Annotated[str, Meta(max_length=256)] = ""
    reasons: Annotated[str, Meta(max_length=1024)] = ""


NO_DETAILS: Final = Details()
# What the CRDs allow for a message.
_MESSAGE_CHARS: Final = 4096


@dataclass(frozen=True, slots=True)
class Placed:
    """The plan in a status; the `gpu.warp.dev` kind has no fields for it."""

    placements: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    """(node, pods, UUIDs of their GPUs) for runs of consecutive ranks on one node; the first of a large plan."""
    details: Details = NO_DETAILS
    slices: tuple[tuple[str, str, str], ...] = ()
    """(UUID of the card, UUID of the slice, profile) of MIG slices."""
    node_count: int = 0
    """All nodes of the plan."""
    gpu_count: int = 0
    """All whole GPUs of the plan."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements on the GPUs."""

    preference: Preference = Preference.NONE
    min_bandwidth_gbps: float = 0.0
    min_memory_gb: int = 0
    gpu_model: str = ""
    architecture: str = ""
    #: what it says of spot nodes; empty: nothing
    spot_policy: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One GPUWorkload of either kind."""

    kind: Kind
    meta: ObjectMeta
    #: GPU resource one pod asks for, and how many of it
    resource: str
    per_pod: int
    pods: int
    #: whether the GPUs of its one pod may be divided among several
    divisible: bool
    #: how its pods get their GPUs; empty: as the SchedulerConfig says
    device_mode: str
    needs: Needs
    nearness: TopologyRequest
    strategy: str
    #: the effective priority, see `scheduler_policy.with_priority`
    priority: int
    max_retries: int
    backoff_s: int
    workload_type: str
    preemptible: bool
    recovery: str
    expected_s: float | None
    #: number of ranks that it sets; 0: one for each GPU
    world_size: int
    framework: str
    model_name: str
    template: dict[str, Any]
    status: Status
    #: whether its pods get their GPUs by ResourceClaims
    claims: bool = False
    #: the share of one GPU that its pod asks for; 0: whole GPUs or slices
    share: float = 0.0
    #: the priority in the spec; `priority` may be limited
    asked_priority: int = 0
    #: PriorityClass of its pods
    priority_class: str = ""
    #: it must not run: it holds nothing and does not wait
    suspend: bool = False
    #: how long its Job may run; None: without a limit
    deadline_s: int | None = None
    #: how long it is kept after its end; None: until a user deletes it
    ttl_s: int | None = None
    #: Kueue's LocalQueue that its Job waits in; empty: none
    queue: str = ""
    #: whether each of its pods needs a name in DNS, not only rank 0
    names_all: bool = False
    #: what it says about spot nodes and its deadline; None: nothing
    spot_terms: SpotTerms | None = None
    #: replicas that the spec asks for, the extra ones on spot nodes included
    desired: int = 1
    #: which replica this is; its uid is `meta.uid`, which is the uid of the object for 0
    replica: int = 0
    #: the spec as it was read; None: not known
    spec: GPUWorkloadSpec | WarpGPUWorkloadSpec | None = field(default=None, compare=False, repr=False)
    #: the decision about its request, see `effective_request`; None: there is none
    decision: SmallerRequest | None = None
    #: the workload as its spec says, if there is a decision
    written: Workload | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Unique over both kinds of workloads, and over the replicas of each."""
        return (self.kind.resource.group, f"{self.meta.key}#{self.replica}" if self.replica else self.meta.key)

    @property
    def object_key(self) -> Key:
        """The key of the object, the same for all replicas."""
        return (self.kind.resource.group, self.meta.key)

    @property
    def object_uid(self) -> str:
        """The uid of the object, the same for all replicas."""
        return replica_uid.object_uid(self.meta.uid)

    @property
    def is_scalable(self) -> bool:
        """Whether it may have several replicas."""
        return self.kind is KGWE and self.serves

    @property
    def selector(self) -> str:
        """Label selector of the pods of all replicas."""
        labels = {metadata_keys.MANAGED_BY: metadata_keys.CONTROLLER_NAME, metadata_keys.NAME_LABEL: self.label_name}
        return ",".join(f"{name}={value}" for name, value in labels.items())

    @property
    def label_name(self) -> str:
        """Its name as a label value."""
        return self.meta.name[:63].rstrip("-.")

    @property
    def claim_keys(self) -> tuple[str, ...]:
        """Keys of the ResourceClaims that its pods use by name."""
        spec = self.template.get("spec")
        claims = spec.get("resourceClaims") if isinstance(spec, dict) else None
        names = [each.get("resourceClaimName") for each in claims or () if isinstance(each, dict)]
        return tuple(f"{self.meta.namespace}/{name}" for name in names if isinstance(name, str) and name)

    @property
    def gpus(self) -> str:
        """The GPUs it asks for, for people: 8, 2×1g.10gb or 0.5."""
        if self.share:
            return f"{self.share:.2g}"
        profile = mig.profile_of(self.resource)
        return f"{self.per_pod}×{profile}" if profile else str(self.per_pod * self.pods)

    @property
    def serves(self) -> bool:
        """Whether it runs until it is deleted: a Deployment, which never succeeds."""
        return self.workload_type == WorkloadType.INFERENCE

    @property
    def finished(self) -> bool:
        """Whether it ended and was not edited since: an edit of a failed workload starts it again.

        A change of `suspend`, `replicas`, `spot` or `ttlSecondsAfterFinished` alone is no such edit.
        """
        if self.status.phase != Phase.FAILED:
            return self.status.phase == Phase.SUCCEEDED
        if self.status.observed_generation == self.meta.generation:
            return True
        return bool(self.status.spec_hash) and self.status.spec_hash == self.hash_spec()

    @property
    def is_wanted(self) -> bool:
        """Whether it should run: it has not ended, and is neither suspended nor being deleted."""
        return not self.finished and not self.suspend and self.meta.deletionTimestamp is None

    def hash_spec(self) -> str:
        """A hash of the spec without the fields that change no run; empty if the spec is not known."""
        if self.spec is None:
            return ""
        spec: GPUWorkloadSpec | WarpGPUWorkloadSpec = msgspec.structs.replace(self.spec, suspend=False)
        if isinstance(spec, GPUWorkloadSpec):
            spec = msgspec.structs.replace(spec, ttlSecondsAfterFinished=None, replicas=1, spot=None)
        return hashlib.blake2b(msgspec.json.encode(spec, order="deterministic"), digest_size=16).hexdigest()


def from_warp(obj: WarpGPUWorkload) -> Workload:
    spec, status = obj.spec, obj.status
    return Workload(
        kind=WARP,
        meta=obj.metadata,
        resource=amounts.GPU,
        per_pod=spec.gpuCount,
        pods=1,
        divisible=False,
        device_mode="DevicePlugin",
        needs=Needs(spot_policy=spec.spotPolicy),
        nearness=TopologyRequest(),
        strategy=spec.schedulingStrategy,
        priority=WARP_PRIORITY.get(spec.priority, 0),
        max_retries=spec.retryPolicy.maxRetries,
        backoff_s=spec.retryPolicy.backoffSeconds,
        workload_type=WorkloadType.TRAINING,
        preemptible=False,
        recovery=RecoveryPolicy.REPLACE_FAILED,
        expected_s=None,
        world_size=0,
        framework="",
        model_name=spec.modelName,
        template={},
        status=_read_status(status, status.assignedNode),
        asked_priority=WARP_PRIORITY.get(spec.priority, 0),
        suspend=spec.suspend,
        spec=spec,
    )


def from_kgwe(obj: GPUWorkload) -> Workload:
    spec, status = obj.spec, obj.status
    wants = spec.gpuRequirements
    if wants.mig is not None:
        resource, per_pod = mig.resource_of(wants.mig.profile), wants.mig.count
    elif wants.share is not None:
        resource, per_pod = amounts.SHARED, 1
    else:
        resource, per_pod = amounts.GPU, spec.gpusPerPod or wants.count or 1
    near = wants.topology
    distributed = spec.distributedConfig
    return Workload(
        kind=KGWE,
        meta=obj.metadata,
        resource=resource,
        per_pod=per_pod,
        pods=spec.pods,
        divisible=resource == amounts.GPU and spec.gpusPerPod is None,
        device_mode=spec.deviceMode,
        needs=Needs(
            preference=_read_preference(spec),
            min_bandwidth_gbps=wants.required_bandwidth_gb_per_s or 0.0,
            min_memory_gb=wants.minMemoryGB or 0,
            gpu_model=wants.gpuModel,
            architecture=wants.architecture,
            spot_policy=spec.spotPolicy,
        ),
        nearness=TopologyRequest(
            required=near.requiredLevel,
            preferred=near.preferredLevel,
            segments=(Segment(near.segmentSize, near.segmentLevel or NVLINK),) if near.segmentSize else (),
            hardware=Hardware(wants.hardware),
        ),
        strategy=_read_strategy(spec),
        priority=spec.priority,
        max_retries=spec.retryPolicy.maxRetries,
        backoff_s=spec.retryPolicy.backoffSeconds,
        workload_type=spec.workloadType,
        preemptible=spec.preemptible,
        recovery=spec.recoveryPolicy,
        expected_s=spec.expectedDurationSeconds,
        world_size=(distributed.worldSize or 0) if distributed else 0,
        framework=spec.framework,
        model_name="",
        template=spec.podTemplate,
        status=_read_status(status, status.scheduledNode),
        share=wants.share or 0.0,
        asked_priority=spec.priority,
        priority_class=_priority_class(spec.podTemplate),
        suspend=spec.suspend,
        deadline_s=spec.activeDeadlineSeconds,
        ttl_s=spec.ttlSecondsAfterFinished,
        queue=_read_queue(obj),
        names_all=_needs_all_names(obj),
        spot_terms=spot_terms.from_spec(spec, obj.metadata.annotations),
        desired=_count_replicas(spec),
        spec=spec,
    )


def _count_replicas(spec: GPUWorkloadSpec) -> int:
    """Replicas with the extra ones; a service that is scaled to 0 has none."""
    extra = spec.spot.extraReplicas if spec.spot is not None and spec.replicas else 0
    return min(spec.replicas + extra, MOST_REPLICAS)


def _read_queue(obj: GPUWorkload) -> str:
    """The LocalQueue of a Job; Kueue admits Deployments in another way."""
    serves = obj.spec.workloadType == WorkloadType.INFERENCE
    return "" if serves else obj.metadata.labels.get(metadata_keys.QUEUE_LABEL, "")


def _needs_all_names(obj: GPUWorkload) -> bool:
    """Whether the launcher of the workload connects to every rank by name."""
    spec = obj.spec
    by_launcher = spec.framework == "TensorFlow" or (
        spec.distributedConfig is not None and spec.distributedConfig.backend == "MPI"
    )
    return by_launcher or obj.metadata.annotations.get(metadata_keys.NAMES_ANNOTATION) == "all"


def _priority_class(template: dict[str, Any]) -> str:
    spec = template.get("spec")
    name = spec.get("priorityClassName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


# Strategies in which the ranks communicate all the time.
_TALKATIVE: Final = frozenset({"ModelParallel", "Hybrid", "FSDP", "DeepSpeed"})


def _read_preference(spec: GPUWorkloadSpec) -> Preference:
    """The topology preference; without one, a workload whose ranks communicate much prefers the best wiring."""
    preference = Preference(spec.gpuRequirements.topology.preference)
    distributed = spec.distributedConfig
    if preference is Preference.NONE and distributed is not None and distributed.strategy in _TALKATIVE:
        return Preference.NVLINK_OPTIMAL
    return preference


def _read_strategy(spec: GPUWorkloadSpec) -> str:
    if spec.schedulingStrategy in ("", "score") and spec.workloadType == WorkloadType.INFERENCE and spec.pods > 1:
        return "distributed"
    return spec.schedulingStrategy


def _read_status(status: Any, node: str) -> Status:
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
        placed=_read_placed(status),
        estimate=_read_estimate(status),
        certificate=getattr(status, "reasons", "") if not node else "",
        gpus=getattr(status, "requestedGPUs", ""),
        nodes=getattr(status, "nodeSummary", ""),
        optimization=getattr(status, "optimization", None),
        spec_hash=status.specHash,
        cost=status.cost,
        effective=status.effectiveRequirements,
        replicas=_read_replicas(status),
    )


def _read_replicas(status: Any) -> Replicas | None:
    if not getattr(status, "selector", ""):
        return None
    return Replicas(status.replicas, status.readyReplicas, status.updatedReplicas, status.selector)


def _read_placed(status: Any) -> Placed | None:
    if not getattr(status, "placements", ()):
        return None
    return Placed(
        tuple((each.node, each.pods, each.gpus) for each in status.placements),
        Details(
            status.schedulingScore,
            tuple((part.name, part.points) for part in status.scoreParts),
            status.estimatedBandwidth,
            status.domain,
            status.reasons,
        ),
        tuple((each.parentGPU, each.instanceUUID, each.profile) for each in status.migInstances),
        status.nodeCount,
        status.allocatedGPUCount,
    )


def _read_estimate(status: Any) -> tuple[str, str] | None:
    estimate = getattr(status, "estimatedStart", None)
    return (estimate.p50, estimate.p90) if estimate is not None else None


def status_patch(workload: Workload, new: Status) -> dict[str, Any] | None:
    """The merge patch that turns the stored status into `new`; None when they are equal."""
    old_body, new_body = _status_body(workload.kind, workload.status), _status_body(workload.kind, _escape_texts(new))
    changed = {field: value for field, value in new_body.items() if old_body[field] != value}
    return {"status": changed} if changed else None


def _escape_texts(status: Status) -> Status:
    """Return the status with texts that no terminal obeys: they quote what users wrote."""
    conditions = tuple(
        msgspec.structs.replace(each, reason=escape_line(each.reason), message=_escape_message(each.message))
        for each in status.conditions
    )
    message, certificate = _escape_message(status.message), _escape_message(status.certificate)
    return replace(status, message=message, conditions=conditions, certificate=certificate)


def _escape_message(text: str) -> str:
    """Return the text escaped, and cut again: an escaped character is six times as long."""
    return shorten(escape_text(text), _MESSAGE_CHARS)


def _status_body(kind: Kind, status: Status) -> dict[str, Any]:
    # Absent and empty mean the same; null in a merge patch removes the field.
    body = {
        "phase": status.phase or None,
        "message": status.message or None,
        kind.node_field: status.node or None,
        "jobName": status.job_name or None,
        "retryCount": status.retry_count or None,
        "lastScheduleTime": status.last_schedule_time,
        "startTime": status.start_time,
        "completionTime": status.completion_time,
        "observedGeneration": status.observed_generation,
        "specHash": status.spec_hash or None,
        "cost": msgspec.to_builtins(status.cost),
        "effectiveRequirements": None if status.effective is None else msgspec.to_builtins(status.effective),
        "conditions": msgspec.to_builtins(status.conditions),
    }
    return body if kind is WARP else body | _plan_body(status)


def _plan_body(status: Status) -> dict[str, Any]:
    placed = status.placed or Placed()
    why = placed.details
    estimate = status.estimate
    counts = status.replicas
    return {
        # Autoscalers need the zero, too.
        "replicas": counts.placed if counts else None,
        "readyReplicas": counts.ready if counts else None,
        "updatedReplicas": counts.updated if counts else None,
        "selector": counts.selector if counts else None,
        "requestedGPUs": status.gpus or None,
        "nodeSummary": status.nodes or None,
        "placements": [
            {"node": node, "pods": pods} | ({"gpus": list(gpus)} if gpus else {})
            for node, pods, gpus in placed.placements
        ]
        or None,
        "nodeCount": placed.node_count or None,
        "allocatedGPUs": [uuid for _, _, gpus in placed.placements for uuid in gpus] or None,
        "allocatedGPUCount": placed.gpu_count or None,
        "migInstances": [
            {"parentGPU": card, "instanceUUID": uuid, "profile": profile} for card, uuid, profile in placed.slices
        ]
        or None,
        "schedulingScore": why.score,
        "scoreParts": [{"name": name, "points": points} for name, points in why.parts] or None,
        "estimatedBandwidth": why.gb_per_s,
        "domain": why.domain or None,
        "reasons": why.reasons or status.certificate or None,
        "estimatedStart": {"p50": estimate[0], "p90": estimate[1]} if estimate else None,
    }

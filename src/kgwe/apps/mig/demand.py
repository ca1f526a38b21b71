"""The demand for slices: those that pods and workloads wait for now, and the mix of recent requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, replica_uid
from kgwe.kube.api import core, timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.api.kgwe.mig import PROFILES
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.kube.translate import podspec
from kgwe.model.gpu import catalog, mig
from kgwe.placement.fleet.constraints import any_term_matches
from kgwe.placement.fleet.taints import Taint
from kgwe.sharing.mig.types import SliceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.apps.mig.claims import Claims
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload

_PROFILE_OF: Final = {mig.resource_of(name): name for name in PROFILES}
_BARRING: Final = ("NoSchedule", "NoExecute")
_ENDED: Final = ("Succeeded", "Failed")
# Weights below a millionth of a request are dropped.
_LEAST: Final = 1e-6


class Nodes:
    """Schedulable nodes, and the nodes that a pod may run on."""

    def __init__(self, nodes: Iterable[core.Node], gpu_nodes: Mapping[str, GPUNode]) -> None:
        self._open = [
            node
            for node in nodes
            if podspec.is_ready(node) and not node.spec.unschedulable and node.metadata.deletionTimestamp is None
        ]
        self._gpu_nodes = gpu_nodes
        self._known: dict[tuple[bytes, str, str], frozenset[str]] = {}

    def for_pod(self, spec: core.PodSpec, model: str = "", architecture: str = "") -> frozenset[str]:
        """Return the nodes for a pod by selector, required affinity, taints and GPU kind, but not by CPU and
        memory."""
        bare = core.PodSpec(nodeSelector=spec.nodeSelector, affinity=spec.affinity, tolerations=spec.tolerations)
        # Pods of one template share the result.
        key = msgspec.json.encode(bare), model, architecture
        if key not in self._known:
            self._known[key] = self._find(bare, model, architecture)
        return self._known[key]

    def _find(self, bare: core.PodSpec, model: str, architecture: str) -> frozenset[str]:
        tolerations = podspec.read_tolerations(bare.tolerations)
        try:
            affinity = podspec.required_affinity(bare.affinity)
        except ValueError:
            return frozenset()
        found = set()
        for node in self._open:
            name, labels = node.metadata.name, node.metadata.labels
            barred = [
                taint
                for each in node.spec.taints
                if (taint := Taint(each.key, each.value, each.effect)).effect in _BARRING
                and not any(toleration.tolerates(taint) for toleration in tolerations)
            ]
            if (
                not barred
                and all(labels.get(key) == value for key, value in bare.nodeSelector.items())
                and (not affinity or any_term_matches(affinity, name, labels))
                and self._is_kind(name, model, architecture)
            ):
                found.add(name)
        return frozenset(found)

    def _is_kind(self, name: str, model: str, architecture: str) -> bool:
        gpus = self._gpu_nodes[name].status.gpus if name in self._gpu_nodes else ()
        return bool(gpus) and catalog.name_matches(model, gpus[0].model) and architecture in ("", gpus[0].architecture)


def requested_slices(spec: core.PodSpec) -> tuple[str, int] | None:
    """Return (profile, count) of a pod that requests slices of one kind; None if it does not, or cannot be read."""
    try:
        requested = podspec.sum_requests(spec)
    except errors.Permanent:
        return None
    wanted = [(name, n) for name, n in requested.items() if name in _PROFILE_OF and n]
    return (_PROFILE_OF[wanted[0][0]], wanted[0][1]) if len(wanted) == 1 else None


def find_slices(workload: GPUWorkload) -> tuple[str, int] | None:
    """Return (profile, count) of the slices that each pod of a workload gets; None: it gets other GPUs.

    A right-sized workload gets the slice in its status instead of the GPU in its spec.
    """
    effective, wants = workload.status.effectiveRequirements, workload.spec.gpuRequirements.mig
    if effective is not None and effective.resource in _PROFILE_OF:
        return _PROFILE_OF[effective.resource], 1
    return None if wants is None else (wants.profile, wants.count)


def list_requests(
    pods: Iterable[core.Pod],
    workloads: Iterable[GPUWorkload],
    nodes: Nodes,
    claims: Claims,
) -> list[SliceRequest]:
    """Return the waiting requests for slices, oldest first. A workload has no pods before its plan, so the workload
    waits.

    A pod may request slices by ResourceClaims instead of its spec.
    """
    claimed, holders = claims.requested_slices(), claims.list_holders()
    # By namespace and uid: references to objects of another namespace are not trusted.
    placed: dict[tuple[str, str], set[str]] = {}
    found: list[tuple[str, SliceRequest]] = []
    for pod in pods:
        meta = pod.metadata
        if (uid := meta.labels.get(metadata_keys.UID_LABEL)) is not None:
            # The status of its workload may lag behind: it has its slices.
            if meta.deletionTimestamp is None and (pod.spec.nodeName or (meta.namespace, meta.uid) in holders):
                placed.setdefault((meta.namespace, replica_uid.object_uid(uid)), set()).add(uid)
            continue
        wanted = (
            (requested_slices(pod.spec) or claimed.get((meta.namespace, meta.uid))) if is_waiting_pod(pod) else None
        )
        if wanted is not None:
            found.append(
                (meta.creationTimestamp or "", SliceRequest(f"pod {meta.key}", *wanted, nodes.for_pod(pod.spec)))
            )
    for workload in workloads:
        meta, wanted = workload.metadata, find_slices(workload)
        missing = workload.spec.replicas - len(placed.get((meta.namespace, meta.uid), ()))
        if wanted is None or missing <= 0 or not is_waiting_workload(workload):
            continue
        ask = SliceRequest(f"workload {meta.key}", *wanted, allowed_nodes(workload, nodes))
        found += [(meta.creationTimestamp or "", ask)] * missing
    return [ask for _, ask in sorted(found, key=lambda each: (each[0], each[1].name))]


def is_waiting_pod(pod: core.Pod) -> bool:
    """Return whether a scheduler found no node for the pod; before that there may be one."""
    if pod.spec.nodeName or pod.metadata.deletionTimestamp is not None or pod.status.phase in _ENDED:
        return False
    gates = [gate.name for gate in pod.spec.schedulingGates]
    if gates:
        return gates == [PLAN_GATE]
    return any(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in pod.status.conditions)


def is_waiting_workload(workload: GPUWorkload) -> bool:
    if workload.spec.suspend or workload.metadata.deletionTimestamp is not None:
        return False
    return workload.status.phase == Phase.PENDING or _count_missing(workload) > 0


def _count_missing(workload: GPUWorkload) -> int:
    """Return how many replicas of a workload with several wait for a place."""
    return workload.spec.replicas - workload.status.replicas if workload.spec.replicas > 1 else 0


def planned_uuids(workloads: Iterable[GPUWorkload]) -> frozenset[str]:
    """Return the UUIDs of slices planned for pods that may not be on their node yet."""
    on_the_way = (Phase.SCHEDULING, Phase.SCHEDULED)
    return frozenset(
        each.instanceUUID
        for workload in workloads
        if workload.status.phase in on_the_way or workload.spec.replicas > 1
        for each in workload.status.migInstances
    )


def allowed_nodes(workload: GPUWorkload, nodes: Nodes) -> frozenset[str]:
    """Return the nodes that its pods may run on."""
    wants = workload.spec.gpuRequirements
    return nodes.for_pod(_template(workload), wants.gpuModel, wants.architecture)


def _template(workload: GPUWorkload) -> core.PodSpec:
    try:
        return msgspec.convert(workload.spec.podTemplate.get("spec", {}), core.PodSpec, strict=False)
    except (msgspec.ValidationError, AttributeError):
        return core.PodSpec()


class RequestMix:
    """Recent requests; a weight halves with each half-life. Seconds count from 1970."""

    def __init__(self, half_life_s: float) -> None:
        self._rate = math.log(2) / half_life_s
        self._weights: dict[str, float] = {}
        self._at_s = 0.0
        self._counted: set[str] = set()

    def count(self, uid: str, profile: str, count: int, created: str | None, now_s: float) -> None:
        """Count a request, once per uid, at the time of its creation."""
        if uid in self._counted:
            return
        self._counted.add(uid)
        age_s = max(now_s - timestamp.parse(created).timestamp(), 0.0) if created else 0.0
        self._fade(now_s)
        self._weights[profile] = self._weights.get(profile, 0.0) + count * math.exp(-self._rate * age_s)

    def forget(self, uid: str) -> None:
        """Forget the uid of a request; its weight stays."""
        self._counted.discard(uid)

    def weights(self, now_s: float) -> dict[str, float]:
        self._fade(now_s)
        return dict(self._weights)

    def _fade(self, now_s: float) -> None:
        factor = math.exp(-self._rate * max(now_s - self._at_s, 0.0))
        self._at_s = max(now_s, self._at_s)
        self._weights = {name: left for name, w in self._weights.items() if (left := w * factor) >= _LEAST}


class SliceUsage:
    """The recent usage of each slice by UUID, as a fraction of time."""

    def __init__(self) -> None:
        self._share: dict[str, float] = {}
        self._at_s: float | None = None

    def observe(self, used: Mapping[str, bool], now_s: float, over_s: float) -> None:
        """Record slice -> whether a pod holds it now. `over_s` is the length of the averaging window."""
        kept = 0.0 if self._at_s is None else math.exp(-max(now_s - self._at_s, 0.0) / over_s)
        self._at_s = now_s
        self._share = {uuid: self._share.get(uuid, 0.0) * kept + is_used * (1 - kept) for uuid, is_used in used.items()}

    def busy_share(self, uuid: str) -> float:
        return self._share.get(uuid, 0.0)

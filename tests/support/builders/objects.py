"""API objects for tests of the scheduler's state: a workload, what runs it, its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.api.meta import OwnerReference
from kgwe.kube.client.informer import Change
from kgwe.model.units import amounts
from kgwe.placement.planning.plan import Seat

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState

UID = "11111111-aaaa-bbbb-cccc-000000000000"
NAME = f"w-job-{UID[:8]}"
ONE = (Seat("n1", 0b1111),)
TWO = (Seat("n1", 0b11110000), Seat("n2", 0b1111))


def make(kind: type, body: dict[str, Any]) -> Any:
    return msgspec.convert(body, kind)


def node(name: str = "n1", gpus: str = "8", **more: str) -> Any:
    offers = {amounts.GPU: gpus, "pods": "110", "cpu": "64"} | more
    ready = [{"type": "Ready", "status": "True"}]
    body = {"metadata": {"name": name}, "status": {"allocatable": offers, "conditions": ready}}
    return make(resources.NODE.type, body)


def workload(uid: str = UID, namespace: str = "team", *, count: int = 4, generation: int = 1, **status: Any) -> Any:
    meta = {"name": "w", "namespace": namespace, "uid": uid, "generation": generation, "resourceVersion": "1"}
    spec = {"gpuRequirements": {"count": count}}
    return make(resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": spec, "status": status})


def owned_by(uid: str, kind: str = "GPUWorkload", name: str = "w") -> list[dict[str, Any]]:
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": True}] if uid else []


def pod_spec(gpus: int, at: str = "", *, pin: str = "", gated: bool = False) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {amounts.GPU: str(gpus)}}}
    spec: dict[str, Any] = {"nodeName": at, "containers": [container]}
    if pin:
        placement_annotations.pin_to_node(spec, pin)
    if gated:
        spec["schedulingGates"] = [{"name": placement_annotations.GATE}]
    return spec


def run_meta(uid: str, owner: str, namespace: str, name: str, seats: tuple[Seat, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "labels": {metadata_keys.UID_LABEL: UID, metadata_keys.RUN_LABEL: uid},
        "annotations": {
            placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(seats),
            metadata_keys.GENERATION_ANNOTATION: "1",
        },
        "ownerReferences": owned_by(owner),
    }


def job(
    uid: str = "job-1",
    *,
    owner: str = UID,
    namespace: str = "team",
    name: str = NAME,
    seats: tuple[Seat, ...] = ONE,
    pods: int = 0,
    gpus: int = 4,
    suspend: bool = False,
    parallelism: int | None = None,
    **status: Any,
) -> Any:
    pods = pods or len(seats)
    pin = seats[0].node if pods == 1 and seats else ""
    spec = {
        "completions": pods,
        "parallelism": pods if parallelism is None else parallelism,
        "suspend": suspend,
        "template": {"spec": pod_spec(gpus, pin=pin)},
    }
    meta = run_meta(uid, owner, namespace, name, seats)
    return make(resources.JOB.type, {"metadata": meta, "spec": spec, "status": status})


def deployment(
    uid: str = "dep-1",
    *,
    owner: str = UID,
    seats: tuple[Seat, ...] = TWO,
    gpus: int = 4,
    replicas: int | None = None,
    cpu: str = "",
) -> Any:
    template = pod_spec(gpus, pin=seats[0].node if len(seats) == 1 else "")
    if cpu:
        template["containers"][0]["resources"]["requests"]["cpu"] = cpu
    spec = {"replicas": len(seats) if replicas is None else replicas, "template": {"spec": template}}
    return make(
        resources.DEPLOYMENT.type, {"metadata": run_meta(uid, owner, "team", NAME, seats), "spec": spec, "status": {}}
    )


def pod(
    name: str = "p",
    job_uid: str = "job-1",
    *,
    at: str = "n1",
    gpus: int = 4,
    index: int | None = None,
    namespace: str = "team",
    phase: str = "Running",
    gated: bool = False,
    notes: dict[str, str] | None = None,
) -> Any:
    annotations = dict(notes or {})
    if index is not None:
        annotations[placement_annotations.INDEX_ANNOTATION] = str(index)
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "labels": {metadata_keys.UID_LABEL: UID},
        "annotations": annotations,
        "ownerReferences": owned_by(job_uid, "Job", NAME),
    }
    body = {"metadata": meta, "spec": pod_spec(gpus, at, gated=gated), "status": {"phase": phase}}
    return make(resources.POD.type, body)


def replica(name: str, *, run: str = "dep-1", set_name: str = f"{NAME}-5d9c", seat: str = "", **more: Any) -> Any:
    """A pod of a Deployment."""
    made = pod(name, **more, notes={placement_annotations.SEAT_ANNOTATION: seat} if seat else None)
    meta = msgspec.structs.replace(
        made.metadata,
        labels={metadata_keys.UID_LABEL: UID, metadata_keys.RUN_LABEL: run},
        ownerReferences=tuple(make(OwnerReference, each) for each in owned_by("rs", "ReplicaSet", set_name)),
    )
    return msgspec.structs.replace(made, metadata=meta)


def leaving(obj: Any) -> Any:
    """The object on its way out."""
    meta = msgspec.structs.replace(obj.metadata, deletionTimestamp="2026-01-01T00:00:00Z", resourceVersion="9")
    return msgspec.structs.replace(obj, metadata=meta)


def added(obj: Any) -> Change[Any]:
    return Change(obj.metadata.key, None, obj)


def removed(obj: Any) -> Change[Any]:
    return Change(obj.metadata.key, obj, None)


def changed(old: Any, new: Any) -> Change[Any]:
    return Change(new.metadata.key, old, new)


def free(state: ClusterState) -> dict[str, int]:
    """Free cards by node; the books balance."""
    fleet = state.fleet
    assert (fleet.recount().free == fleet.snapshot.free).all()
    return {node.name: int(fleet.snapshot.free[i]).bit_count() for i, node in enumerate(fleet.snapshot.nodes)}

"""Applies a simulated fleet to a cluster.

The nodes of a fleet carry the label `kgwe.nvidia.io/fleet`; other nodes are never changed. `apply` compares the model
with the cluster and writes the difference: three writes for a new node (Node, GPUNode, its status), none for a node
that matches. A smaller count, or another model, removes nodes. Faults on nodes that stay are kept. With `dra` each
node also has a ResourceSlice, one more write for a new node.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.client import client as kube_client
from kgwe.kube.client import informer
from kgwe.kube.crd import definitions
from kgwe.local.fleet import gpunodes, resource_slices
from kgwe.model.simfleet import inventory
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from kgwe.kube.api import core, resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.simfleet.model_file import Fleet

T = TypeVar("T")

# Enough to keep the API server busy, but not to starve other clients.
_PARALLEL: Final = 24
_READY_TIMEOUT_S: Final = 120.0
_HEARTBEAT_S: Final = 5.0
_ATTEMPTS: Final = 5
_RETRY_S: Final = 0.5
MAX_NODES: Final = 20_000
STRATEGIC_MERGE_PATCH: Final = kube_client.STRATEGIC_MERGE_PATCH

# Label keys of the fleet. Those that a changed model no longer sets are removed from the node.
_OWNED_LABELS: Final = (
    "nvidia.com/",
    "fabric.topograph.run/",
    "accelerator.topograph.run/",
    "network.topology.nvidia.com/",
    "gpu-autoscaler.io/",
    "gpu-orchestrator/",
)


class Verdict(enum.StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass
class Outcome:
    """The number of nodes that an apply created, changed, removed or left unchanged."""

    fleet: str
    counts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))

    @property
    def nodes(self) -> int:
        return sum(self.counts.values()) - self.counts[Verdict.DELETED]

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        return f"fleet {self.fleet}: {format_count(self.nodes, 'node')} ({parts or 'none'})"


async def apply_fleet(
    client: KubeClient,
    fleet: Fleet,
    nodes: int,
    *,
    wait: bool = True,
    dra: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Create or remove nodes until the cluster has exactly the first `nodes` nodes of `fleet`; with `wait`, wait for
    Ready.

    With `dra`, ResourceClaims can allocate the GPUs too. `progress(done, total)` is called for each node.
    """
    if not 0 <= nodes <= MAX_NODES:
        raise errors.Permanent(f"the number of nodes must be from 0 to {MAX_NODES}, not {nodes}")
    wanted = inventory.expand_fleet(fleet, nodes)
    there = await _read(client)
    if dra:
        await resource_slices.apply_device_classes(client)
    outcome = Outcome(fleet.name)
    names = {node.name for node in wanted}
    surplus = sorted((there.nodes.keys() | there.gpu_nodes.keys()) - names)
    jobs: list[Callable[[], Awaitable[Verdict]]] = [partial(_delete, client, name) for name in surplus]
    jobs += [partial(_apply_node, client, node, there, dra=dra) for node in wanted]

    done = 0

    async def run(job: Callable[[], Awaitable[Verdict]]) -> None:
        nonlocal done
        outcome.counts[await _run_with_retries(job)] += 1
        done += 1
        if progress is not None:
            progress(done, len(jobs))

    await _in_parallel(run, jobs)
    if wait:
        await await_ready(client, names)
    return outcome


async def await_ready(client: KubeClient, names: Iterable[str], timeout_s: float = _READY_TIMEOUT_S) -> None:
    """Return when each named node is Ready and untainted; a node with a simulated fault may stay down."""
    waiting = set(names)
    watch = informer.Informer(client, resources.NODE, label_selector=inventory.FLEET_LABEL)
    none_left = asyncio.Event()

    def look(change: informer.Change[core.Node]) -> None:
        if change.new is not None and (is_open(change.new) or NODE_FAULT_ANNOTATION in change.new.metadata.annotations):
            waiting.discard(change.key)
        if not waiting:
            none_left.set()

    watch.on_change(look)
    task = asyncio.create_task(watch.run())
    try:
        for _ in range(max(round(timeout_s / _HEARTBEAT_S), 1)):
            before = len(waiting)
            if not waiting or await _set_within(none_left, _HEARTBEAT_S):
                return
            # kube-controller-manager removes the initial taint of a new node. After a failure it retries at the next
            # report of the node, which a kubelet sends every few seconds and kwok hardly ever.
            if len(waiting) == before:
                stuck = [name for name in waiting if (node := watch.store.get(name)) is not None and is_ready(node)]
                await asyncio.gather(*(_report_ready(client, name) for name in stuck))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    some = ", ".join(sorted(waiting)[:3])
    raise errors.Transient(
        f"{len(waiting)} nodes are not Ready after {timeout_s:.0f} s, including {some}; "
        "see `kgwe local logs kwok` and `kgwe local logs kube-controller-manager`"
    )


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def _report_ready(client: KubeClient, name: str) -> None:
    """Report that the node is still Ready."""
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": timestamp.seconds()}
    body = {"status": {"conditions": [condition]}}
    with contextlib.suppress(errors.NotFound):
        await client.patch(resources.NODE, name, body, subresource="status", kind=STRATEGIC_MERGE_PATCH)


#: Annotation of a Node with the fault of the whole node; kwok's stages read it.
NODE_FAULT_ANNOTATION: Final = "kgwe.nvidia.io/simulated-fault"


def is_ready(node: core.Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def is_open(node: core.Node) -> bool:
    """Return whether the node is Ready and the initial taint is gone."""
    return is_ready(node) and not any(taint.key == "node.kubernetes.io/not-ready" for taint in node.spec.taints)


# --- one node -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Existing:
    """The objects of the fleet that the cluster has."""

    nodes: Mapping[str, core.Node]
    gpu_nodes: Mapping[str, gpunode.GPUNode]
    slices: Mapping[str, resource.ResourceSlice]


async def _read(client: KubeClient) -> _Existing:
    selector = {"labelSelector": inventory.FLEET_LABEL}
    nodes = await _run_with_retries(partial(client.list, resources.NODE, **selector))
    try:
        gpu_nodes = await _run_with_retries(partial(client.list, resources.GPU_NODE, **selector))
    except errors.NotFound:  # the cluster has no KGWE CRDs yet
        await definitions.install(client)
        gpu_nodes = await _run_with_retries(partial(client.list, resources.GPU_NODE, **selector))
    slices: list[resource.ResourceSlice] = []
    with contextlib.suppress(errors.NotFound):  # the cluster has no dynamic resource allocation
        slices = await _run_with_retries(partial(client.list, resources.RESOURCE_SLICE, **selector))
    return _Existing(
        {node.metadata.name: node for node in nodes if _is_of_model(node)},
        {obj.metadata.name: obj for obj in gpu_nodes if _is_of_model(obj)},
        {obj.spec.nodeName: obj for obj in slices},
    )


def _is_of_model(obj: core.Node | gpunode.GPUNode) -> bool:
    """Return whether a model describes the node; the simulated cloud removes its own nodes itself."""
    return obj.metadata.labels.get(inventory.FLEET_LABEL) != inventory.CLOUD_FLEET


async def _apply_node(client: KubeClient, node: inventory.FleetNode, there: _Existing, *, dra: bool) -> Verdict:
    """Write one node as the model describes it, with its faults; a repartitioned node stays unchanged."""
    old = there.gpu_nodes.get(node.name)
    before = there.nodes.get(node.name)
    slice_ = there.slices.get(node.name)
    if before is not None and old is not None and _is_managed_elsewhere(before, old, node):
        wrote = await resource_slices.apply_slices(client, old if dra else None, slice_)
        return Verdict.UPDATED if wrote else Verdict.UNCHANGED
    faults = gpunodes.read_faults(old) if old is not None else []
    uid, verdict = await _bring_node(client, node, before, gpunodes.unhealthy_cards(faults))
    gpu_node = gpunodes.gpu_node(node, uid, faults)
    wrote = await _apply_gpu_node(client, gpu_node, old)
    wrote |= await resource_slices.apply_slices(client, gpu_node if dra else None, slice_)
    return Verdict.UPDATED if wrote and verdict is Verdict.UNCHANGED else verdict


def _is_managed_elsewhere(before: core.Node, old: gpunode.GPUNode, node: inventory.FleetNode) -> bool:
    """Return whether a controller partitions or describes this node, and the model has not changed."""
    is_told = bool(old.spec.cards) or old.spec.source == gpunode.Source.AGENT
    return is_told and before.metadata.annotations.get(gpunodes.DIGEST_ANNOTATION) == gpunodes.compute_digest(node)


async def _bring_node(
    client: KubeClient, node: inventory.FleetNode, old: core.Node | None, unhealthy: frozenset[int]
) -> tuple[str, Verdict]:
    body = gpunodes.node_manifest(node, unhealthy, now=timestamp.seconds())
    if old is None:
        try:
            created = await client.create(resources.NODE, body)
        except errors.AlreadyExists:
            old = await client.get(resources.NODE, node.name)
            if inventory.FLEET_LABEL not in old.metadata.labels:
                raise errors.Permanent(
                    f"node {node.name} exists and belongs to no simulated fleet; delete it or rename the pool"
                ) from None
        else:
            return created.metadata.uid, Verdict.CREATED
    uid = old.metadata.uid
    if old.metadata.annotations.get(gpunodes.DIGEST_ANNOTATION) != gpunodes.compute_digest(node):
        await client.patch(resources.NODE, node.name, {"metadata": _metadata_patch(body["metadata"], old)})
        await patch_devices(client, node.name, old, body["status"]["capacity"], body["status"]["allocatable"])
        return uid, Verdict.UPDATED
    if old.status.allocatable != body["status"]["allocatable"]:
        await patch_devices(client, node.name, old, old.status.capacity, body["status"]["allocatable"])
        return uid, Verdict.UPDATED
    return uid, Verdict.UNCHANGED


async def patch_devices(
    client: KubeClient, name: str, old: core.Node, capacity: Mapping[str, str], allocatable: Mapping[str, str]
) -> None:
    """Set the devices that a node advertises; remove resources it no longer has."""
    gone = (old.status.capacity.keys() | old.status.allocatable.keys()) - capacity.keys()
    removed = dict.fromkeys(gone)
    status = {"capacity": {**removed, **capacity}, "allocatable": {**removed, **allocatable}}
    await client.patch(resources.NODE, name, {"status": status}, subresource="status")


def _metadata_patch(wanted: Mapping[str, Any], old: core.Node) -> dict[str, Any]:
    stale = {key: None for key in old.metadata.labels if key.startswith(_OWNED_LABELS) and key not in wanted["labels"]}
    return {"labels": {**stale, **wanted["labels"]}, "annotations": wanted["annotations"]}


async def _apply_gpu_node(client: KubeClient, wanted: gpunode.GPUNode, old: gpunode.GPUNode | None) -> bool:
    """Create or update the GPUNode; return whether it was written."""
    name = wanted.metadata.name
    manifest = wanted.manifest()
    status = manifest.pop("status")
    wrote = False
    if old is None:
        try:
            await client.create(resources.GPU_NODE, manifest)
        except errors.AlreadyExists:
            old = await client.get(resources.GPU_NODE, name)
        wrote = True
    if old is not None and (
        old.metadata.ownerReferences != wanted.metadata.ownerReferences
        or old.metadata.labels != wanted.metadata.labels
        or old.spec.source != wanted.spec.source
    ):
        await client.patch(resources.GPU_NODE, name, {"metadata": manifest["metadata"], "spec": manifest["spec"]})
        wrote = True
    if old is None or old.status != wanted.status:
        await put_status(client, name, status)
        wrote = True
    return wrote


async def put_status(client: KubeClient, name: str, status: Mapping[str, Any]) -> None:
    """Replace the whole status of a GPUNode: a merge would keep removed fields."""
    whole = [{"op": "add", "path": "/status", "value": status}]
    await client.patch(resources.GPU_NODE, name, whole, subresource="status", kind=kube_client.JSON_PATCH)


async def _delete(client: KubeClient, name: str) -> Verdict:
    for kind in (resources.NODE, resources.GPU_NODE):
        try:
            await client.delete(kind, name)
        except errors.NotFound:
            continue
    return Verdict.DELETED


# --- running many ---------------------------------------------------------------------------------------


async def _run_with_retries(job: Callable[[], Awaitable[T]]) -> T:
    """Retry while the API server is busy; each job is idempotent."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return await kube_client.retry_conflict(job)
        except errors.Transient as exc:
            await asyncio.sleep(exc.retry_after_s or _RETRY_S * 2**attempt)
    return await job()


async def _in_parallel(
    run: Callable[[Callable[[], Awaitable[Verdict]]], Awaitable[None]], jobs: list[Callable[[], Awaitable[Verdict]]]
) -> None:
    """Run all jobs, _PARALLEL at a time; the first failure stops the rest and is raised."""
    todo = iter(jobs)

    async def work() -> None:
        for job in todo:
            await run(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_PARALLEL, len(jobs))):
                group.create_task(work())
    except* errors.KgweError as failed:
        raise failed.exceptions[0] from None

"""Injects faults into simulated hardware, and clears them.

    node-down    the node stops responding: Ready becomes Unknown, kube-controller-manager taints it, its pods freeze
    gpu-xid      the driver reports an XID on a GPU; an XID that requires a reset takes the GPU out of service
    link-down    NVLinks of a GPU go down
    spot-notice  the cloud announces that it reclaims a spot node; at the deadline the simulator deletes the node

Each fault is a few fields of ordinary API objects, written only here. It survives restarts, and components see it
where they would see the real fault. All commands are idempotent.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client import client as kube_client
from kgwe.kube.client import informer
from kgwe.local.fleet import apply, gpunodes, resource_slices
from kgwe.local.fleet import mig_layout as cutting
from kgwe.model.gpu import mig
from kgwe.model.health import health
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.client import KubeClient

NODE_DOWN: Final = "NodeDown"

TERMINATION_TIME: Final = "gpu-autoscaler.io/spot-termination-time"
INTERRUPTION_WARNING: Final = "gpu-autoscaler.io/spot-interruption-warning"
#: The taint that aws-node-termination-handler sets on a node before its termination.
SPOT_TAINT: Final = "aws-node-termination-handler/spot-itn"
SPOT_NOTICE_S: Final = 120

_EFFECT_TIMEOUT_S: Final = 30.0
_XIDS: Final = range(1, 1000)


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """The faults of one node."""

    node: str
    down: bool
    cards: tuple[gpunodes.CardFault, ...]
    spot_deadline: str

    def __bool__(self) -> bool:
        return bool(self.down or self.cards or self.spot_deadline)


async def list_faults(client: KubeClient) -> list[NodeFaults]:
    """Return the nodes of the fleet with faults."""
    selector = {"labelSelector": inventory.FLEET_LABEL}
    nodes = await client.list(resources.NODE, **selector)
    cards = {obj.metadata.name: gpunodes.read_faults(obj) for obj in await client.list(resources.GPU_NODE, **selector)}
    found = [
        NodeFaults(
            node.metadata.name,
            is_down(node),
            tuple(cards.get(node.metadata.name, ())),
            node.metadata.annotations.get(TERMINATION_TIME, ""),
        )
        for node in nodes
    ]
    return sorted((faults for faults in found if faults), key=lambda faults: faults.node)


def is_down(node: core.Node) -> bool:
    return node.metadata.annotations.get(apply.NODE_FAULT_ANNOTATION) == NODE_DOWN


# --- the node -------------------------------------------------------------------------------------------


async def node_down(client: KubeClient, name: str) -> None:
    """Take a node down until the fault is cleared; return when the control plane has noticed."""
    await _fleet_node(client, name)
    await _annotate(client, resources.NODE, name, {apply.NODE_FAULT_ANNOTATION: NODE_DOWN})
    # A dead kubelet neither completes nor deletes its pods.
    await _mark_pods(client, name, NODE_DOWN)
    await _await_node(client, name, lambda node: not apply.is_ready(node), "still Ready")


async def spot_notice(
    client: KubeClient, name: str, *, after_s: int = SPOT_NOTICE_S, now: dt.datetime | None = None
) -> dt.datetime:
    """Announce that the node is reclaimed `after_s` seconds from now; return the deadline."""
    node = await _fleet_node(client, name)
    if node.metadata.labels.get(inventory.CAPACITY_TYPE_LABELS[0]) != "spot":
        raise errors.Permanent(f"node {name} is not a spot node and cannot be reclaimed")
    now = now or dt.datetime.now(dt.UTC)
    deadline = now + dt.timedelta(seconds=after_s)
    await _annotate(
        client,
        resources.NODE,
        name,
        {TERMINATION_TIME: timestamp.seconds(deadline), INTERRUPTION_WARNING: timestamp.seconds(now)},
    )
    await _set_taint(client, name, {"key": SPOT_TAINT, "value": "true", "effect": "NoSchedule"})
    return deadline


def spot_deadline(node: core.Node) -> dt.datetime | None:
    text = node.metadata.annotations.get(TERMINATION_TIME)
    return timestamp.parse(text) if text else None


async def clear_spot_notice(client: KubeClient, node: core.Node) -> None:
    """Delete the Node and its GPUNode, as the cloud does at the deadline."""
    for resource, uid in ((resources.NODE, node.metadata.uid), (resources.GPU_NODE, None)):
        try:
            await client.delete(resource, node.metadata.name, uid=uid)
        except errors.NotFound:
            continue


# --- the cards ------------------------------------------------------------------------------------------


async def gpu_xid(client: KubeClient, name: str, card: int, xid: int) -> gpunode.GPUHealth:
    """Report `xid` on a GPU; return the resulting health."""
    if xid not in _XIDS:
        raise errors.Permanent(f"{xid} is not a valid XID; XIDs start at 1, see https://docs.nvidia.com/deploy/xid")
    fault = gpunodes.Xid(card, xid, timestamp.seconds())

    def change(obj: gpunode.GPUNode, faults: list[gpunodes.CardFault]) -> list[gpunodes.CardFault]:
        _find_device(obj, card)
        kept = [old for old in faults if not (isinstance(old, gpunodes.Xid) and old.gpu == card)]
        same = next((old for old in faults if isinstance(old, gpunodes.Xid) and old.gpu == card), None)
        # An existing XID keeps its time, so a repeated command changes nothing.
        return [*kept, same if same is not None and same.xid == xid else fault]

    obj = await _change_cards(client, name, change)
    return _find_device(obj, card).health


async def link_down(
    client: KubeClient, name: str, card: int, peer: int | None = None, *, links: int = 1
) -> gpunode.NVLinkState:
    """Take `links` NVLinks of a GPU down: those to `peer`, or to the NVSwitch if there is one."""

    def change(obj: gpunode.GPUNode, faults: list[gpunodes.CardFault]) -> list[gpunodes.CardFault]:
        wired = _wired_links(obj, card, peer)
        if not 1 <= links <= wired:
            raise errors.Permanent(f"at most {wired} links can go down there, not {links}")
        kept = [
            old
            for old in faults
            if not (isinstance(old, gpunodes.LinkDown) and {(old.gpu, old.peer)} & {(card, peer), (peer, card)})
        ]
        return [*kept, gpunodes.LinkDown(card, links, peer)]

    obj = await _change_cards(client, name, change)
    nvlink = _find_device(obj, card).nvlink
    assert nvlink is not None  # noqa: S101 - _wired_links has refused cards without NVLink
    return nvlink


def _wired_links(obj: gpunode.GPUNode, card: int, peer: int | None) -> int:
    nvlink = _find_device(obj, card).nvlink
    name = obj.metadata.name
    if nvlink is None:
        raise errors.Permanent(f"the GPUs of node {name} have no NVLink")
    if nvlink.nvSwitch:
        if peer is not None:
            raise errors.Permanent(f"the GPUs of node {name} are connected by an NVSwitch; omit the peer")
        return nvlink.maxLinks
    wired = {each.gpu: each.maxLinks for each in nvlink.peers}
    if peer not in wired:
        listed = ", ".join(map(str, wired))
        raise errors.Permanent(f"GPU {card} of node {name} has NVLinks to GPUs {listed}; use one of them as the peer")
    return wired[peer]


# --- clearing -------------------------------------------------------------------------------------------


async def clear(client: KubeClient, name: str | None = None) -> list[str]:
    """Clear the faults of one node, or of all nodes; return the names of the nodes that had faults."""
    if name is not None:
        await _fleet_node(client, name)
    mended = [faults for faults in await list_faults(client) if name is None or faults.node == name]
    await asyncio.gather(*(_clear_faults(client, faults) for faults in mended))
    return [faults.node for faults in mended]


async def _clear_faults(client: KubeClient, faults: NodeFaults) -> None:
    name = faults.node
    if faults.cards:
        await _change_cards(client, name, lambda _obj, _faults: [])
    if faults.spot_deadline:
        await _annotate(client, resources.NODE, name, {TERMINATION_TIME: None, INTERRUPTION_WARNING: None})
        await _set_taint(client, name, None)
    if faults.down:
        await _annotate(client, resources.NODE, name, {apply.NODE_FAULT_ANNOTATION: None})
        await _mark_pods(client, name, None)
        await _await_node(client, name, apply.is_ready, "not Ready again")


# --- writing --------------------------------------------------------------------------------------------


async def _fleet_node(client: KubeClient, name: str) -> core.Node:
    try:
        node = await client.get(resources.NODE, name)
    except errors.NotFound:
        raise errors.NotFound(f"no node {name}; `kgwe local fleet show` lists the nodes") from None
    if inventory.FLEET_LABEL not in node.metadata.labels:
        raise errors.Permanent(f"node {name} belongs to no simulated fleet; faults work on simulated nodes only")
    return node


def _find_device(obj: gpunode.GPUNode, card: int) -> gpunode.GPUDevice:
    for device in obj.status.gpus:
        if device.index == card:
            return device
    raise errors.Permanent(f"node {obj.metadata.name} has GPUs 0 to {len(obj.status.gpus) - 1}, not {card}")


async def _change_cards(
    client: KubeClient,
    name: str,
    change: Callable[[gpunode.GPUNode, list[gpunodes.CardFault]], Sequence[gpunodes.CardFault]],
) -> gpunode.GPUNode:
    """Change the GPU faults of a node, and its status and advertised devices accordingly."""

    async def attempt() -> gpunode.GPUNode:
        node = await _fleet_node(client, name)
        obj = await client.get(resources.GPU_NODE, name)
        old = gpunodes.read_faults(obj)
        new = list(change(obj, old))
        status = gpunodes.with_faults(gpunodes.without_faults(obj.status), new)
        if new != old:
            # The resource version makes a concurrent change of the list fail instead of being lost.
            metadata: dict[str, Any] = {
                "annotations": {gpunodes.FAULTS_ANNOTATION: gpunodes.write_faults(new)},
                "resourceVersion": obj.metadata.resourceVersion,
            }
            await client.patch(resources.GPU_NODE, name, {"metadata": metadata})
        if status != obj.status:
            await apply.put_status(client, name, msgspec.to_builtins(status))
        allocatable = {
            **node.status.allocatable,
            **list_devices(status, node.status.capacity, cutting.count_shares(node)),
        }
        if allocatable != node.status.allocatable:
            await apply.patch_devices(client, name, node, node.status.capacity, allocatable)
        changed = msgspec.structs.replace(obj, status=status)
        await resource_slices.refresh(client, changed)
        return changed

    return await kube_client.retry_conflict(attempt)


def list_devices(status: gpunode.GPUNodeStatus, capacity: dict[str, str], shares: int = 0) -> dict[str, str]:
    """Return the devices that the device plugin advertises for healthy GPUs, in the node's resources."""
    counts = dict.fromkeys((name for name in capacity if amounts.is_gpu(name)), 0)
    for device in status.gpus:
        if not health.is_in_service(device.health.state):
            continue
        whole = [amounts.SHARED] * shares or [amounts.GPU]
        names = [mig.resource_of(instance.profile) for instance in device.mig.instances] or whole
        for name in names:
            # Strategy single advertises slices as plain GPUs.
            counts[name if name in counts else amounts.GPU] += 1
    return {name: str(count) for name, count in counts.items()}


async def _annotate(
    client: KubeClient, resource: resources.Resource[Any], name: str, annotations: dict[str, str | None]
) -> None:
    await client.patch(resource, name, {"metadata": {"annotations": annotations}})


async def _mark_pods(client: KubeClient, node: str, mark: str | None) -> None:
    """Freeze or unfreeze the pods of a node; kwok's stages read the mark."""
    pods = await client.list(resources.POD, fieldSelector=f"spec.nodeName={node}")

    async def patch(pod: core.Pod) -> None:
        body = {"metadata": {"annotations": {apply.NODE_FAULT_ANNOTATION: mark}}}
        try:
            await client.patch(resources.POD, pod.metadata.name, body, pod.metadata.namespace)
        except errors.NotFound:
            return  # deleted meanwhile

    ended = ("Succeeded", "Failed")
    marked = [
        pod
        for pod in pods
        if pod.metadata.annotations.get(apply.NODE_FAULT_ANNOTATION) != mark
        and (mark is None or pod.status.phase not in ended)
    ]
    await asyncio.gather(*(patch(pod) for pod in marked))


async def _set_taint(client: KubeClient, name: str, taint: dict[str, str] | None) -> None:
    """Set the spot taint of a node or (None) remove it; other taints stay."""

    async def attempt() -> None:
        node = await client.get(resources.NODE, name)
        others = [msgspec.to_builtins(each) for each in node.spec.taints if each.key != SPOT_TAINT]
        taints = others if taint is None else [*others, taint]
        if len(taints) != len(node.spec.taints):
            version = node.metadata.resourceVersion
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
            await client.patch(resources.NODE, name, body)

    await kube_client.retry_conflict(attempt)


async def _await_node(client: KubeClient, name: str, holds: Callable[[core.Node], bool], otherwise: str) -> None:
    watch = informer.Informer(client, resources.NODE, field_selector=f"metadata.name={name}")
    seen = asyncio.Event()
    watch.on_change(lambda change: seen.set() if change.new is not None and holds(change.new) else None)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(_EFFECT_TIMEOUT_S):
            await seen.wait()
    except TimeoutError:
        raise errors.Transient(
            f"node {name} is {otherwise} after {_EFFECT_TIMEOUT_S:.0f} s; is kwok running? (`kgwe local status`)"
        ) from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

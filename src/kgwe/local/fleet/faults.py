"""Injects faults into simulated hardware, and clears them.

    node-down    the node stops answering: Ready becomes Unknown, kube-controller-manager taints it, its pods freeze
    gpu-xid      the driver reports an XID on a card; one that only a reset ends takes the card out of service
    link-down    NVLinks of a card go down
    spot-notice  the cloud announces that it takes a spot node back; at the deadline the simulator deletes the node

Each fault is a few fields of ordinary API objects, written here and nowhere else, so it survives restarts of
everything and every component sees it where it would see the real one. All commands are idempotent.
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
#: What aws-node-termination-handler puts on a node that is about to go.
SPOT_TAINT: Final = "aws-node-termination-handler/spot-itn"
SPOT_NOTICE_S: Final = 120

_EFFECT_TIMEOUT_S: Final = 30.0
_XIDS: Final = range(1, 1000)


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """Everything that is broken about one node."""

    node: str
    down: bool
    cards: tuple[gpunodes.CardFault, ...]
    spot_deadline: str

    def __bool__(self) -> bool:
        return bool(self.down or self.cards or self.spot_deadline)


async def list_faults(client: KubeClient) -> list[NodeFaults]:
    """The faulty nodes of the fleet."""
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
    """The node stops answering until the fault is cleared; returns when the control plane has noticed."""
    await _fleet_node(client, name)
    await _annotate(client, resources.NODE, name, {apply.NODE_FAULT_ANNOTATION: NODE_DOWN})
    # A dead kubelet neither finishes nor deletes its pods.
    await _mark_pods(client, name, NODE_DOWN)
    await _await_node(client, name, lambda node: not apply.is_ready(node), "still Ready")


async def spot_notice(
    client: KubeClient, name: str, *, after_s: int = SPOT_NOTICE_S, now: dt.datetime | None = None
) -> dt.datetime:
    """Announce that the node is taken back `after_s` from now; the deadline."""
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
    """The cloud takes the machine away: its Node goes, and its GPUNode with it."""
    for resource, uid in ((resources.NODE, node.metadata.uid), (resources.GPU_NODE, None)):
        try:
            await client.delete(resource, node.metadata.name, uid=uid)
        except errors.NotFound:
            continue


# --- the cards ------------------------------------------------------------------------------------------


async def gpu_xid(client: KubeClient, name: str, card: int, xid: int) -> gpunode.GPUHealth:
    """The driver reports `xid` on a card; what that means for its health."""
    if xid not in _XIDS:
        raise errors.Permanent(f"{xid} is not an XID; they are numbered from 1, see https://docs.nvidia.com/deploy/xid")
    fault = gpunodes.Xid(card, xid, timestamp.seconds())

    def change(obj: gpunode.GPUNode, faults: list[gpunodes.CardFault]) -> list[gpunodes.CardFault]:
        _device(obj, card)
        kept = [old for old in faults if not (isinstance(old, gpunodes.Xid) and old.gpu == card)]
        same = next((old for old in faults if isinstance(old, gpunodes.Xid) and old.gpu == card), None)
        # An XID that is there already keeps its time: asking twice changes nothing.
        return [*kept, same if same is not None and same.xid == xid else fault]

    obj = await _change_cards(client, name, change)
    return _device(obj, card).health


async def link_down(
    client: KubeClient, name: str, card: int, peer: int | None = None, *, links: int = 1
) -> gpunode.NVLinkState:
    """`links` NVLinks of a card are down: those to `peer`, or into the NVSwitch where there is one."""

    def change(obj: gpunode.GPUNode, faults: list[gpunodes.CardFault]) -> list[gpunodes.CardFault]:
        wired = _wired_links(obj, card, peer)
        if not 1 <= links <= wired:
            raise errors.Permanent(f"{wired} links can go down there, not {links}")
        kept = [
            old
            for old in faults
            if not (isinstance(old, gpunodes.LinkDown) and {(old.gpu, old.peer)} & {(card, peer), (peer, card)})
        ]
        return [*kept, gpunodes.LinkDown(card, links, peer)]

    obj = await _change_cards(client, name, change)
    nvlink = _device(obj, card).nvlink
    assert nvlink is not None  # noqa: S101 - _wired_links has refused cards without NVLink
    return nvlink


def _wired_links(obj: gpunode.GPUNode, card: int, peer: int | None) -> int:
    nvlink = _device(obj, card).nvlink
    name = obj.metadata.name
    if nvlink is None:
        raise errors.Permanent(f"the GPUs of node {name} have no NVLink")
    if nvlink.nvSwitch:
        if peer is not None:
            raise errors.Permanent(
                f"the cards of node {name} are joined by an NVSwitch, not to each other: leave out the peer"
            )
        return nvlink.maxLinks
    wired = {each.gpu: each.maxLinks for each in nvlink.peers}
    if peer not in wired:
        listed = ", ".join(map(str, wired))
        raise errors.Permanent(f"GPU {card} of node {name} has NVLinks to GPUs {listed}: name one of them as the peer")
    return wired[peer]


# --- mending --------------------------------------------------------------------------------------------


async def clear(client: KubeClient, name: str | None = None) -> list[str]:
    """Mend one node, or all; the names of the nodes that were broken."""
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
        raise errors.NotFound(f"there is no node {name}; `kgwe local fleet show` lists them") from None
    if inventory.FLEET_LABEL not in node.metadata.labels:
        raise errors.Permanent(f"node {name} belongs to no simulated fleet; only simulated nodes can be broken")
    return node


def _device(obj: gpunode.GPUNode, card: int) -> gpunode.GPUDevice:
    for device in obj.status.gpus:
        if device.index == card:
            return device
    raise errors.Permanent(f"node {obj.metadata.name} has GPUs 0 to {len(obj.status.gpus) - 1}, not {card}")


async def _change_cards(
    client: KubeClient,
    name: str,
    change: Callable[[gpunode.GPUNode, list[gpunodes.CardFault]], Sequence[gpunodes.CardFault]],
) -> gpunode.GPUNode:
    """Change the card faults of a node and let everything that follows from them follow."""

    async def attempt() -> gpunode.GPUNode:
        node = await _fleet_node(client, name)
        obj = await client.get(resources.GPU_NODE, name)
        old = gpunodes.read_faults(obj)
        new = list(change(obj, old))
        status = gpunodes.with_faults(gpunodes.without_faults(obj.status), new)
        if new != old:
            # The version makes a concurrent change of the same list fail instead of being lost.
            metadata: dict[str, Any] = {
                "annotations": {gpunodes.FAULTS_ANNOTATION: gpunodes.write_faults(new)},
                "resourceVersion": obj.metadata.resourceVersion,
            }
            await client.patch(resources.GPU_NODE, name, {"metadata": metadata})
        if status != obj.status:
            await apply.put_status(client, name, msgspec.to_builtins(status))
        allocatable = {**node.status.allocatable, **devices(status, node.status.capacity, cutting.pieces_of(node))}
        if allocatable != node.status.allocatable:
            await apply.patch_devices(client, name, node, node.status.capacity, allocatable)
        changed = msgspec.structs.replace(obj, status=status)
        await resource_slices.refresh(client, changed)
        return changed

    return await kube_client.retry_conflict(attempt)


def devices(status: gpunode.GPUNodeStatus, capacity: dict[str, str], shares: int = 0) -> dict[str, str]:
    """What the device plugin offers of the healthy cards, in the resources the node has."""
    counts = dict.fromkeys((name for name in capacity if amounts.is_gpu(name)), 0)
    for device in status.gpus:
        if not health.is_in_service(device.health.state):
            continue
        whole = [amounts.SHARED] * shares or [amounts.GPU]
        names = [mig.resource_of(instance.profile) for instance in device.mig.instances] or whole
        for name in names:
            # Strategy single offers slices as plain GPUs.
            counts[name if name in counts else amounts.GPU] += 1
    return {name: str(count) for name, count in counts.items()}


async def _annotate(
    client: KubeClient, resource: resources.Resource[Any], name: str, annotations: dict[str, str | None]
) -> None:
    await client.patch(resource, name, {"metadata": {"annotations": annotations}})


async def _mark_pods(client: KubeClient, node: str, mark: str | None) -> None:
    """Freeze (or thaw) the pods of a node; kwok's stages look at the mark."""
    pods = await client.list(resources.POD, fieldSelector=f"spec.nodeName={node}")

    async def patch(pod: core.Pod) -> None:
        body = {"metadata": {"annotations": {apply.NODE_FAULT_ANNOTATION: mark}}}
        try:
            await client.patch(resources.POD, pod.metadata.name, body, pod.metadata.namespace)
        except errors.NotFound:
            return  # gone meanwhile

    ended = ("Succeeded", "Failed")
    marked = [
        pod
        for pod in pods
        if pod.metadata.annotations.get(apply.NODE_FAULT_ANNOTATION) != mark
        and (mark is None or pod.status.phase not in ended)
    ]
    await asyncio.gather(*(patch(pod) for pod in marked))


async def _set_taint(client: KubeClient, name: str, taint: dict[str, str] | None) -> None:
    """Put the spot taint on a node or (None) take it off, leaving the others as they are."""

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

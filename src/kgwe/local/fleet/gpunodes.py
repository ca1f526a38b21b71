"""A simulated node as API objects: its Node and its GPUNode.

Faults are stored separately from the hardware. GPU faults are a list in an annotation of the GPUNode
(`kgwe.nvidia.io/simulated-faults`), and the status is the state without faults plus their effects. So a fault
survives restarts and a second `apply`, components see it in ordinary fields, and it can be cleared at any time.
"""

from __future__ import annotations

import collections
import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import ObjectMeta, OwnerReference
from kgwe.model.gpu import catalog
from kgwe.model.health import health
from kgwe.model.health.xids import Action, look_up
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.model.gpu.topology import PciePath

FAULTS_ANNOTATION: Final = "kgwe.nvidia.io/simulated-faults"
DIGEST_ANNOTATION: Final = "kgwe.nvidia.io/fleet-digest"
KWOK_ANNOTATION: Final = "kwok.x-k8s.io/node"


class Xid(msgspec.Struct, frozen=True, tag_field="kind", tag="GpuXid"):
    """An XID error that the driver reported on a GPU."""

    gpu: int
    xid: int
    since: str
    """Time of the error, RFC 3339."""


class LinkDown(msgspec.Struct, frozen=True, tag_field="kind", tag="LinkDown"):
    """NVLinks of a GPU that are down: to one peer, or (peer None) to the NVSwitch."""

    gpu: int
    links: int
    peer: int | None = None


CardFault = Xid | LinkDown


def read_faults(obj: gpunode.GPUNode) -> list[CardFault]:
    """Return the GPU faults of a node from its annotation."""
    text = obj.metadata.annotations.get(FAULTS_ANNOTATION)
    return msgspec.json.decode(text, type=list[CardFault]) if text else []


def write_faults(faults: Iterable[CardFault]) -> str | None:
    """Return the value of the annotation; None removes it."""
    listed = list(faults)
    return msgspec.json.encode(listed).decode() if listed else None


# --- without faults----------------------------------------------------------------------------------------


def node_manifest(node: inventory.FleetNode, unhealthy: frozenset[int] = frozenset(), *, now: str) -> dict[str, Any]:
    """Return the Node, without taints, so that pods can use it.

    It registers as Ready, like a kubelet that has completed its checks: one write less than waiting for kwok.
    """
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": inventory.labels(node),
            "annotations": {KWOK_ANNOTATION: "fake", DIGEST_ANNOTATION: compute_digest(node), **_TTL},
        },
        "spec": {"providerID": f"kwok://{node.place.zone}/{node.name}"},
        "status": {
            "capacity": node.capacity(),
            "allocatable": node.allocatable(unhealthy),
            "conditions": [
                {"type": kind, "reason": reason, "status": state, "lastHeartbeatTime": now, "lastTransitionTime": now}
                for kind, reason, state in _CONDITIONS
            ],
            "addresses": [{"type": "Hostname", "address": node.name}],
            "nodeInfo": {
                "architecture": node.machine.arch,
                "operatingSystem": "linux",
                "kubeletVersion": "kgwe-simulated",
                "containerRuntimeVersion": "kgwe://simulated",
                "osImage": "simulated",
            },
            "phase": "Running",
        },
    }


# kube-controller-manager would add it with one write per node (in fleets above 100 nodes it still corrects the
# value).
_TTL: Final = {"node.alpha.kubernetes.io/ttl": "0"}

_CONDITIONS: Final = (
    ("Ready", "KubeletReady", "True"),
    ("MemoryPressure", "KubeletHasSufficientMemory", "False"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "False"),
    ("PIDPressure", "KubeletHasSufficientPID", "False"),
)


def compute_digest(node: inventory.FleetNode) -> str:
    """Return a digest of the node without faults."""
    facts = (inventory.labels(node), node.capacity(), node.allocatable(), build_status(node))
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


def unhealthy_cards(faults: Iterable[CardFault]) -> frozenset[int]:
    """Return the GPUs that the device plugin takes out of service."""
    xids = (fault for fault in faults if isinstance(fault, Xid))
    return frozenset(each.gpu for each in xids if not health.is_in_service(_build_health(each).state))


def gpu_node(node: inventory.FleetNode, node_uid: str, faults: Sequence[CardFault] = ()) -> gpunode.GPUNode:
    """Return the GPUNode. Its Node owns it."""
    owner = OwnerReference(apiVersion="v1", kind="Node", name=node.name, uid=node_uid)
    text = write_faults(faults)
    return gpunode.GPUNode(
        metadata=ObjectMeta(
            name=node.name,
            labels={inventory.FLEET_LABEL: node.fleet_name},
            annotations={FAULTS_ANNOTATION: text} if text else {},
            ownerReferences=(owner,),
        ),
        spec=gpunode.GPUNodeSpec(source=gpunode.Source.SIMULATED),
        status=with_faults(build_status(node), faults),
    )


def build_status(node: inventory.FleetNode) -> gpunode.GPUNodeStatus:
    """Return the status of the GPUs without faults."""
    cluster_uuid, _, clique = node.place.clique.rpartition(".")
    return gpunode.GPUNodeStatus(
        gpus=tuple(_build_device(node, card) for card in node.gpus),
        gpuCount=len(node.gpus),
        healthyGPUs=len(node.gpus),
        model=node.model.product,
        driverVersion=node.machine.driver,
        cudaVersion=node.machine.cuda,
        nics=tuple(
            gpunode.NetworkInterface(nic.name, nic.gbit_per_s, nic.numa, _build_pcie(nic.pcie), nic.rail)
            for nic in node.machine.wiring.nics
        ),
        fabric=gpunode.Fabric(cluster_uuid, int(clique)) if clique else None,
    )


def _build_device(node: inventory.FleetNode, card: inventory.FleetGpu) -> gpunode.GPUDevice:
    model = node.model
    return gpunode.GPUDevice(
        uuid=card.uuid,
        index=card.index,
        model=model.product,
        memoryMiB=model.memory_mib,
        health=gpunode.GPUHealth(state=gpunode.HealthState.HEALTHY),
        architecture=model.architecture,
        computeCapability="{}.{}".format(*model.compute_capability),
        numaNode=card.slot.numa,
        cpuAffinity=card.slot.cpus,
        pcie=_build_pcie(card.slot.pcie, card.slot.bus),
        nvlink=_build_nvlink(node, card.index),
        mig=gpunode.MIGState(
            capable=model.geometry is not None,
            enabled=card.is_cut,
            instances=tuple(_build_instance(instance) for instance in card.instances),
        ),
    )


def _build_instance(instance: inventory.MigInstance) -> gpunode.MIGInstance:
    profile = instance.placement.profile
    return gpunode.MIGInstance(
        uuid=instance.uuid,
        profile=profile.name,
        instanceID=instance.instance_id,
        start=instance.placement.start,
        size=profile.units,
        memoryMiB=profile.memory_mib,
    )


def _build_pcie(path: PciePath, bus: str = "") -> gpunode.PCIeLocation | None:
    if not path and not bus:
        return None
    return gpunode.PCIeLocation(bus, path[0] if path else "", path[1:])


def _build_nvlink(node: inventory.FleetNode, card: int) -> gpunode.NVLinkState | None:
    wires = node.machine.wiring
    if not wires.nvlink_version:
        return None
    peers = wires.peers(card)
    return _sum_links(
        gpunode.NVLinkState(
            version=wires.nvlink_version,
            links=0,
            maxLinks=wires.switch_links or sum(peers.values()),
            nvSwitch=bool(wires.switch_links),
            peers=tuple(gpunode.NVLinkPeer(peer, links, links) for peer, links in peers.items()),
        ),
        down=0,
    )


def _sum_links(nvlink: gpunode.NVLinkState, down: int) -> gpunode.NVLinkState:
    """Return NVLink data with the totals for `down` links of a switch, or for the peers."""
    links = nvlink.maxLinks - down if nvlink.nvSwitch else sum(peer.links for peer in nvlink.peers)
    bandwidth = float(links * catalog.NVLINK_GB_PER_S[nvlink.version])
    return msgspec.structs.replace(nvlink, links=links, bandwidthGBps=bandwidth)


# --- with faults -----------------------------------------------------------------------------------------


def without_faults(status: gpunode.GPUNodeStatus) -> gpunode.GPUNodeStatus:
    """Return the status without faults, derived from a status with any faults."""
    healthy = gpunode.GPUHealth(state=gpunode.HealthState.HEALTHY)
    gpus = tuple(
        msgspec.structs.replace(
            device,
            health=healthy,
            nvlink=device.nvlink and _with_links_down(device.index, device.nvlink, collections.Counter()),
        )
        for device in status.gpus
    )
    return msgspec.structs.replace(status, gpus=gpus, healthyGPUs=len(gpus))


def with_faults(built: gpunode.GPUNodeStatus, faults: Sequence[CardFault]) -> gpunode.GPUNodeStatus:
    """Return a status with the effects of the faults."""
    if not faults:
        return built
    xids = {fault.gpu: fault for fault in faults if isinstance(fault, Xid)}
    down: collections.Counter[tuple[int, int | None]] = collections.Counter()
    for fault in faults:
        if isinstance(fault, LinkDown):
            down[fault.gpu, fault.peer] += fault.links
            if fault.peer is not None:
                down[fault.peer, fault.gpu] += fault.links
    gpus = []
    for device in built.gpus:
        broken = device
        if xid := xids.get(device.index):
            broken = msgspec.structs.replace(broken, health=_build_health(xid))
        if device.nvlink is not None:
            broken = msgspec.structs.replace(broken, nvlink=_with_links_down(device.index, device.nvlink, down))
        gpus.append(broken)
    healthy = sum(device.health.state == gpunode.HealthState.HEALTHY for device in gpus)
    return msgspec.structs.replace(built, gpus=tuple(gpus), healthyGPUs=healthy)


def _build_health(fault: Xid) -> gpunode.GPUHealth:
    xid = look_up(fault.xid)
    return gpunode.GPUHealth(
        state=health.STATES[xid.xid_class],
        reason=xid.reason,
        message=f"XID {fault.xid}: {xid.words}",
        lastXID=fault.xid,
        lastTransitionTime=fault.since,
        action="" if xid.action is Action.NONE else xid.action,
    )


def _with_links_down(
    card: int, nvlink: gpunode.NVLinkState, down: collections.Counter[tuple[int, int | None]]
) -> gpunode.NVLinkState:
    peers = tuple(
        msgspec.structs.replace(peer, links=max(peer.maxLinks - down[card, peer.gpu], 0)) for peer in nvlink.peers
    )
    return _sum_links(msgspec.structs.replace(nvlink, peers=peers), down=min(down[card, None], nvlink.maxLinks))

"""Builds a node as placement sees it from its API objects: what it offers, its GPUs, their health and their slices."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.translate import mig_layouts, podspec, topology
from kgwe.model.devices import shares as share
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.model.units import amounts
from kgwe.model.units.limits import MAX_GPUS_PER_NODE
from kgwe.placement.fleet.node import Node, Shape
from kgwe.placement.fleet.taints import Taint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode, MIGLayout
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.translate.resource_slices import Claimable
    from kgwe.model.gpu.mig import Placement

#: nodes an operator declared cheap (spot, old, already paid for)
CHEAP_NODE_LABEL: Final = "gpu-orchestrator/cheap-node"
#: on nodes as placement sees them: their GPUs can be claimed by ResourceClaims
CLAIMS_LABEL: Final = "kgwe.nvidia.io/resource-claims"
_CLAIMS_ONLY: Final = Taint(CLAIMS_LABEL, "only", "NoSchedule")
#: labels and taints of spot nodes -> their value, in lower case
_SPOT: Final[Mapping[str, str]] = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/capacity-type": "spot",
    "node.kubernetes.io/lifecycle": "spot",
    "gpu-autoscaler.io/capacity-type": "spot",
}


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """What the API shows of one node."""

    node: core.Node
    #: its GPUNode, or what its ResourceSlices say
    gpu_node: GPUNode | None
    has_gpu_node: bool
    #: devices that ResourceClaims may get
    claimable: Claimable | None
    #: how well workloads ended in its domain, 0 to 1
    history: float = 1.0


class NodeBuilder:
    """Builds nodes. Equal shapes and wirings are one object, because thousands of nodes share few."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, Shape] = {}
        self._wirings: dict[Wiring, Wiring] = {}

    def build(self, found: NodeObjects, before: Node | None, strategies: Collection[MIGStrategy]) -> Node | None:
        """The node as placement sees it; None if it offers no GPUs. `before`: the node as it was built last."""
        node, gpu_node, claimable = found.node, found.gpu_node, found.claimable
        offered = podspec.read_allocatable(node)
        labels, taints = node.metadata.labels, tuple(Taint(t.key, t.value, t.effect) for t in node.spec.taints)
        is_claims_only = claimable is not None and not _has_gpus(offered)
        if claimable is not None and gpu_node is not None:
            labels = {**labels, CLAIMS_LABEL: "true"}
            if is_claims_only:
                offered, taints = offered | _to_claim(gpu_node, claimable), (*taints, _CLAIMS_ONLY)
        if not _has_gpus(offered):
            return None
        devices = {device.index: device for device in gpu_node.status.gpus} if gpu_node else {}
        divided = _count_shares(node, devices.values(), before.shares_per_gpu or 0 if before is not None else 0)
        if divided:
            # Every GPU is divided: none is given to a pod as a whole.
            offered = {**offered, amounts.GPU: math.ceil(offered.get(amounts.SHARED, 0) / divided)}
        shape = self._find_shape(offered, labels, gpu_node)
        layouts = mig_layouts.read_layouts(gpu_node)
        cut = _read_slices(devices, offered, shape, layouts)
        held_back = mig_layouts.find_held_back(devices.values(), layouts, labels, strategies)
        if not devices and mig_layouts.is_unknown(labels, strategies):
            held_back = frozenset(range(shape.gpu_count))
        healthy = sum(
            1 << card
            for card in range(shape.gpu_count)
            if card not in held_back and (card not in devices or _is_healthy(devices[card]))
        )
        if claimable is not None and (is_claims_only or not found.has_gpu_node):
            healthy &= sum(1 << card for card, device in devices.items() if _is_listed(device, claimable))
        is_up = podspec.is_ready(node) and node.metadata.deletionTimestamp is None
        return Node(
            name=node.metadata.name,
            shape=shape,
            cpu_milli=offered.get(amounts.CPU, 0),
            memory_bytes=offered.get(amounts.MEMORY, 0),
            pods=offered.get(amounts.PODS, 0),
            labels=labels,
            taints=taints,
            ready=is_up and not node.spec.unschedulable,
            cordoned=is_up and node.spec.unschedulable,
            healthy=_offered_cards(healthy, cut, offered.get(amounts.GPU, 0)),
            cut=cut,
            reliability=_read_reliability(gpu_node),
            history=found.history,
            spot=is_spot(labels, taints),
            cheap=labels.get(CHEAP_NODE_LABEL) == "true",
            shares_per_gpu=divided,
        )

    def _find_shape(self, offered: Mapping[str, int], labels: Mapping[str, str], gpu_node: GPUNode | None) -> Shape:
        """Equal shapes are one object: hundreds of nodes share few."""
        count = offered.get(amounts.GPU, 0)
        if gpu_node is not None and len(gpu_node.status.gpus) >= count:
            wiring = topology.read_topology(gpu_node)
        else:
            # The wiring is unknown, or the device plugin offers every GPU several times.
            number = min(max(count, _slice_cards(offered)), MAX_GPUS_PER_NODE)
            wiring = Wiring(slots=tuple(Slot(bus="") for _ in range(number)))
        wiring = self._wirings.setdefault(wiring, wiring)
        first = gpu_node.status.gpus[0] if gpu_node and gpu_node.status.gpus else None
        label = podspec.int_label(labels, podspec.GPU_MEMORY_LABEL)
        model = first.model if first else labels.get(podspec.GPU_PRODUCT_LABEL, "")
        family = podspec.read_architecture(labels.get(podspec.GPU_FAMILY_LABEL))
        shape = Shape(
            wiring=wiring,
            model=labels.get(podspec.GPU_PRODUCT_LABEL) or model,
            memory_mib=min(first.memoryMiB, amounts.MOST_PIECES) if first else label,
            architecture=(first.architecture or family) if first else family,
            geometry=_find_geometry(model),
        )
        return self._shapes.setdefault(shape, shape)


def is_spot(labels: Mapping[str, str], taints: Iterable[Taint] = ()) -> bool:
    """Whether labels or taints say that a node is spot capacity."""
    said = [*((key, labels[key]) for key in _SPOT if key in labels), *((taint.key, taint.value) for taint in taints)]
    return any(_SPOT.get(key) == value.lower() for key, value in said)


def _has_gpus(offered: Mapping[str, int]) -> bool:
    return any(amounts.is_gpu(resource) and count for resource, count in offered.items())


def _count_shares(node: core.Node, devices: Iterable[GPUDevice], before: int) -> int:
    """Into how many shares the device plugin divides each GPU; 0: it does not, or that is unknown."""
    offered, open_ = podspec.read_capacity(node, amounts.SHARED), podspec.read_allocatable(node)
    if not offered or (open_.get(amounts.GPU) and not open_.get(amounts.SHARED)):
        # A resource that a plugin offered once stays, as zero.
        return 0
    whole = sum(not device.mig.enabled for device in devices)
    label = podspec.int_label(node.metadata.labels, podspec.GPU_REPLICAS_LABEL)
    return share.shares_of_capacity(offered, whole, label, before)


def _is_listed(device: GPUDevice, claimable: Claimable) -> bool:
    return any(uuid in claimable.uuids for uuid in (device.uuid, *(each.uuid for each in device.mig.instances)))


def _to_claim(gpu_node: GPUNode, claimable: Claimable) -> dict[str, int]:
    """What a device plugin would offer of the devices that can be claimed now."""
    found: collections.Counter[str] = collections.Counter()
    for device in gpu_node.status.gpus:
        found[amounts.GPU] += not device.mig.enabled and claimable.uuids.get(device.uuid, False)
        for each in device.mig.instances:
            found[mig.resource_of(each.profile)] += claimable.uuids.get(each.uuid, False)
    return dict(found)


def _is_healthy(device: GPUDevice) -> bool:
    return device.health.state != HealthState.UNHEALTHY


def _read_reliability(gpu_node: GPUNode | None) -> float:
    told = gpu_node.status.reliability if gpu_node else None
    return 1.0 if told is None else min(max(told.score, 0.0), 1.0)


def _find_geometry(model: str) -> mig.Geometry | None:
    try:
        return catalog.find_model(model).geometry
    except errors.Permanent:
        return None


def _slice_cards(offered: Mapping[str, int]) -> int:
    """One stand-in GPU for the slices of a node whose GPUs are not described."""
    return int(any(name.startswith(amounts.MIG_PREFIX) and count for name, count in offered.items()))


def _read_slices(
    devices: Mapping[int, GPUDevice], offered: Mapping[str, int], shape: Shape, layouts: Mapping[str, MIGLayout]
) -> dict[int, tuple[Placement, ...]]:
    """GPU -> its slices: only as many as the device plugin offers, without those that are to be removed."""
    left = {name: count for name, count in offered.items() if name.startswith(amounts.MIG_PREFIX) and count}
    cut: dict[int, tuple[Placement, ...]] = {}
    for index, device in sorted(devices.items()):
        if not device.mig.enabled:
            continue
        found: list[Placement] = []
        for instance in device.mig.instances:
            resource = mig.resource_of(instance.profile)
            if left.get(resource, 0) > 0 and mig_layouts.is_offered(device, instance, layouts.get(device.uuid)):
                left[resource] -= 1
                found.append(
                    _slice_placement(shape, instance.profile, instance.start, instance.size, instance.memoryMiB)
                )
        cut[index] = tuple(found)
    if not devices and left and shape.gpu_count:
        numbers = iter(range(sum(left.values())))
        cut[shape.gpu_count - 1] = tuple(
            _slice_placement(shape, name.removeprefix(amounts.MIG_PREFIX), next(numbers), 1, 0)
            for name, count in sorted(left.items())
            for _ in range(count)
        )
    return cut


def _slice_placement(shape: Shape, profile: str, start: int, size: int, memory_mib: int) -> Placement:
    known = shape.geometry.profiles.get(profile) if shape.geometry else None
    return mig.Placement(known or mig.Profile(profile, 1, size, (start,), 1, memory_mib), start)


def _offered_cards(healthy: int, cut: Mapping[int, object], offered: int) -> int:
    """Healthy GPUs; of the whole ones, only as many as the device plugin offers."""
    whole = [card for card in range(healthy.bit_length()) if healthy >> card & 1 and card not in cut]
    for card in whole[offered:]:
        healthy &= ~(1 << card)
    return healthy

"""Nodes of the cluster as placement sees them: from Node and GPUNode objects, and the network above them.

A node is of interest when it offers GPUs or slices. Its GPUNode tells wiring, health and slices; without one the
cards are counted from what the device plugin offers and their wiring is not known, which satisfies nothing.
What the device plugin does not offer is not free, whatever the GPUNode says: the kubelet would refuse the pod.

Where a DRA driver publishes ResourceSlices, a GPUNode is still the only one believed about what cards are like; without
one the slices tell, as far as they do. Whether anybody can claim them only the slices tell: such a node has the label
CLAIMS_LABEL here, and one whose cards can be had no other way a taint of that name.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.api.kgwe.schedulerconfig import TopologyLabels
from kgwe.kube.translate import label_check, mig_layouts, node_health, podspec, topology
from kgwe.kube.translate.resource_slices import DeviceSlices
from kgwe.model.devices import assignment
from kgwe.model.devices import shares as share
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.model.network import domain_labels
from kgwe.model.units import amounts
from kgwe.model.units.limits import MAX_GPUS_PER_NODE
from kgwe.placement.fleet.node import Node, Shape
from kgwe.placement.fleet.taints import Taint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode, MIGLayout
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.translate.node_health import NodeFault
    from kgwe.kube.translate.resource_slices import Claimable
    from kgwe.model.gpu.mig import Placement
    from kgwe.model.network.domains import Tree

#: nodes an operator declared cheap (spot, old, already paid for)
CHEAP_NODE_LABEL: Final = "gpu-orchestrator/cheap-node"
#: on nodes as placement sees them: their GPUs can be had by ResourceClaims
CLAIMS_LABEL: Final = "kgwe.nvidia.io/resource-claims"
_CLAIMS_ONLY: Final = Taint(CLAIMS_LABEL, "only", "NoSchedule")
#: labels, and keys of taints, that tell a spot node from others; in lower case
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
_NOBODY: Final[Mapping[str, DeviceSet]] = {}


@dataclass(frozen=True, slots=True)
class Cards:
    """What the cards and slices of a node are called."""

    uuids: Mapping[int, str]
    """Card -> its UUID."""
    slices: Mapping[tuple[int, int], tuple[str, str, str]]
    """(card, start) -> (UUID of the card, UUID of the slice, profile)."""


class FleetReader:
    """Collects the objects; `nodes()` and `tree()` give what they amount to now."""

    def __init__(self) -> None:
        self._nodes: dict[str, core.Node] = {}
        self._gpu_nodes: dict[str, GPUNode] = {}
        self._domains: dict[str, TopologyDomain] = {}
        self._strategies: dict[str, MIGStrategy] = {}
        self._config: SchedulerConfig | None = None
        self.slices = DeviceSlices()
        self._held: dict[str, dict[str, DeviceSet]] = {}  # node -> pod -> what its kubelet says the pod has
        self._built: dict[str, Node] = {}
        self._infos: dict[str, topology.NodeInfo] = {}  # of the same nodes
        self._shapes: dict[Shape, Shape] = {}
        self._wirings: dict[Wiring, Wiring] = {}
        self._tree: Tree | None = None  # as of the last call; None when what it is made of has changed
        self._history: Mapping[str, float] = {}
        #: what is wrong with the objects, as sentences
        self.problems: tuple[str, ...] = ()

    # Each returns whether anything placement cares about changed.

    def set_node(self, name: str, node: core.Node | None) -> bool:
        before = self._nodes.get(name)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        if before is not None and node is not None and _same(before, node):
            return False
        changed = self._rebuild(name)
        self._hear(name)
        return changed

    def set_gpu_node(self, name: str, gpu_node: GPUNode | None) -> bool:
        before = self._gpu_nodes.get(name)
        if gpu_node is None:
            self._gpu_nodes.pop(name, None)
        else:
            self._gpu_nodes[name] = gpu_node
        if before is not None and gpu_node is not None and _says_the_same(before, gpu_node):
            return False
        changed = self._rebuild(name)
        self._hear(name)
        return changed

    def _hear(self, name: str) -> None:
        """Who holds what there, as its kubelet says."""
        node = self._nodes.get(name)
        # Offered several times under their own name, cards have other numbers here than the driver's.
        is_named = node is not None and amounts.SHARED in {**node.status.capacity, **node.status.allocatable}
        held = _held(self._gpu_nodes.get(name), shares=is_named)
        if held != self.reported_holders(name):
            self._held[name] = held

    def set_slice(self, name: str, new: ResourceSlice | None) -> bool:
        changed = [self._rebuild(node) for node in self.slices.set_slice(name, new)]
        return any(changed)

    def set_domain(self, name: str, domain: TopologyDomain | None) -> bool:
        before = self._domains.get(name)
        if domain is None:
            self._domains.pop(name, None)
        else:
            self._domains[name] = domain
        changed = before is None or domain is None or before.spec != domain.spec
        if changed:
            self._tree = None
        return changed

    def set_strategy(self, name: str, strategy: MIGStrategy | None) -> bool:
        before = self._strategies.pop(name, None)
        if strategy is not None:
            self._strategies[name] = strategy
        known = [each and (each.spec, each.status.observedGeneration > 0) for each in (before, strategy)]
        if known[0] == known[1]:
            return False
        changed = [self._rebuild(node) for node in self._nodes]
        return any(changed)

    def set_history(self, scores: Mapping[str, float]) -> bool:
        """How well workloads ended in the domains of these nodes; 1.0 for all others."""
        before, self._history = self._history, dict(scores)
        names = [name for name in {*before, *scores} if before.get(name) != scores.get(name)]
        changed = [self._rebuild(name) for name in names]
        return any(changed)

    def domains(self) -> Iterable[TopologyDomain]:
        """The objects that describe the network."""
        return self._domains.values()

    def set_config(self, config: SchedulerConfig | None) -> bool:
        changed = (self._config.spec if self._config else None) != (config.spec if config else None)
        self._config = config
        if changed:
            self._tree = None
        return changed

    def nodes(self) -> Iterable[Node]:
        return self._built.values()

    def cards(self, node: str) -> Cards:
        """The names of a node's cards and slices; none when nobody describes them."""
        found = self._described(node)
        if found is None:
            return Cards({}, {})
        devices = found.status.gpus
        return Cards(
            {device.index: device.uuid for device in devices},
            {
                (device.index, each.start): (device.uuid, each.uuid, each.profile)
                for device in devices
                for each in device.mig.instances
            },
        )

    def _described(self, node: str) -> GPUNode | None:
        """Its GPUNode, else what its ResourceSlices tell."""
        claimable = self.slices.devices_on(node)
        return self._gpu_nodes.get(node) or (claimable.described if claimable else None)

    def reported_holders(self, node: str) -> Mapping[str, DeviceSet]:
        """Pod -> what the node's kubelet says it has; the same object for as long as that is so."""
        return self._held.get(node, _NOBODY)

    def reported_devices(self, node: str, pod: core.ObjectMeta) -> DeviceSet:
        """What the node's kubelet says the pod has; nothing when it does not say."""
        holders = self.reported_holders(node)
        return holders.get(pod.uid) or holders.get(pod.key) or NO_DEVICES

    def objects(self, node: str) -> tuple[core.Node, GPUNode | None]:
        """What a node was read from."""
        return self._nodes[node], self._gpu_nodes.get(node)

    def held_back(self, node: str) -> frozenset[int]:
        """Cards that are whole and given to nobody, because they are to be cut or may be."""
        obj = self._gpu_nodes.get(node)
        if obj is None or node not in self._nodes:
            return frozenset()
        return self._held_back(obj.status.gpus, mig_layouts.read_layouts(obj), self._nodes[node].metadata.labels)

    def _held_back(
        self, devices: Iterable[GPUDevice], layouts: Mapping[str, MIGLayout], labels: Mapping[str, str]
    ) -> frozenset[int]:
        return frozenset(
            device.index
            for device in devices
            if mig_layouts.is_held_back(device, layouts.get(device.uuid), labels, self._strategies.values())
        )

    def find_fault(self, node: str) -> NodeFault | None:
        """What is wrong with a node; one that is not there is lost."""
        return node_health.find_fault(self._nodes.get(node))

    def unhealthy_gpus(self, node: str) -> int:
        """Mask of its cards that are known to be unhealthy."""
        return node_health.sick_cards(self._gpu_nodes.get(node))

    def labels(self) -> domain_labels.Labels:
        """Where a node's place in the network is read from."""
        said = self._config.spec.topology if self._config is not None else None
        if said is not None and (said.preset or said.levels):
            return topology.read_label_keys(said)
        return domain_labels.get_preset(domain_labels.detect_preset(node.labels for node in self._built.values()))

    def check_config(self) -> label_check.LabelCheck:
        """Whether the labels that the SchedulerConfig names are on the nodes."""
        said = self._config.spec.topology if self._config is not None else TopologyLabels()
        return label_check.check_labels(
            said, [node.labels for node in self._built.values()], declared=len(self._domains)
        )

    def check_domain(self, name: str, nodes: int) -> label_check.LabelCheck:
        """Whether a TopologyDomain describes a part of the network; `nodes`: how many are in it."""
        problem = next((each for each in self.problems if each.startswith(f"{name}: ")), "")
        if problem:
            return label_check.LabelCheck(ready=False, reason="Invalid", message=problem.removeprefix(f"{name}: "))
        if not nodes:
            return label_check.LabelCheck(ready=False, reason="NoNodes", message="no node with GPUs is in it")
        return label_check.LabelCheck(ready=True, reason=label_check.IN_USE, message="in use")

    def tree(self) -> Tree:
        """The network; the same object until a place in it changes. To build it for thousands of nodes takes long, and
        most changes of nodes (ready, taints, health) change no place."""
        if self._tree is None:
            infos = [self._infos[name] for name in sorted(self._infos)]
            self._tree, self.problems = topology.build_tree(infos, self.labels(), self._domains.values())
        return self._tree

    def _rebuild(self, name: str) -> bool:
        before = self._built.pop(name, None), self._infos.pop(name, None)
        node, gpu_node = self._nodes.get(name), self._described(name)
        built = None if node is None else self._build(node, gpu_node, before[0])
        if node is None or built is None:
            if before[1] is not None:
                self._tree = None
            return before[0] is not None
        info = topology.node_info(name, node.metadata.labels, gpu_node)
        if before[1] != info:
            self._tree = None
        is_same = before == (built, info)
        # The same object for the same node: whoever keeps what he knows of it can see that nothing changed.
        self._built[name], self._infos[name] = (before[0] or built if is_same else built), info
        return not is_same

    def _build(self, node: core.Node, gpu_node: GPUNode | None, before: Node | None) -> Node | None:
        offered = podspec.read_allocatable(node)
        claimable = self.slices.devices_on(node.metadata.name)
        labels, taints = node.metadata.labels, tuple(Taint(t.key, t.value, t.effect) for t in node.spec.taints)
        is_claims_only = claimable is not None and not _has_gpus(offered)
        if claimable is not None and gpu_node is not None:
            labels = {**labels, CLAIMS_LABEL: "true"}
            if is_claims_only:
                offered, taints = offered | _to_claim(gpu_node, claimable), (*taints, _CLAIMS_ONLY)
        if not _has_gpus(offered):
            return None
        devices = {device.index: device for device in gpu_node.status.gpus} if gpu_node else {}
        divided = _divided(node, devices.values(), before.pieces or 0 if before is not None else 0)
        if divided:
            # Every card is divided, and nobody gets one whole.
            offered = {**offered, amounts.GPU: math.ceil(offered.get(amounts.SHARED, 0) / divided)}
        shape = self._shape(offered, labels, gpu_node)
        layouts = mig_layouts.read_layouts(gpu_node)
        cut = _cut(devices, offered, shape, layouts)
        held_back = self._held_back(devices.values(), layouts, labels)
        if not devices and mig_layouts.is_unknown(labels, self._strategies.values()):
            held_back = frozenset(range(shape.gpu_count))
        healthy = sum(
            1 << card
            for card in range(shape.gpu_count)
            if card not in held_back and (card not in devices or _is_healthy(devices[card]))
        )
        if claimable is not None and (is_claims_only or node.metadata.name not in self._gpu_nodes):
            healthy &= sum(1 << card for card, device in devices.items() if _is_listed(device, claimable))
        return Node(
            name=node.metadata.name,
            shape=shape,
            cpu_milli=offered.get(amounts.CPU, 0),
            memory_bytes=offered.get(amounts.MEMORY, 0),
            pods=offered.get(amounts.PODS, 0),
            labels=labels,
            taints=taints,
            ready=podspec.is_ready(node) and not node.spec.unschedulable and node.metadata.deletionTimestamp is None,
            healthy=_offered_cards(healthy, cut, offered.get(amounts.GPU, 0)),
            cut=cut,
            reliability=_reliability(gpu_node),
            history=self._history.get(node.metadata.name, 1.0),
            spot=_is_spot(labels, taints),
            cheap=labels.get(CHEAP_NODE_LABEL) == "true",
            pieces=divided,
        )

    def _shape(self, offered: Mapping[str, int], labels: Mapping[str, str], gpu_node: GPUNode | None) -> Shape:
        """Equal shapes are one object: hundreds of nodes share few."""
        count = offered.get(amounts.GPU, 0)
        if gpu_node is not None and len(gpu_node.status.gpus) >= count:
            wiring = topology.read_topology(gpu_node)
        else:
            # Nothing is known of the wiring, or the device plugin offers every card several times.
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
            geometry=_geometry(model),
        )
        return self._shapes.setdefault(shape, shape)


def _held(gpu_node: GPUNode | None, *, shares: bool) -> dict[str, DeviceSet]:
    """By uid where the agent knows it; `shares`: of cards, too."""
    return {
        each.uid or each.pod: DeviceSet(assignment.parse_mask(each.cards), assignment.parse_slices(each.slices))
        for each in (gpu_node.status.held if gpu_node else ())
        if shares or not each.replicas
    }


def _is_spot(labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
    said = [*((key, labels[key]) for key in _SPOT if key in labels), *((taint.key, taint.value) for taint in taints)]
    return any(_SPOT.get(key) == value.lower() for key, value in said)


def _same(old: core.Node, new: core.Node) -> bool:
    """Heartbeats change nothing that is looked at here."""
    return (
        old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletionTimestamp == new.metadata.deletionTimestamp
        and old.status.allocatable == new.status.allocatable
        and old.status.capacity == new.status.capacity
        and podspec.is_ready(old) == podspec.is_ready(new)
    )


def _says_the_same(old: GPUNode, new: GPUNode) -> bool:
    return old.status == new.status and old.spec == new.spec


def _has_gpus(offered: Mapping[str, int]) -> bool:
    return any(amounts.is_gpu(resource) and count for resource, count in offered.items())


def _divided(node: core.Node, devices: Iterable[GPUDevice], before: int) -> int:
    """Into how many shares the device plugin divides each card; 0: it does not, or nobody can tell."""
    offered, open_ = podspec.read_capacity(node, amounts.SHARED), podspec.read_allocatable(node)
    if not offered or (open_.get(amounts.GPU) and not open_.get(amounts.SHARED)):
        # What a plugin offered once stays, as zero.
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


def _reliability(gpu_node: GPUNode | None) -> float:
    told = gpu_node.status.reliability if gpu_node else None
    return 1.0 if told is None else min(max(told.score, 0.0), 1.0)


def _geometry(model: str) -> mig.Geometry | None:
    try:
        return catalog.find(model).geometry
    except errors.Permanent:
        return None


def _slice_cards(offered: Mapping[str, int]) -> int:
    """One stand-in card for the slices of a node whose cards nobody describes."""
    return int(any(name.startswith(amounts.MIG_PREFIX) and count for name, count in offered.items()))


def _cut(
    devices: Mapping[int, GPUDevice], offered: Mapping[str, int], shape: Shape, layouts: Mapping[str, MIGLayout]
) -> dict[int, tuple[Placement, ...]]:
    """Card -> its slices; of those only as many as the device plugin offers, and none that is to go."""
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
                found.append(_placement(shape, instance.profile, instance.start, instance.size, instance.memoryMiB))
        cut[index] = tuple(found)
    if not devices and left and shape.gpu_count:
        numbers = iter(range(sum(left.values())))
        cut[shape.gpu_count - 1] = tuple(
            _placement(shape, name.removeprefix(amounts.MIG_PREFIX), next(numbers), 1, 0)
            for name, count in sorted(left.items())
            for _ in range(count)
        )
    return cut


def _placement(shape: Shape, profile: str, start: int, size: int, memory_mib: int) -> Placement:
    known = shape.geometry.profiles.get(profile) if shape.geometry else None
    return mig.Placement(known or mig.Profile(profile, 1, size, (start,), 1, memory_mib), start)


def _offered_cards(healthy: int, cut: Mapping[int, object], offered: int) -> int:
    """Healthy cards, less the last of those that are whole beyond what the device plugin offers."""
    whole = [card for card in range(healthy.bit_length()) if healthy >> card & 1 and card not in cut]
    for card in whole[offered:]:
        healthy &= ~(1 << card)
    return healthy

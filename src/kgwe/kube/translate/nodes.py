"""The GPU nodes of the cluster as placement sees them, and the network that connects them.

Only nodes that offer GPUs or slices are read. The GPUNode object describes wiring, health and slices. Without one the
GPUs are counted from what the device plugin offers, and their wiring is unknown, which meets no requirement. What the
device plugin does not offer is not free, whatever the GPUNode says: the kubelet would reject the pod.

Where a DRA driver publishes ResourceSlices, the GPUNode still describes the GPUs; without one the ResourceSlices do, as
far as they can. Only ResourceSlices say whether GPUs can be claimed. Such a node has the label CLAIMS_LABEL here, and a
taint of that name if its GPUs can be had in no other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.api.kgwe.schedulerconfig import TopologyLabels
from kgwe.kube.translate import label_check, mig_layouts, node_health, podspec, topology
from kgwe.kube.translate.node_builder import NodeBuilder, NodeObjects
from kgwe.kube.translate.resource_slices import DeviceSlices
from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet
from kgwe.model.network import domain_labels
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.translate.node_health import NodeFault
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node

_NO_HOLDERS: Final[Mapping[str, DeviceSet]] = {}


@dataclass(frozen=True, slots=True)
class Cards:
    """Names of the GPUs and slices of a node."""

    uuids: Mapping[int, str]
    """Card -> its UUID."""
    slices: Mapping[tuple[int, int], tuple[str, str, str]]
    """(card, start) -> (UUID of the card, UUID of the slice, profile)."""


class FleetReader:
    """Reads the objects into `nodes()` and `tree()`, which are up to date after every call."""

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
        self._builder = NodeBuilder()
        self._tree: Tree | None = None  # None: it has to be built again
        self._history: Mapping[str, float] = {}
        #: what is wrong with the objects, as sentences
        self.problems: tuple[str, ...] = ()

    # Each setter returns whether anything changed that matters to placement.

    def set_node(self, name: str, node: core.Node | None) -> bool:
        before = self._nodes.get(name)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        if before is not None and node is not None and _is_unchanged(before, node):
            return False
        changed = self._rebuild_node(name)
        self._read_holders(name)
        return changed

    def set_gpu_node(self, name: str, gpu_node: GPUNode | None) -> bool:
        before = self._gpu_nodes.get(name)
        if gpu_node is None:
            self._gpu_nodes.pop(name, None)
        else:
            self._gpu_nodes[name] = gpu_node
        if before is not None and gpu_node is not None and _is_gpu_node_unchanged(before, gpu_node):
            return False
        changed = self._rebuild_node(name)
        self._read_holders(name)
        return changed

    def _read_holders(self, name: str) -> None:
        """Read which pods hold which devices, as the kubelet of the node reports."""
        node = self._nodes.get(name)
        # GPUs that are offered several times under their own name have other numbers here than in the driver.
        is_named = node is not None and amounts.SHARED in {**node.status.capacity, **node.status.allocatable}
        held = _parse_held(self._gpu_nodes.get(name), shares=is_named)
        if held != self.reported_holders(name):
            self._held[name] = held

    def set_slice(self, name: str, new: ResourceSlice | None) -> bool:
        changed = [self._rebuild_node(node) for node in self.slices.set_slice(name, new)]
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
        changed = [self._rebuild_node(node) for node in self._nodes]
        return any(changed)

    def set_history(self, scores: Mapping[str, float]) -> bool:
        """How well workloads ended in the domains of these nodes; 1.0 for all others."""
        before, self._history = self._history, dict(scores)
        names = [name for name in {*before, *scores} if before.get(name) != scores.get(name)]
        changed = [self._rebuild_node(name) for name in names]
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
        """The names of a node's GPUs and slices; none if they are not described."""
        found = self._find_gpu_node(node)
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

    def _find_gpu_node(self, node: str) -> GPUNode | None:
        """Its GPUNode, else what its ResourceSlices say."""
        claimable = self.slices.devices_on(node)
        return self._gpu_nodes.get(node) or (claimable.described if claimable else None)

    def reported_holders(self, node: str) -> Mapping[str, DeviceSet]:
        """Pod -> what the node's kubelet says it has; the same object for as long as that is so."""
        return self._held.get(node, _NO_HOLDERS)

    def reported_devices(self, node: str, pod: core.ObjectMeta) -> DeviceSet:
        """What the node's kubelet says the pod has; nothing when it does not say."""
        holders = self.reported_holders(node)
        return holders.get(pod.uid) or holders.get(pod.key) or NO_DEVICES

    def objects(self, node: str) -> tuple[core.Node, GPUNode | None]:
        """The objects that a node was read from."""
        return self._nodes[node], self._gpu_nodes.get(node)

    def node_names(self) -> list[str]:
        """Names of all Nodes, with or without GPUs."""
        return list(self._nodes)

    def find_node(self, node: str) -> core.Node | None:
        """Its Node as last seen; None if it does not exist."""
        return self._nodes.get(node)

    def gpu_node_annotations(self, node: str) -> Mapping[str, str]:
        """Annotations of its GPUNode; none if it has no GPUNode."""
        found = self._gpu_nodes.get(node)
        return found.metadata.annotations if found is not None else {}

    def offers(self, resource: str) -> bool:
        """Whether a node offers a resource, free or in use."""
        return any(
            node.status.allocatable.get(resource, "0") != "0" or node.status.capacity.get(resource, "0") != "0"
            for node in self._nodes.values()
        )

    def held_back(self, node: str) -> frozenset[int]:
        """GPUs that are whole and given to no pod, because they are to be cut or may be."""
        obj = self._gpu_nodes.get(node)
        if obj is None or node not in self._nodes:
            return frozenset()
        labels, strategies = self._nodes[node].metadata.labels, self._strategies.values()
        return mig_layouts.find_held_back(obj.status.gpus, mig_layouts.read_layouts(obj), labels, strategies)

    def find_fault(self, node: str) -> NodeFault | None:
        """What is wrong with a node; a node that does not exist is lost."""
        return node_health.find_fault(self._nodes.get(node))

    def unhealthy_gpus(self, node: str) -> int:
        """Mask of its cards that are known to be unhealthy."""
        return node_health.sick_cards(self._gpu_nodes.get(node))

    def labels(self) -> domain_labels.Labels:
        """The node labels from which the place in the network is read."""
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
        """The network; the same object until the place of a node in it changes.

        To build it for thousands of nodes takes long, and most changes of nodes (readiness, taints, health) change no
        place.
        """
        if self._tree is None:
            infos = [self._infos[name] for name in sorted(self._infos)]
            self._tree, self.problems = topology.build_tree(infos, self.labels(), self._domains.values())
        return self._tree

    def _rebuild_node(self, name: str) -> bool:
        before = self._built.pop(name, None), self._infos.pop(name, None)
        node, gpu_node = self._nodes.get(name), self._find_gpu_node(name)
        built = None if node is None else self._build_node(node, gpu_node, before[0])
        if node is None or built is None:
            if before[1] is not None:
                self._tree = None
            return before[0] is not None
        info = topology.node_info(name, node.metadata.labels, gpu_node)
        if before[1] != info:
            self._tree = None
        is_same = before == (built, info)
        # The same object for the same node: a caller that caches what it knows of a node sees that nothing changed.
        self._built[name], self._infos[name] = (before[0] or built if is_same else built), info
        return not is_same

    def _build_node(self, node: core.Node, gpu_node: GPUNode | None, before: Node | None) -> Node | None:
        name = node.metadata.name
        found = NodeObjects(
            node,
            gpu_node,
            has_gpu_node=name in self._gpu_nodes,
            claimable=self.slices.devices_on(name),
            history=self._history.get(name, 1.0),
        )
        return self._builder.build(found, before, self._strategies.values())


def _parse_held(gpu_node: GPUNode | None, *, shares: bool) -> dict[str, DeviceSet]:
    """Devices by the uid of the pod, or its key where the agent does not know the uid; `shares`: shares of GPUs too."""
    return {
        each.uid or each.pod: DeviceSet(assignment.parse_mask(each.cards), assignment.parse_slices(each.slices))
        for each in (gpu_node.status.held if gpu_node else ())
        if shares or not each.replicas
    }


def _is_unchanged(old: core.Node, new: core.Node) -> bool:
    """Whether nothing changed that is read here; heartbeats do not count."""
    return (
        old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletionTimestamp == new.metadata.deletionTimestamp
        and old.status.allocatable == new.status.allocatable
        and old.status.capacity == new.status.capacity
        and podspec.is_ready(old) == podspec.is_ready(new)
    )


def _is_gpu_node_unchanged(old: GPUNode, new: GPUNode) -> bool:
    return old.status == new.status and old.spec == new.spec

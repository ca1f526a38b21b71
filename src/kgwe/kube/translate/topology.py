"""Wiring and network, read from GPUNodes, TopologyDomains, the SchedulerConfig and node labels.

TopologyDomains and labels may be mixed. A TopologyDomain takes precedence; labels fill the levels that no object
describes. If objects contradict each other, the first by name counts, and the contradiction is returned as a message.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.api.kgwe.topologydomain import DomainType
from kgwe.model.gpu.catalog import NVLINK_GB_PER_S
from kgwe.model.gpu.topology import Nic, Slot, Wiring
from kgwe.model.network import domain_labels, domains

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode, NVLinkState, PCIeLocation
    from kgwe.kube.api.kgwe.schedulerconfig import TopologyLabels
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.model.gpu.topology import PciePath

# --- inside a node --------------------------------------------------------------------------------------


def read_topology(node: GPUNode) -> Wiring:
    """The wiring of the node's GPUs; slot i is the GPU with index i, also if an index is missing."""
    devices = {device.index: device for device in node.status.gpus}
    cards = [devices.get(index) for index in range(max(devices, default=-1) + 1)]
    links = [device.nvlink if device else None for device in cards]
    switch, down = _switch_links(links)
    mesh = () if switch else _read_mesh(links)
    linked = [link for link in links if link is not None] if switch or mesh else []
    version = min((link.version for link in linked), default=0)
    return Wiring(
        slots=tuple(_read_slot(device) for device in cards),
        nvlink_version=version,
        switch_links=switch,
        mesh=mesh,
        nics=tuple(
            Nic(nic.name, nic.gbitPerSecond, nic.numaNode, _read_path(nic.pcie), nic.rail) for nic in node.status.nics
        ),
        links_down=down,
        link_gb_per_s=_link_gb_per_s(linked, version),
    )


def _read_slot(device: GPUDevice | None) -> Slot:
    if device is None:
        return Slot(bus="")
    bus = device.pcie.busID if device.pcie else ""
    return Slot(bus, device.numaNode, device.cpuAffinity, _read_path(device.pcie))


def _read_path(location: PCIeLocation | None) -> PciePath:
    if location is None or not (location.rootComplex or location.switches):
        return ()
    # A host bridge without a name is identified by its devices: nameless bridges are different ones.
    return (location.rootComplex or f"above-{location.switches[0]}", *location.switches)


def _switch_links(links: Sequence[NVLinkState | None]) -> tuple[int, tuple[int, ...]]:
    """(links from a card into the NVSwitch, how many of them are down per card)."""
    up = [link.links if link and link.nvSwitch else 0 for link in links]
    wired = max((link.maxLinks for link in links if link and link.nvSwitch), default=0)
    down = tuple(max(wired - own, 0) for own in up)
    return (wired, down if any(down) else ()) if any(up) else (0, ())


def _read_mesh(links: Sequence[NVLinkState | None]) -> tuple[tuple[int, int, int], ...]:
    """Direct links that are up; if the two ends differ, the lower number."""
    found: dict[tuple[int, int], int] = {}
    for card, link in enumerate(links):
        for peer in link.peers if link else ():
            if peer.gpu != card and peer.gpu < len(links):
                pair = (min(card, peer.gpu), max(card, peer.gpu))
                found[pair] = min(found.get(pair, peer.links), peer.links)
    return tuple((a, b, count) for (a, b), count in sorted(found.items()) if count)


def _link_gb_per_s(links: Iterable[NVLinkState], version: int) -> float:
    """Bandwidth of one link in one direction, if the driver reports another than is usual for the generation."""
    reported = [link.bandwidthGBps / link.links for link in links if link.links and link.bandwidthGBps]
    slowest = min(reported, default=0.0)
    return 0.0 if slowest == NVLINK_GB_PER_S.get(version) else slowest


# --- between nodes --------------------------------------------------------------------------------------

#: levels of TopologyDomain objects, from the node outwards
LEVELS: Final = ("leaf", "spine", "core", "zone")
_LEVEL_OF: Final = {
    DomainType.LEAF: 0,
    DomainType.SPINE: 1,
    DomainType.CORE: 2,
    DomainType.ZONE: 3,
}
# Names of these levels in the labels of some clouds.
_ALSO: Final = {"spine": "block", "core": "island"}


def read_label_keys(config: TopologyLabels) -> domain_labels.Labels:
    """The label keys a SchedulerConfig asks for."""
    if config.levels:
        levels = tuple(domain_labels.LabelLevel(level.name, level.labels) for level in config.levels)
        return domain_labels.Labels(levels, domain_labels.NVLINK_KEYS)
    return domain_labels.get_preset(config.preset or "topograph")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What determines the place of a node in the network."""

    name: str
    labels: Mapping[str, str]
    clique: str = ""
    """NVLink domain as its GPUNode reports it."""
    gb_per_s: float = domains.UNKNOWN_GB_PER_S


def node_info(name: str, labels: Mapping[str, str], gpu_node: GPUNode | None) -> NodeInfo:
    if gpu_node is None:
        return NodeInfo(name, labels)
    fabric = gpu_node.status.fabric
    rates = [nic.gbitPerSecond for nic in gpu_node.status.nics]
    return NodeInfo(
        name, labels, fabric.clique if fabric else "", sum(rates) / 8 if all(rates) else domains.UNKNOWN_GB_PER_S
    )


def build_tree(
    nodes: Iterable[NodeInfo],
    keys: domain_labels.Labels,
    objects: Iterable[TopologyDomain] = (),
    *,
    speeds: Mapping[str, domains.Speed] | None = None,
) -> tuple[domains.Tree, tuple[str, ...]]:
    """The network of the nodes, and what is wrong with the objects that describe it."""
    declared = _Declared(sorted(objects, key=lambda obj: obj.metadata.name))
    names = LEVELS if declared.objects else keys.names
    places = []
    for node in nodes:
        read = keys.place(node.name, node.labels, node.gb_per_s)
        by_label = dict(zip(keys.names, read.path, strict=True))
        path, nvlink = declared.place(node)
        places.append(
            domains.Place(
                node=node.name,
                path=tuple(said or _read_label(by_label, name) for name, said in zip(names, path, strict=False))
                or read.path,
                nvlink=nvlink or read.nvlink or node.clique,
                gb_per_s=node.gb_per_s,
            )
        )
    built = domains.build_tree(
        places, names, speeds=speeds, domain_speeds=declared.speeds(), connected=declared.connections()
    )
    return built, tuple(declared.problems)


def _read_label(by_label: Mapping[str, str], level: str) -> str:
    return by_label.get(level) or by_label.get(_ALSO.get(level, ""), "")


class _Declared:
    """TopologyDomain objects, looked up by node."""

    def __init__(self, objects: Sequence[TopologyDomain]) -> None:
        self.objects = {obj.metadata.name: obj for obj in objects}
        self.problems: list[str] = []
        self._by_node: dict[tuple[bool, str], list[TopologyDomain]] = collections.defaultdict(list)
        self._selecting = [obj for obj in objects if obj.spec.nodeSelector]
        for obj in objects:
            for node in obj.spec.nodes:
                self._by_node[_is_nvlink(obj), node].append(obj)
            self._check_parent(obj)

    def _check_parent(self, obj: TopologyDomain) -> None:
        parent = self.objects.get(obj.spec.parent)
        if obj.spec.parent and parent is None:
            self.problems.append(f"{obj.metadata.name}: there is no domain {obj.spec.parent!r} to be its parent")
        elif parent is not None and _level_of(parent) <= _level_of(obj):
            self.problems.append(
                f"{obj.metadata.name}: a {obj.spec.type} cannot lie in {obj.spec.parent!r}, a {parent.spec.type}"
            )

    def place(self, node: NodeInfo) -> tuple[tuple[str, ...], str]:
        """(domain per level, NVLink domain); the path is empty when there are no objects at all."""
        if not self.objects:
            return (), ""
        leaf, nvlink = self._find_domain(node, nvlink=False), self._find_domain(node, nvlink=True)
        path = [""] * len(LEVELS)
        # An NVLink domain names its parent, too; the leaf takes precedence.
        for start in (nvlink, leaf):
            for obj in self._list_ancestors(start):
                if not _is_nvlink(obj):
                    path[_level_of(obj)] = obj.metadata.name
        return tuple(path), nvlink.metadata.name if nvlink else ""

    def _find_domain(self, node: NodeInfo, *, nvlink: bool) -> TopologyDomain | None:
        found = list(self._by_node.get((nvlink, node.name), ()))
        found += [
            obj
            for obj in self._selecting
            if _is_nvlink(obj) is nvlink and obj.spec.nodeSelector.items() <= node.labels.items()
        ]
        found.sort(key=lambda obj: obj.metadata.name)
        if len(found) > 1:
            named = ", ".join(obj.metadata.name for obj in found)
            self.problems.append(f"node {node.name} is claimed by {named}; {found[0].metadata.name} keeps it")
        return found[0] if found else None

    def _list_ancestors(self, obj: TopologyDomain | None) -> Iterable[TopologyDomain]:
        """The domain and those above it; every step leads to a higher level, so it ends."""
        while obj is not None:
            yield obj
            parent = self.objects.get(obj.spec.parent)
            obj = parent if parent is not None and _level_of(parent) > _level_of(obj) else None

    def speeds(self) -> dict[tuple[str, str], domains.Speed]:
        return {
            (LEVELS[_level_of(obj)], name): domains.Speed(obj.spec.bandwidthGBps, obj.spec.oversubscription)
            for name, obj in self.objects.items()
            if not _is_nvlink(obj) and (obj.spec.bandwidthGBps or obj.spec.oversubscription)
        }

    def connections(self) -> list[tuple[str, str, str]]:
        return [
            (LEVELS[_level_of(obj)], name, other)
            for name, obj in self.objects.items()
            if not _is_nvlink(obj)
            for other in obj.spec.connected
        ]


def _is_nvlink(obj: TopologyDomain) -> bool:
    return obj.spec.type == DomainType.NVLINK


def _level_of(obj: TopologyDomain) -> int:
    """Level of the domain; an NVLink domain is below them all."""
    return _LEVEL_OF.get(DomainType(obj.spec.type), -1)

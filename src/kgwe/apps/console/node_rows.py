"""GPU nodes as the console shows them: place in the network, GPUs with health, slices and the pods that hold them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from kgwe.apps.console.scope import EVERYTHING
from kgwe.cluster.workload.owner import owner_of_holder
from kgwe.costing.money import MICROS
from kgwe.costing.prices.book import Quote
from kgwe.kube.translate import podspec
from kgwe.kube.translate.node_prices import read_node_kind
from kgwe.model.units import amounts
from kgwe.model.units.limits import MAX_GPUS_PER_NODE
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.console.scope import Scope
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.costing.prices.book import NodeKind, PriceBook
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Grant

_POOLS: Final = ("gpu-autoscaler.io/node-pool", "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool")
_HEALTHY: Final = "Healthy"
_PRICE_S: Final = 3600
_COUNT: Final = "nvidia.com/gpu.count"
_PRODUCT: Final = "nvidia.com/gpu.product"
# Trust in devices that the kubelet reports.
_OBSERVED: Final = 2


class SliceCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """A MIG slice of a GPU."""

    profile: str
    start: int
    size: int
    pod: Annotated[str, msgspec.Meta(description="The pod that holds it, as namespace/name.")] = ""


class GpuCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU. A field that is left out is empty."""

    health: Annotated[str, msgspec.Meta(description="Degraded, Unhealthy or Unknown; absent: healthy.")] = ""
    reason: Annotated[str, msgspec.Meta(description="Why it is not healthy.")] = ""
    pods: Annotated[tuple[str, ...], msgspec.Meta(description="Pods that hold it, as namespace/name.")] = ()
    milli: Annotated[int, msgspec.Meta(description="Thousandths of the GPU that these pods hold.")] = 0
    reserved: Annotated[str, msgspec.Meta(description="What it is reserved for, before its pod is bound.")] = ""
    slices: tuple[SliceCell, ...] = ()
    island: Annotated[int, msgspec.Meta(description="GPUs of one island are connected by NVLink.")] = 0


class NodeRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One GPU node."""

    name: str
    gpus: tuple[GpuCell, ...]
    path: Annotated[tuple[str, ...], msgspec.Meta(description="Network domains, the nearest first.")] = ()
    nvlink: Annotated[str, msgspec.Meta(description="NVLink domain that reaches beyond the node.")] = ""
    model: str = ""
    pool: str = ""
    instance_type: str = ""
    capacity_type: str = ""
    zone: str = ""
    ready: bool = True
    cordoned: bool = False
    fault: Annotated[str, msgspec.Meta(description="What is wrong with the node.")] = ""
    price_per_hour: Annotated[float | None, msgspec.Meta(description="US dollars; absent: no price is known.")] = None


class Prices:
    """What nodes cost per hour, by the price book."""

    def __init__(self, book: PriceBook | None, clock: Callable[[], float] = time.time) -> None:
        self._book = book
        self._clock = clock
        self._known: dict[NodeKind, tuple[float, float | None]] = {}

    def price(self, kind: NodeKind) -> float | None:
        """Return dollars per hour; None if the book has no price."""
        if self._book is None:
            return None
        now_s = self._clock()
        known = self._known.get(kind)
        if known is None or known[0] <= now_s:
            found = self._book.quote(kind, int(now_s))
            price = found.micros_per_hour / MICROS if isinstance(found, Quote) else None
            known = self._known[kind] = min(found.until_s, now_s + _PRICE_S), price
        return known[1]


class NodeRows:
    """Makes rows of nodes from the state of the cluster."""

    def __init__(self, state: ClusterState, prices: Prices) -> None:
        self._state = state
        self._prices = prices
        self._positions: tuple[Tree | None, dict[str, tuple[str, ...]]] = (None, {})

    def list_names(self) -> list[str]:
        """Return the names of all GPU nodes, sorted."""
        return [node.name for node in self._state.fleet.snapshot.nodes]

    def list_levels(self) -> list[str]:
        """Return the names of the network's levels, the nearest first."""
        return [level.name for level in self._state.fleet.tree.levels]

    def price_of(self, name: str) -> float | None:
        """Return dollars per hour of a node."""
        fleet = self._state.fleet
        node = fleet.node(name)
        if node is None:
            return None
        obj, _ = self._state.reader.objects(name)
        kind = read_node_kind(obj.metadata.labels, node.shape.model, node.shape.gpu_count)
        return self._prices.price(kind)

    def make_row(self, name: str, scope: Scope = EVERYTHING) -> NodeRow | None:
        """Return a node as a user may see it; None if it is not there, or not to be seen."""
        node = self._state.fleet.node(name)
        if node is None or not scope.nodes:
            return None
        obj, gpu_node = self._state.reader.objects(name)
        shown = gpu_node if scope.gpu_nodes else None
        labels = obj.metadata.labels
        # Without the right on GPUNodes only the Node speaks.
        model = node.shape.model if scope.gpu_nodes else labels.get(_PRODUCT, "")
        count = node.shape.gpu_count if scope.gpu_nodes else _count_gpus(obj)
        kind = read_node_kind(labels, model, count)
        fault = self._state.reader.find_fault(name)
        return NodeRow(
            name=name,
            gpus=tuple(self._make_cells(name, count, shown, scope)),
            path=self._find_path(name),
            nvlink=_read_fabric(shown),
            model=model,
            pool=next((labels[key] for key in _POOLS if labels.get(key)), ""),
            instance_type=kind.instance_type,
            capacity_type=str(kind.capacity),
            zone=kind.zone,
            ready=podspec.is_ready(obj),
            cordoned=obj.spec.unschedulable,
            fault=fault.value if fault is not None else "",
            price_per_hour=self._prices.price(kind),
        )

    def _find_path(self, name: str) -> tuple[str, ...]:
        tree = self._state.fleet.tree
        if self._positions[0] is not tree:
            paths = {
                node: tuple(level.names[int(tree.domain_of[number, place])] for number, level in enumerate(tree.levels))
                for place, node in enumerate(tree.nodes)
            }
            self._positions = tree, paths
        return self._positions[1].get(name, ())

    # --- GPUs -------------------------------------------------------------------------------------------

    def _make_cells(self, name: str, count: int, gpu_node: GPUNode | None, scope: Scope) -> Iterator[GpuCell]:
        devices = {each.index: each for each in gpu_node.status.gpus} if gpu_node is not None else {}
        held = _Held(count)
        for key in sorted(self._state.fleet.holders(name), key=self._name_holder):
            self._add_holder(held, key, scope)
        islands = find_islands(list(devices.values()))
        for number in range(count):
            device = devices.get(number)
            health = device.health.state if device is not None else ""
            yield GpuCell(
                health="" if health == _HEALTHY else health,
                reason=device.health.message or device.health.reason if device and health != _HEALTHY else "",
                pods=tuple(held.pods[number]),
                milli=min(held.milli[number], GPU_MILLI),
                reserved=held.reserved[number],
                slices=_list_slices(device, held.slices) if device is not None else (),
                island=islands.get(number, 0),
            )

    def _name_holder(self, key: str) -> str:
        pod = self._state.pods.get(key)
        return pod.metadata.key if pod is not None else key

    def _add_holder(self, held: _Held, key: str, scope: Scope) -> None:
        state = self._state
        pod = state.pods.get(key)
        if pod is not None:
            if scope.pods.covers(pod.metadata.namespace):
                held.add_pod(pod.metadata.key, self._list_grants(key, scope, held))
            return
        owner = owner_of_holder(key)
        workload = state.find_workload(owner)
        if workload is None:
            is_shown = scope.sees_cluster
        else:
            namespace = workload.meta.namespace
            is_shown = scope.jobs.covers(namespace) and scope.covers_work(
                "GPUWorkload", workload.kind.resource.group, namespace
            )
        if is_shown:
            held.reserve(state.owners.title(owner), self._list_grants(key, scope, held))

    def _list_grants(self, key: str, scope: Scope, held: _Held) -> list[tuple[int, int, tuple[int, int] | None]]:
        """Return (GPU, thousandths, slice). For users who do not see all pods, guesses do not depend on other pods."""
        fleet = self._state.fleet
        known = fleet.recorded_holding(key)
        if scope.gpu_nodes and (scope.pods.everything or (known is not None and known.trust == _OBSERVED)):
            return [each for grant in fleet.grants(key) for each in _list_parts(grant)]
        wanted = known.amounts if known is not None else {}
        whole = wanted.get(amounts.GPU, 0)
        is_part = not whole and any(amounts.is_gpu(name) and count for name, count in wanted.items())
        free = (number for number in range(held.count) if not held.pods[number] and not held.reserved[number])
        parts = [GPU_MILLI] * whole or [0] * is_part
        return [(number, milli, None) for number, milli in zip(free, parts, strict=False)]


def _list_parts(grant: Grant) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    for gpu in list_gpus(grant.gpus):
        yield gpu, GPU_MILLI, None
    if grant.share is not None:
        yield grant.share[0], grant.share[1], None
    for gpu, placed in grant.slices:
        yield gpu, 0, (gpu, placed.start)


class _Held:
    """What is held of the GPUs of one node."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pods: list[list[str]] = [[] for _ in range(count)]
        self.milli = [0] * count
        self.reserved = [""] * count
        self.slices: dict[tuple[int, int], str] = {}

    def add_pod(self, pod: str, parts: list[tuple[int, int, tuple[int, int] | None]]) -> None:
        for gpu, milli, place in parts:
            if gpu < self.count:
                if pod not in self.pods[gpu]:
                    self.pods[gpu].append(pod)
                self.milli[gpu] += milli
                if place is not None:
                    self.slices[place] = pod

    def reserve(self, title: str, parts: list[tuple[int, int, tuple[int, int] | None]]) -> None:
        for gpu, _, _ in parts:
            if gpu < self.count:
                self.reserved[gpu] = title


def _list_slices(device: GPUDevice, held: dict[tuple[int, int], str]) -> tuple[SliceCell, ...]:
    found = sorted(device.mig.instances, key=lambda each: each.start)
    return tuple(
        SliceCell(each.profile, each.start, each.size, held.get((device.index, each.start), "")) for each in found
    )


def find_islands(devices: list[GPUDevice]) -> dict[int, int]:
    """Return the NVLink island of each GPU, counted from 1; 0: it has no NVLink that is up."""
    parent: dict[int, int] = {}

    def find(number: int) -> int:
        while parent.setdefault(number, number) != number:
            number = parent[number]
        return number

    switched = [
        each.index for each in devices if each.nvlink is not None and each.nvlink.nvSwitch and each.nvlink.links
    ]
    pairs = [(switched[0], each) for each in switched if switched]
    for device in devices:
        links = device.nvlink.peers if device.nvlink is not None else ()
        pairs += [(device.index, peer.gpu) for peer in links if peer.links]
    for one, other in pairs:
        parent[find(other)] = find(one)
    roots = sorted({find(number) for number in parent})
    return {number: roots.index(find(number)) + 1 for number in parent}


def _count_gpus(node: core.Node) -> int:
    """Return the GPUs that a Node has, by its own words."""
    texts = (node.status.capacity.get(amounts.GPU, ""), node.metadata.labels.get(_COUNT, ""))
    return min(max((int(text) for text in texts if text.isdigit()), default=0), MAX_GPUS_PER_NODE)


def _read_fabric(gpu_node: GPUNode | None) -> str:
    fabric = gpu_node.status.fabric if gpu_node is not None else None
    return fabric.clique if fabric is not None else ""

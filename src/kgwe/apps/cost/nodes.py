"""Nodes as the cost engine reads them: price, GPUs with their slices and shares, and what pods can request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.usage_source import NodeAddress  # noqa: TC001 - read by msgspec when it decodes
from kgwe.costing.metering.device_choice import guess_layouts
from kgwe.costing.metering.division import GpuCut
from kgwe.costing.metering.meter import NodeState
from kgwe.costing.metering.mig_weights import SlicePlace
from kgwe.costing.split import HostShape
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.translate.node_prices import read_node_kind
from kgwe.model.gpu import catalog, mig
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.model.gpu.catalog import GpuModel

_PRODUCT: Final = "nvidia.com/gpu.product"
_COUNT: Final = "nvidia.com/gpu.count"
_REPLICAS: Final = "nvidia.com/gpu.replicas"
_MOST_GPUS: Final = 64


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    addresses: tuple[NodeAddress, ...] = ()
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}


class _NodeSpec(msgspec.Struct, frozen=True, gc=False):
    provider_id: str = msgspec.field(default="", name="providerID")


class CostNode(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


COST_NODES: Final = resources.Resource("", "v1", "nodes", "Node", namespaced=False, type=CostNode)


def read_state(node: CostNode, gpu_node: GPUNode | None) -> NodeState | None:
    """Return what a node costs and has; None for a node without GPUs."""
    labels = node.metadata.labels
    capacity = _parse(node.status.capacity)
    cards = _read_gpu_node(gpu_node) if gpu_node is not None and gpu_node.status.gpus else ()
    shares = _read_number(labels.get(_REPLICAS)) or 1
    if not cards:
        cards = _read_resources(node.metadata.name, labels, capacity, shares)
    elif shares > 1:
        cards = tuple(_share(each, shares) for each in cards)
    if not cards:
        return None
    allocatable = _parse(node.status.allocatable) or capacity
    kind = read_node_kind(labels, cards[0].model, len(cards))
    host = HostShape(allocatable.get(amounts.CPU, 0), allocatable.get(amounts.MEMORY, 0))
    return NodeState(node.metadata.name, kind, cards, host)


def _read_gpu_node(gpu_node: GPUNode) -> tuple[GpuCut, ...]:
    """Read the GPUs that the agent of the node reports."""
    found = []
    for gpu in sorted(gpu_node.status.gpus, key=lambda each: each.index):
        model = find_model(gpu.model)
        slices = tuple(
            sorted((SlicePlace(each.profile, each.start) for each in gpu.mig.instances), key=lambda each: each.start)
        )
        found.append(GpuCut(gpu.uuid, model.name if model else gpu.model, model.geometry if model else None, slices))
    return tuple(found)


def _read_resources(
    name: str, labels: Mapping[str, str], capacity: Mapping[str, int], shares: int
) -> tuple[GpuCut, ...]:
    """Read GPUs from labels and resources, where no agent reports them. Their names are made up from the node's."""
    advertised = capacity.get(amounts.GPU, 0) + capacity.get(amounts.SHARED, 0)
    profiles = {mig.profile_of(each): count for each, count in capacity.items() if mig.profile_of(each) and count}
    count = _read_number(labels.get(_COUNT)) or -(-advertised // shares)
    product = labels.get(_PRODUCT, "").removesuffix("-SHARED")
    product = product.partition("-MIG-")[0]
    model = find_model(product)
    geometry = model.geometry if model else None
    if profiles and not count:
        count = 1
    count = min(count, _MOST_GPUS) if advertised or profiles else 0
    layouts = guess_layouts(geometry, count, profiles) if geometry and profiles else ((),) * count
    return tuple(
        GpuCut(f"{name}/gpu-{number}", model.name if model else product, geometry, layouts[number], shares)
        for number in range(count)
    )


def is_named_later(before: NodeState, after: NodeState) -> bool:
    """Whether an agent now gives the real names of GPUs that had made-up ones."""
    made_up = f"{before.name}/gpu-"
    return (
        len(before.gpus) == len(after.gpus)
        and any(each.uuid.startswith(made_up) for each in before.gpus)
        and not any(each.uuid.startswith(made_up) for each in after.gpus)
    )


def find_model(product: str) -> GpuModel | None:
    """Return the model of a product name or label; None for a GPU that is not known."""
    try:
        return catalog.find_model(product) if product else None
    except errors.Permanent:
        return None


def _share(gpu: GpuCut, shares: int) -> GpuCut:
    return gpu if gpu.slices else GpuCut(gpu.uuid, gpu.model, gpu.geometry, gpu.slices, shares)


def _parse(quantities: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for name, text in quantities.items():
        if name in {amounts.CPU, amounts.MEMORY} or amounts.is_gpu(name):
            try:
                found[name] = amounts.parse_one(name, text)
            except errors.KgweError:
                continue
    return found


def _read_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0

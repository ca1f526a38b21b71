"""Nodes as they will be after configuration: what a new node of a pool offers once its GPUs are ready.

What is known of a node of the same pool and instance type is taken from it. Without one, the pool's description counts.
Then the wiring of the GPUs is not known, which meets no requirement on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Node, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.model.gpu.mig import Geometry, Placement
    from kgwe.placement.fleet.taints import Taint
    from kgwe.scaling.launch_memory import Offer

#: What a GPU instance has at least per GPU, where the pool does not say: 4 CPUs and 16 GiB.
_CPU_MILLI: Final = 4_000
_MEMORY_BYTES: Final = 16 << 30
_PODS: Final = 110
POOL_LABEL: Final = "gpu-autoscaler.io/node-pool"
_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_ZONE: Final = "topology.kubernetes.io/zone"
_CAPACITY: Final = ("gpu-autoscaler.io/capacity-type", "karpenter.sh/capacity-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDescription:
    """What a policy says of the nodes of a pool. 0 and empty: it does not say."""

    gpu_type: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    shares: int = 0
    mig_layout: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


def build_template(offer: Offer, pool: PoolDescription, known: Node | None, price_micro: int) -> Node:
    """Return a node of the offer as it will be. `known`: an existing node of the same pool and type.

    Permanent, with what to change, where the pool does not say enough.
    """
    shape = _find_shape(offer, pool, known)
    labels = {
        **(known.labels if known is not None else _describe(shape, pool)),
        **pool.labels,
        POOL_LABEL: offer.pool,
        _INSTANCE_TYPE: offer.instance_type,
        **dict.fromkeys(_CAPACITY, offer.capacity_type),
    }
    labels.pop("kubernetes.io/hostname", None)
    if offer.zone:
        labels[_ZONE] = offer.zone
    else:
        labels.pop(_ZONE, None)
    cut, shares = _find_division(offer, pool, shape, known)
    return Node(
        name=str(offer),
        shape=shape,
        cpu_milli=pool.cpu_milli or (known.cpu_milli if known is not None else _CPU_MILLI * shape.gpu_count),
        memory_bytes=pool.memory_bytes
        or (known.memory_bytes if known is not None else _MEMORY_BYTES * shape.gpu_count),
        pods=known.pods if known is not None else _PODS,
        labels=labels,
        taints=pool.taints,
        cut=cut,
        price_micro_per_hour=price_micro,
        spot=offer.capacity_type == "spot",
        shares_per_gpu=shares,
    )


def _find_shape(offer: Offer, pool: PoolDescription, known: Node | None) -> Shape:
    if known is not None and (not pool.gpus or known.shape.gpu_count == pool.gpus):
        return known.shape
    if not pool.gpus or not pool.gpu_type:
        raise errors.Permanent(
            f"node pool {offer.pool} has no node of type {offer.instance_type} yet: set gpuType and gpusPerNode"
        )
    model = find_gpu(pool.gpu_type)
    return Shape(
        wiring=Wiring(slots=tuple(Slot(bus="") for _ in range(pool.gpus))),
        model=model.label,
        memory_mib=model.memory_mib,
        architecture=model.architecture,
        geometry=model.geometry,
    )


def find_gpu(gpu_type: str) -> catalog.GpuModel:
    """Return the model of a short name such as H100; of several, such as A100, the one with the least memory."""
    models = [each for each in catalog.CATALOGUE.values() if catalog.name_matches(gpu_type, each.name)]
    if not models:
        return catalog.find_model(gpu_type)
    return min(models, key=lambda each: each.memory_mib)


def _describe(shape: Shape, pool: PoolDescription) -> dict[str, str]:
    """Return the labels that GPU feature discovery will write, as far as they are certain."""
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": shape.model,
        "nvidia.com/gpu.count": str(shape.gpu_count),
        "gpu-autoscaler.io/gpu-type": shape.model,
        "kubernetes.io/os": "linux",
    }
    if shape.memory_mib:
        labels["nvidia.com/gpu.memory"] = str(shape.memory_mib)
    if pool.shares:
        labels["nvidia.com/gpu.replicas"] = str(pool.shares)
    return labels


def _find_division(
    offer: Offer, pool: PoolDescription, shape: Shape, known: Node | None
) -> tuple[dict[int, tuple[Placement, ...]], int]:
    """Return the slices of each GPU, and the shares per GPU; the pool's word comes before that of a known node."""
    if pool.mig_layout:
        if shape.geometry is None:
            raise errors.Permanent(f"node pool {offer.pool}: a {shape.model} cannot be cut; remove migLayout")
        layout = place_slices(shape.geometry, pool.mig_layout)
        return dict.fromkeys(range(shape.gpu_count), layout), 0
    if pool.shares:
        return {}, pool.shares
    return (dict(known.cut), known.shares_per_gpu or 0) if known is not None else ({}, 0)


def place_slices(geometry: Geometry, profiles: Sequence[str]) -> tuple[Placement, ...]:
    """Return places for slices in the given order; `3g.40gb@0` names its place. Permanent where they do not fit."""
    placed: list[Placement] = []
    for text in profiles:
        if "@" in text:
            placed.append(mig.parse_placement(geometry, text))
            continue
        profile = geometry.profile(text)
        options = (mig.Placement(profile, start) for start in profile.starts)
        found = next((each for each in options if not mig.find_problems(geometry, (*placed, each))), None)
        if found is None:
            raise errors.Permanent(f"migLayout: {', '.join(profiles)} does not fit on one {geometry.name}")
        placed.append(found)
    if problems := mig.find_problems(geometry, placed):
        raise errors.Permanent(f"migLayout: {problems[0]}")
    return tuple(placed)


def list_promised(node: Node) -> dict[str, int]:
    """Return the devices that the node will offer: resource -> count."""
    found: Counter[str] = Counter()
    for cut in node.cut.values():
        for each in cut:
            found[mig.resource_of(each.profile.name)] += 1
    whole = node.shape.gpu_count - len(node.cut)
    if whole:
        found[amounts.SHARED if node.shares_per_gpu else amounts.GPU] = whole * (node.shares_per_gpu or 1)
    return dict(found)


def make_copy(template: Node, name: str) -> Node:
    """Return a node of the template with a name of its own."""
    return replace(template, name=name)

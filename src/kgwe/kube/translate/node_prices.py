"""The facts about a node that its price depends on, from its labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.costing.prices.book import Capacity, NodeKind
from kgwe.kube.translate.node_builder import is_spot

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSTANCE_TYPES: Final = ("node.kubernetes.io/instance-type", "gpu-autoscaler.io/instance-type")
_REGION: Final = "topology.kubernetes.io/region"
# AWS numbers zones per account in the first label; prices name the second.
_ZONES: Final = ("topology.k8s.aws/zone-id", "topology.kubernetes.io/zone")
_CAPACITIES: Final = (
    "karpenter.sh/capacity-type",
    "node.kubernetes.io/capacity-type",
    "gpu-autoscaler.io/capacity-type",
)


def read_node_kind(labels: Mapping[str, str], gpu_model: str, gpus: int) -> NodeKind:
    """Return what a node is to the price book."""
    return NodeKind(
        instance_type=next((labels[key] for key in _INSTANCE_TYPES if labels.get(key)), ""),
        region=labels.get(_REGION, ""),
        zone=next((labels[key] for key in _ZONES if labels.get(key)), ""),
        capacity=_read_capacity(labels),
        gpu_model=gpu_model,
        gpus=gpus,
    )


def _read_capacity(labels: Mapping[str, str]) -> Capacity:
    stated = {labels.get(key, "").lower() for key in _CAPACITIES}
    if is_spot(labels):
        return Capacity.SPOT
    return Capacity.RESERVED if "reserved" in stated else Capacity.ON_DEMAND

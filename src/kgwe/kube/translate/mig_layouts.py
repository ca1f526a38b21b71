"""Which GPUs KGWE cuts into MIG slices, and what of a GPU is offered until it has its layout.

What has to change is not offered. A GPU that is to be cut is not given to a pod as a whole: the cut would have to wait
until that pod ends. A slice that is to be removed is given to no other pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUDevice, GPUNode, MIGInstance, MIGLayout
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy

#: the layout that NVIDIA's mig-manager gives the node, and how far it has come
CONFIG_LABEL: Final = "nvidia.com/mig.config"
STATE_LABEL: Final = "nvidia.com/mig.config.state"
#: whether the GPU operator runs mig-manager on the node; "false" takes it away and leaves the other labels
DEPLOY_LABEL: Final = "nvidia.com/gpu.deploy.mig-manager"
#: how the device plugin offers slices: single means as plain GPUs, all alike
STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"

#: set by GPU feature discovery
CAPABLE_LABEL: Final = "nvidia.com/mig.capable"
_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"

# After a failed cut, the existing slices are offered until the next attempt.
_NOT_NOW: Final = (Phase.ROLLED_BACK, Phase.FAILED)
_UNCUT: Final = "all-disabled"
_UNDER_WAY: Final = ("", "pending", "rebooting")
# A GPU that is sold with 80 GB has 81,559 MiB or more.
_GB_IN_MIB: Final = 1000


def left_alone(labels: Mapping[str, str]) -> str:
    """Why KGWE does not cut the GPUs of a node; empty: it may."""
    if _has_manager(labels):
        return f"mig-manager cuts it (label {CONFIG_LABEL})"
    if labels.get(STRATEGY_LABEL) == "single":
        return f"its slices are offered as plain GPUs ({STRATEGY_LABEL} is single)"
    return ""


def _has_manager(labels: Mapping[str, str]) -> bool:
    return CONFIG_LABEL in labels and labels.get(DEPLOY_LABEL) != "false"


def selects_gpu(strategy: MIGStrategy, labels: Mapping[str, str], device: GPUDevice) -> bool:
    """Whether the strategy selects this GPU of a node with these labels."""
    wanted = strategy.spec.gpuSelector
    return (
        device.mig.capable
        and all(labels.get(key) == value for key, value in strategy.spec.nodeSelector.items())
        and (not wanted.model or catalog.name_matches(wanted.model, device.model))
        and (not wanted.architecture or wanted.architecture == device.architecture)
        and device.memoryMiB >= (wanted.minMemoryGB or 0) * _GB_IN_MIB
    )


def read_layouts(gpu_node: GPUNode | None) -> dict[str, MIGLayout]:
    """GPU -> its desired layout, where one was decided."""
    return {uuid: card.mig for uuid, card in read_specs(gpu_node).items()}


def read_specs(gpu_node: GPUNode | None) -> dict[str, CardSpec]:
    """GPU -> its desired state."""
    return {card.uuid: card for card in gpu_node.spec.cards} if gpu_node else {}


def find_held_back(
    devices: Iterable[GPUDevice],
    layouts: Mapping[str, MIGLayout],
    labels: Mapping[str, str],
    strategies: Collection[MIGStrategy],
) -> frozenset[int]:
    """Indexes of the GPUs of a node that are held back (`is_held_back`)."""
    return frozenset(
        device.index for device in devices if is_held_back(device, layouts.get(device.uuid), labels, strategies)
    )


def is_held_back(
    device: GPUDevice, layout: MIGLayout | None, labels: Mapping[str, str], strategies: Iterable[MIGStrategy]
) -> bool:
    """Whether a whole GPU is to be cut before a pod gets it, or may be: no layout was decided yet."""
    if device.mig.enabled or not device.mig.capable:
        return False
    if layout is not None:
        return layout.enabled and device.mig.phase not in _NOT_NOW
    if _has_manager(labels):
        return labels[CONFIG_LABEL] != _UNCUT and labels.get(STATE_LABEL, "") in _UNDER_WAY
    # A strategy without a status is one that no controller has seen: there may be none.
    return not left_alone(labels) and any(
        strategy.status.observedGeneration and selects_gpu(strategy, labels, device) for strategy in strategies
    )


def is_unknown(labels: Mapping[str, str], strategies: Iterable[MIGStrategy]) -> bool:
    """Whether a strategy may select GPUs of a node without a GPUNode: its agent starts after its device plugin."""
    if labels.get(CAPABLE_LABEL) != "true" or left_alone(labels):
        return False
    return any(strategy.status.observedGeneration and _may_select(strategy, labels) for strategy in strategies)


def _may_select(strategy: MIGStrategy, labels: Mapping[str, str]) -> bool:
    model, product = strategy.spec.gpuSelector.model, labels.get(_PRODUCT_LABEL)
    return all(labels.get(key) == value for key, value in strategy.spec.nodeSelector.items()) and (
        not model or product is None or catalog.name_matches(model, product)
    )


def is_offered(device: GPUDevice, instance: MIGInstance, layout: MIGLayout | None) -> bool:
    """Whether an existing slice stays, and no pod is to leave it."""
    if layout is None:
        return True
    name = f"{instance.profile}@{instance.start}"
    if device.mig.phase in _NOT_NOW:
        return name not in layout.withheld
    return name in layout.instances and name not in layout.withheld

"""Which cards KGWE cuts, and what of a card may be given out while it is not yet cut as asked.

Nothing that has to change is offered: a card that is to be cut is not given whole (or the first pod of a new node
would take it, and the cut would wait for its end), and a slice that is to go is not given to anybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUDevice, GPUNode, MIGInstance, MIGLayout
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy

#: what NVIDIA's mig-manager is told to make of a node, and how far it is
CONFIG_LABEL: Final = "nvidia.com/mig.config"
STATE_LABEL: Final = "nvidia.com/mig.config.state"
#: whether the GPU operator runs mig-manager on the node; "false" takes it away and leaves the other labels
DEPLOY_LABEL: Final = "nvidia.com/gpu.deploy.mig-manager"
#: how the device plugin offers slices: single means as plain GPUs, all alike
STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"

#: set by GPU feature discovery
CAPABLE_LABEL: Final = "nvidia.com/mig.capable"
_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"

# After a failed cut what is there is given out until the next attempt.
_NOT_NOW: Final = (Phase.ROLLED_BACK, Phase.FAILED)
_UNCUT: Final = "all-disabled"
_UNDER_WAY: Final = ("", "pending", "rebooting")
# As a product of 80 GB is sold: 81,559 MiB and up.
_GB_IN_MIB: Final = 1000


def left_alone(labels: Mapping[str, str]) -> str:
    """Why KGWE does not cut the cards of a node; empty when it may."""
    if _has_manager(labels):
        return f"mig-manager cuts it (label {CONFIG_LABEL})"
    if labels.get(STRATEGY_LABEL) == "single":
        return f"its slices are offered as plain GPUs ({STRATEGY_LABEL} is single)"
    return ""


def _has_manager(labels: Mapping[str, str]) -> bool:
    return CONFIG_LABEL in labels and labels.get(DEPLOY_LABEL) != "false"


def selects_gpu(strategy: MIGStrategy, labels: Mapping[str, str], device: GPUDevice) -> bool:
    """Whether the strategy means this card of a node with these labels."""
    wanted = strategy.spec.gpuSelector
    return (
        device.mig.capable
        and all(labels.get(key) == value for key, value in strategy.spec.nodeSelector.items())
        and (not wanted.model or catalog.name_matches(wanted.model, device.model))
        and (not wanted.architecture or wanted.architecture == device.architecture)
        and device.memoryMiB >= (wanted.minMemoryGB or 0) * _GB_IN_MIB
    )


def read_layouts(gpu_node: GPUNode | None) -> dict[str, MIGLayout]:
    """Card -> what it is to be cut into, for the cards that somebody has decided on."""
    return {uuid: card.mig for uuid, card in read_specs(gpu_node).items()}


def read_specs(gpu_node: GPUNode | None) -> dict[str, CardSpec]:
    """Card -> all that is asked of it."""
    return {card.uuid: card for card in gpu_node.spec.cards} if gpu_node else {}


def is_held_back(
    device: GPUDevice, layout: MIGLayout | None, labels: Mapping[str, str], strategies: Iterable[MIGStrategy]
) -> bool:
    """Whether a card that is whole now is to be cut first, or may be: nobody has decided on it yet."""
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
    """Whether the cards of a node that nobody has described yet may be meant by a strategy: its agent comes later than
    its device plugin."""
    if labels.get(CAPABLE_LABEL) != "true" or left_alone(labels):
        return False
    return any(strategy.status.observedGeneration and _may_select(strategy, labels) for strategy in strategies)


def _may_select(strategy: MIGStrategy, labels: Mapping[str, str]) -> bool:
    model, product = strategy.spec.gpuSelector.model, labels.get(_PRODUCT_LABEL)
    return all(labels.get(key) == value for key, value in strategy.spec.nodeSelector.items()) and (
        not model or product is None or catalog.name_matches(model, product)
    )


def is_offered(device: GPUDevice, instance: MIGInstance, layout: MIGLayout | None) -> bool:
    """Whether a slice that is there stays, and nobody was asked to leave it."""
    if layout is None:
        return True
    name = f"{instance.profile}@{instance.start}"
    if device.mig.phase in _NOT_NOW:
        return name not in layout.withheld
    return name in layout.instances and name not in layout.withheld

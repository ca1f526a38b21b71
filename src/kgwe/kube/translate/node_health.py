"""Faults of nodes and GPUs, as the API shows them. A cordoned node has no fault."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.translate.interruption import find_interruption

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode

UNREACHABLE: Final = "node.kubernetes.io/unreachable"
#: set by an administrator: the machine is off
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"


class NodeFault(enum.Enum):
    """What is wrong with a node."""

    LOST = "lost"
    """The node does not exist, or cannot be reached."""
    NOT_READY = "not ready"
    """Its kubelet is there and says so."""
    INTERRUPTED = "about to be interrupted"
    """Its cloud has announced its end; it still runs."""


def find_fault(node: core.Node | None) -> NodeFault | None:
    """The fault of a node; None: it has none."""
    if node is None or any(taint.key in (UNREACHABLE, OUT_OF_SERVICE) for taint in node.spec.taints):
        return NodeFault.LOST
    ready = next((condition.status for condition in node.status.conditions if condition.type == "Ready"), "")
    if ready == "True":
        announced = find_interruption(node)
        return NodeFault.INTERRUPTED if announced is not None and announced.is_certain else None
    return NodeFault.LOST if ready == "Unknown" else NodeFault.NOT_READY


def sick_cards(gpu_node: GPUNode | None) -> int:
    """Mask of the GPUs that are known to be unhealthy; a GPU of unknown health does not count."""
    if gpu_node is None:
        return 0
    return sum(1 << gpu.index for gpu in gpu_node.status.gpus if gpu.health.state == HealthState.UNHEALTHY)

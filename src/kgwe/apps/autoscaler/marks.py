"""Labels and annotations that the autoscaler writes on nodes. They outlive the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.scaling.templates import POOL_LABEL

if TYPE_CHECKING:
    from kgwe.kube.api import core

__all__ = ["DRAIN", "OWNER_LABEL", "POOL_LABEL", "PROMISED", "READY_AT", "REMOVAL", "REQUEST_LABEL"]

#: The policy that owns a node. Nodes without it, and without an instance of a policy, belong to others and are never
#: changed.
OWNER_LABEL: Final = "kgwe.nvidia.io/autoscaling-policy"
#: The purchase that a node comes from.
REQUEST_LABEL: Final = "kgwe.nvidia.io/launch-request"
#: Devices that the node was bought with: `nvidia.com/gpu=8`, separated by commas.
PROMISED: Final = "kgwe.nvidia.io/promised-devices"
#: When all of its devices were there for the first time.
READY_AT: Final = "kgwe.nvidia.io/gpu-ready-at"
#: Since when the node is drained, and why: `2026-11-15T10:00:00Z Idle`.
DRAIN: Final = "kgwe.nvidia.io/scale-down-drain"
#: Since when the node is being removed.
REMOVAL: Final = "kgwe.nvidia.io/scale-down-removal"

#: On pods: `true` forbids the autoscaler to move them.
DO_NOT_DISRUPT: Final = "kgwe.nvidia.io/do-not-disrupt"
KARPENTER_DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
EVICTION_PRIORITY: Final = "gpu-autoscaler.io/eviction-priority"
CHECKPOINT: Final = "kgwe.nvidia.io/checkpoint"


def write_promised(devices: dict[str, int]) -> str:
    """Return the value of the annotation."""
    return ",".join(f"{name}={count}" for name, count in sorted(devices.items()))


def read_promised(node: core.Node) -> dict[str, int] | None:
    """Return the devices that a node was bought with; None: not written, or not readable."""
    text = node.metadata.annotations.get(PROMISED, "")
    found = {}
    for part in text.split(",") if text else ():
        name, _, count = part.rpartition("=")
        if not name or not count.isdecimal():
            return None
        found[name] = int(count)
    return found or None


def read_time(text: str) -> float | None:
    """Return the time of a mark; None: it is not readable."""
    try:
        return timestamp.epoch_seconds(text) or None
    except (ValueError, OverflowError):
        return None


def split_mark(text: str) -> tuple[str, str]:
    """Return the time and the reason of a drain."""
    since, _, reason = text.partition(" ")
    return since, reason

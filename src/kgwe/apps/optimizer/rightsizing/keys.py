"""The key of a pod in a RightsizingDecision, as the policy in deploy/rightsizing.yaml computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.cluster.workload.effective_request import ORIGINAL_ANNOTATION
from kgwe.cluster.workload.rightsizing import make_key, make_workload_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts

_MILLI: Final = 1000
_MOST_GPUS: Final = 64
_MANAGED_PREFIXES: Final = ("kueue.x-k8s.io/",)
_MANAGED: Final = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.k8s.io/group-name",
    "kgwe.nvidia.io/gang",
)
_DISTRIBUTED: Final = frozenset({"JobSet", "PyTorchJob", "MPIJob", "LeaderWorkerSet", "RayCluster", "RayJob"})


@dataclass(frozen=True, slots=True)
class PodRole:
    """What a pod is to right-sizing."""

    key: str
    gpus: int
    #: it has a smaller request already
    is_smaller: bool


def find_role(facts: PodFacts) -> PodRole | None:
    """Return the key of a pod with whole GPUs, or with less by a decision; None for other pods."""
    shape, original = facts.fingerprint.shape, facts.annotations.get(ORIGINAL_ANNOTATION, "")
    if original:
        # A claim, like every annotation; it concerns the namespace of the pod alone.
        if not (original.isascii() and original.isdecimal() and 0 < int(original[:3]) <= _MOST_GPUS):
            return None
        gpus = int(original[:3])
    elif shape.mig_profile or not shape.milli_gpus or shape.milli_gpus % _MILLI:
        return None
    else:
        gpus = shape.milli_gpus // _MILLI
    if facts.owner_kind == "GPUWorkload":
        key = make_workload_key(facts.owner_name, facts.container.image, gpus)
    else:
        key = make_key(facts.owner_kind, facts.owner_name, facts.container.image, gpus)
    return PodRole(key, gpus, bool(original))


def is_managed(facts: PodFacts) -> bool:
    """Whether another system has charged the pod, or it works together with others."""
    if facts.owner_kind in _DISTRIBUTED:
        return True
    return any(map(_names_manager, (facts.labels, facts.annotations)))


def _names_manager(entries: Mapping[str, str]) -> bool:
    return any(
        (name in _MANAGED and value != "false") or name.startswith(_MANAGED_PREFIXES) for name, value in entries.items()
    )

"""Which GPUSharingPolicy applies to a workload or node, and which part of a GPU a workload gets by it.

A policy never makes a workload wait: it chooses among parts that are free now, and a workload for which there is none
keeps its whole GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: types of workloads that are light unless their labels say otherwise
LIGHT_TYPES: Final = frozenset({"Visualization", "DataPreprocessing", "Inference"})
_SLICES: Final = ("mig", "auto")
_SHARES: Final = ("mps", "timeslicing", "auto")


class Why(StrEnum):
    """Why a workload keeps its whole GPU."""

    EXCLUSIVE = "Exclusive"
    NOT_LIGHT = "NotLight"
    NOT_ONE_GPU = "NotOneGPU"
    OPTED_OUT = "OptedOut"
    PREALLOCATES = "Preallocates"
    NO_PART = "NoFreePart"
    ALREADY_RUNS = "AlreadyRuns"


@dataclass(frozen=True, slots=True)
class Policy:
    """A GPUSharingPolicy, as decisions need it."""

    name: str
    strategy: str
    priority: int = 0
    node_labels: tuple[tuple[str, str], ...] = ()
    namespace_labels: tuple[tuple[str, str], ...] = ()
    pod_labels: tuple[tuple[str, str], ...] = ()
    #: the only profile of slices; empty: any
    profile: str = ""
    #: shares into which nodes divide each GPU
    replicas: int = 4

    def selects(self, namespace: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Whether it is about workloads with these labels in a namespace with those."""
        return _has_labels(namespace, self.namespace_labels) and _has_labels(labels, self.pod_labels)

    def selects_node(self, labels: Mapping[str, str]) -> bool:
        """Whether it divides the GPUs of a node. A policy that names no nodes divides none."""
        return bool(self.node_labels) and _has_labels(labels, self.node_labels)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a GPU that nodes offer: a slice of a profile, or a share."""

    profile: str = ""
    share: float = 0.0
    #: of a GPU, for the order: the smallest first
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision needs to know of a workload."""

    workload_type: str
    is_one_gpu: bool
    #: how it is known to take all memory of its GPU; empty: it does not
    preallocates: str = ""


def sort_policies(policies: Iterable[Policy]) -> list[Policy]:
    """The highest priority first; of two equal ones the name decides."""
    return sorted(policies, key=lambda each: (-each.priority, each.name))


def refuse_workload(policy: Policy, facts: Facts) -> tuple[Why, str] | None:
    """Why the workload keeps its whole GPU, whatever is free; None: it may get a part."""
    if policy.strategy == "exclusive":
        return Why.EXCLUSIVE, "the policy gives whole GPUs only"
    if not facts.is_one_gpu:
        return Why.NOT_ONE_GPU, "only a request for one whole GPU can become smaller"
    if not policy.pod_labels and facts.workload_type not in LIGHT_TYPES:
        return Why.NOT_LIGHT, f"its type is {facts.workload_type}; a podSelector of the policy could select it"
    if facts.preallocates:
        return Why.PREALLOCATES, f"it takes all memory of its GPU: {facts.preallocates}"
    return None


def choose_part(
    policy: Policy, offered: Sequence[Part], is_allowed: Callable[[Part], str], has_room: Callable[[Part], bool]
) -> Part | tuple[Why, str]:
    """The smallest part that the policy and the owner allow and that is free; slices before shares, else why not.

    `is_allowed`: why the workload cannot use a part; empty: it can.
    """
    objection, seen = "", False
    for part in sorted(offered, key=lambda each: (not each.profile, each.size, each.profile)):
        if policy.strategy not in (_SLICES if part.profile else _SHARES):
            continue
        if part.profile and policy.profile not in ("", part.profile):
            continue
        if words := is_allowed(part):
            objection = objection or words
            continue
        seen = True
        if has_room(part):
            return part
    if objection and not seen:
        return Why.OPTED_OUT, objection
    return Why.NO_PART, "no slice or share that it may use is free"


def divide_node(policy: Policy, *, is_mig_capable: bool) -> tuple[str, int]:
    """(method, shares of each GPU) of a node; 0 shares: its GPUs stay whole, or are cut by MIG."""
    if policy.strategy in ("mps", "timeslicing"):
        return policy.strategy, policy.replicas
    if policy.strategy == "auto" and not is_mig_capable:
        return "timeslicing", policy.replicas
    return ("mig", 0) if policy.strategy in _SLICES else ("", 0)


def _has_labels(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> bool:
    return all(labels.get(name) == value for name, value in wanted)

"""What a workload asks for, and what a node offers: the nouns that placement decides over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from kgwe.model.amounts import Amounts
    from kgwe.placement.constraints import Requirement


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod: an empty key with Exists tolerates everything, an empty effect matches all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return not self.key or self.key == taint.key
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What placement knows of a node that does not change as pods come and go. None means unknown."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    gpu_memory_mib: int | None = None
    gpu_model: str | None = None
    architecture: str | None = None
    #: GB/s one GPU has to all others of the node at once; 0 without NVLink, None when not known
    fabric_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Properties a node must have (required) or had better have (preferred)."""

    min_memory_gb: int = 0
    gpu_model: str = ""
    architecture: str = ""
    nvlink: bool = False
    min_bandwidth_gbps: float = 0.0
    prefers_nvlink: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Work looking for a node; `amounts` is what all its pods there need together."""

    owner: str
    resource: str
    count: int
    amounts: Amounts
    strategy: str = "leastLoaded"
    priority: int = 0
    #: creation time as the API writes it: sorts as text
    since: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    #: required node affinity: any of its terms; None when there is none
    affinity: tuple[tuple[Requirement, ...], ...] | None = None
    needs: Needs = Needs()
    #: nodes that refused this work lately
    avoid: frozenset[str] = frozenset()

    def rank(self) -> tuple[int, str, str]:
        """Who goes first: higher priority, then older, then by identity so that the order is total."""
        return (-self.priority, self.since, self.owner)

    def shape(self) -> Hashable:
        """Two asks of one shape fit the same nodes: when one finds no room, neither does the other."""
        return (
            self.resource,
            self.count,
            tuple(sorted(self.amounts.items())),
            tuple(sorted(self.node_selector.items())),
            self.tolerations,
            self.needs,
            self.affinity,
            self.avoid,
        )

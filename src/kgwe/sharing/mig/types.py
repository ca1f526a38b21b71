"""Types of a rebalance: GPUs, requests for slices, pods that may move, and the gate for new cuts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.gpu import mig


@dataclass(frozen=True, slots=True)
class Drain:
    """Slices of a GPU that are destroyed for a waiting request once the asked pods have left.

    Until then the GPU stays as it is, and the slices are withheld from other pods.
    """

    ask: str
    """The waiting request."""
    pods: frozenset[str]
    """Uids of the pods that were asked to leave."""
    places: tuple[mig.Placement, ...]
    is_broken: bool = False
    """It cannot complete: a pod does not leave, or another pod got one of the slices."""


@dataclass(frozen=True, slots=True)
class PartitionedGpu:
    """A GPU as it will be when its desired layout is applied."""

    uuid: str
    node: str
    used: tuple[mig.Placement, ...] = ()
    spare: tuple[mig.Placement, ...] = ()
    is_whole: bool = False
    is_decided: bool = True
    """It has a desired layout."""
    is_open: bool = True
    """It may be changed now."""
    is_taken: bool = False
    """A pod uses the whole GPU."""
    warm: frozenset[mig.Placement] = frozenset()
    """Spare instances that were often in use."""
    drain: Drain | None = None

    @property
    def is_idle(self) -> bool:
        """Whether all asked pods have left."""
        return self.drain is not None and not any(place in self.used for place in self.drain.places)

    @property
    def layout(self) -> tuple[mig.Placement, ...]:
        return tuple(sorted((*self.used, *self.spare), key=lambda place: place.start))


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """The slices that one pod requests; they must be on one node."""

    name: str
    profile: str
    count: int = 1
    nodes: frozenset[str] | None = None
    """Allowed nodes; None: all."""

    def allows_node(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes


@dataclass(frozen=True, slots=True)
class MovablePod:
    """A pod that has slices and consents to be moved."""

    uid: str
    request: SliceRequest
    """What it will request again."""
    slices: tuple[tuple[str, mig.Placement], ...]
    """(UUID of the GPU, placement on it)."""
    is_leaving: bool = False
    """It is leaving already."""


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs of one geometry under one strategy."""

    geometry: mig.Geometry
    distribution: Mapping[str, float]
    gpus: tuple[PartitionedGpu, ...]
    is_dynamic: bool = False
    is_due: bool = False
    """A rebalance is due."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Profile -> weight of recent requests."""
    preferred: tuple[str, ...] = ()
    movable: tuple[MovablePod, ...] = ()
    """Pods that may be asked to move, and those that were."""
    may_drain: bool = True
    """Whether more pods may be asked now."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Which nodes may begin a cut."""

    slots: int
    """How many more nodes."""
    busy: frozenset[str] = frozenset()
    """Nodes that are being cut already."""
    begun: frozenset[str] = frozenset()
    """Nodes admitted now: more of their GPUs may change in the same round."""

    def admits_node(self, node: str) -> bool:
        return node in self.begun or (self.slots > 0 and node not in self.busy)

    def admit(self, node: str) -> Gate:
        if node in self.begun:
            return self
        return replace(self, slots=self.slots - 1, begun=self.begun | {node})

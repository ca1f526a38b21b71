"""Cards, requests for slices, and who may begin with a cut: what `rebalance` decides on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.model import mig


@dataclass(frozen=True, slots=True)
class CutCard:
    """A card as it will be when what was asked of it is done."""

    uuid: str
    node: str
    used: tuple[mig.Placement, ...] = ()
    spare: tuple[mig.Placement, ...] = ()
    is_whole: bool = False
    is_decided: bool = True
    """Somebody has said what it is to be."""
    is_open: bool = True
    """It may be changed now."""
    is_taken: bool = False
    """Somebody has the whole card."""
    warm: frozenset[mig.Placement] = frozenset()
    """Spare ones that were busy for much of the time."""

    @property
    def layout(self) -> tuple[mig.Placement, ...]:
        return tuple(sorted((*self.used, *self.spare), key=lambda place: place.start))


@dataclass(frozen=True, slots=True)
class Ask:
    """The slices of one pod; they have to be on one node."""

    name: str
    profile: str
    count: int = 1
    nodes: frozenset[str] | None = None
    """Where it may go; None: anywhere."""

    def may_go(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes


@dataclass(frozen=True, slots=True)
class Gate:
    """Which nodes may begin a cut."""

    slots: int
    """How many more."""
    busy: frozenset[str] = frozenset()
    """Nodes that are at it already."""
    begun: frozenset[str] = frozenset()
    """Nodes let through now: more of their cards may be changed in the same go."""

    def lets(self, node: str) -> bool:
        return node in self.begun or (self.slots > 0 and node not in self.busy)

    def through(self, node: str) -> Gate:
        if node in self.begun:
            return self
        return replace(self, slots=self.slots - 1, begun=self.begun | {node})

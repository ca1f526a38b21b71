"""Cards, requests for slices, who would make way, and who may begin with a cut: what `rebalance` decides on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.gpu import mig


@dataclass(frozen=True, slots=True)
class Drain:
    """Slices of a card that are to be cut away for somebody who waits, once pods have left that were asked to. Until
    then the card stays as it is; nobody is given one of the slices meanwhile."""

    ask: str
    """Who waits."""
    pods: frozenset[str]
    """Uids of those who were asked."""
    places: tuple[mig.Placement, ...]
    is_broken: bool = False
    """Nothing will come of it: somebody does not go, or somebody else has one of the slices."""


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
    drain: Drain | None = None

    @property
    def is_idle(self) -> bool:
        """Whether everybody has left who was asked to."""
        return self.drain is not None and not any(place in self.used for place in self.drain.places)

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
class Movable:
    """A pod that has slices and consents to be moved."""

    uid: str
    home: Ask
    """What it will ask for."""
    slices: tuple[tuple[str, mig.Placement], ...]
    """(UUID of the card, where on it)."""
    is_leaving: bool = False
    """It is on its way already."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cards of one geometry that one strategy decides on."""

    geometry: mig.Geometry
    distribution: Mapping[str, float]
    cards: tuple[CutCard, ...]
    is_dynamic: bool = False
    is_due: bool = False
    """A rebalance is due."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Profile -> weight of recent requests."""
    preferred: tuple[str, ...] = ()
    movable: tuple[Movable, ...] = ()
    """Who may be asked to make way, and who was."""
    may_drain: bool = True
    """Whether anybody else may be asked now."""


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

"""The plan of a gang: the node and GPUs of every pod, the predicted ring, and the reasons; or what is missing."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import format_count
from kgwe.placement.gang.request import NODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.ring import Ring

_WHOLE: Final = 100


class SizeClass(enum.StrEnum):
    """The size of a gang relative to what the empty leaves of this cluster hold."""

    SINGLE_NODE = "SingleNode"
    SINGLE_DOMAIN = "SingleDomain"
    """Part of one leaf."""
    COMPLETE_DOMAIN = "CompleteDomain"
    """All of the largest leaf."""
    ADJACENT_DOMAINS = "AdjacentDomains"
    """Several leaves of one domain of the next level."""
    MULTIPLE_DOMAINS = "MultipleDomains"
    """Several domains of the next level."""


@dataclass(frozen=True, slots=True)
class DomainWeights:
    """Weights of the parts of a domain's score; their sum is 100."""

    availability: int = 40
    alignment: int = 30
    utilisation: int = 20
    history: int = 10

    def __post_init__(self) -> None:
        parts = (self.availability, self.alignment, self.utilisation, self.history)
        if min(parts) < 0 or sum(parts) != _WHOLE:
            raise ValueError(f"weights of a domain's score must not be negative and must sum to {_WHOLE}: {parts}")


@dataclass(frozen=True, slots=True)
class DomainScore:
    """A domain's score, 0..100, as its weighted parts."""

    availability: float
    """The fraction of the domain's room that the gang needs; more is better. Distributed: less is better."""
    alignment: float
    """Predicted GB/s of the ring / that of the fastest candidate; 0 if unknown."""
    utilisation: float
    """The fraction of its GPUs in use; more is better. Distributed: less is better."""
    history: float
    """How well earlier workloads ended on the domain's nodes; 0 if unknown."""

    @property
    def total(self) -> float:
        return self.availability + self.alignment + self.utilisation + self.history


@dataclass(frozen=True, slots=True)
class Seat:
    """One pod of the gang."""

    rank: int
    role: str
    index: int
    """Its number within the role."""
    node: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The result of the search on one level."""

    level: str
    domains: int
    holding: int
    """Domains that have room for the whole gang."""
    most: int
    """The most pods that any domain has room for, of the role that lacks the most."""
    needed: int

    def describe(self) -> str:
        if self.holding:
            return f"{self.level}: {self.holding} of {self.domains} can hold all pods"
        return f"{self.level}: 0/{self.domains} available, at most {self.most} of {self.needed} pods fit in one"


@dataclass(frozen=True)
class GangPlan:
    """The places of all pods of a gang. `Snapshot.commit_all(plan.grants)` books them."""

    seats: tuple[Seat, ...]
    """By rank."""
    level: str
    """Level of the domain that holds the gang."""
    domain: str
    """Its name; empty if it is unknown."""
    replicas: Mapping[str, int]
    """Role -> pods; an elastic gang may have fewer than it asks for."""
    preferred_met: bool
    """Whether the preferred level is kept; True if none was asked for."""
    ring: Ring
    score: DomainScore
    size_class: SizeClass
    level_reports: tuple[LevelReport, ...]
    """The levels tried, from the lowest up: why no lower level was used."""
    reliability_note: str = ""
    """Unreliable nodes that it avoids or has to use; empty: none."""
    leaves: int = 1
    """Number of leaves that its pods are in."""
    choice_note: str = ""
    """Why this place was chosen and not the default one; empty: it is the default choice."""
    spot_note: str = ""
    """Why it uses spot nodes that its roles avoid; empty: it uses none."""

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(seat.grant for seat in self.seats)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in the order of the first rank on each."""
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    def describe(self) -> str:
        found = describe_place(len(self.seats), len(self.nodes), self.level, self.domain, self.ring.describe())
        remarks = [remark for remark in (self.choice_note, self.spot_note, self.reliability_note) if remark]
        return "\n".join([found, *remarks, *[look.describe() for look in self.level_reports]])


def describe_place(pods: int, nodes: int, level: str, domain: str, ring: str) -> str:
    where = f"{level} {domain}" if domain != level else level
    if level == NODE:
        return f"{format_count(pods, 'pod')} on {where}; ring {ring}"
    return f"{format_count(pods, 'pod')} on {format_count(nodes, 'node')} in {where}; ring {ring}"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What is missing in the domain that comes closest to holding the gang."""

    role: str
    """The role that lacks the most pods."""
    needed: int
    """The least number of its pods that the gang needs."""
    room: int
    """How many of its pods the best domain takes."""
    level: str
    domain: str
    level_reports: tuple[LevelReport, ...]
    most_when_empty: int | None
    """How many of its pods one empty domain would take; None: unknown. Below `needed`, the gang can never start."""
    proven: bool
    """False if each role alone fits, but no way was found to place them together."""

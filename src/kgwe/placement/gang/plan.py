"""A gang that has been placed: who sits where, how fast the ring through them is, and why there."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.ring import Ring

_WHOLE: Final = 100


class SizeClass(enum.StrEnum):
    """How large a gang is for this cluster, from what its leaves really hold when empty."""

    SINGLE_NODE = "SingleNode"
    SINGLE_DOMAIN = "SingleDomain"
    """Part of one leaf."""
    COMPLETE_DOMAIN = "CompleteDomain"
    """All of the largest leaf."""
    ADJACENT_DOMAINS = "AdjacentDomains"
    """Several leaves below one domain of the next level."""
    MULTIPLE_DOMAINS = "MultipleDomains"
    """More than one domain of the next level holds."""


@dataclass(frozen=True, slots=True)
class DomainWeights:
    """What the parts of a domain's score weigh; together 100."""

    availability: int = 40
    alignment: int = 30
    utilisation: int = 20
    history: int = 10

    def __post_init__(self) -> None:
        parts = (self.availability, self.alignment, self.utilisation, self.history)
        if min(parts) < 0 or sum(parts) != _WHOLE:
            raise ValueError(f"weights of a domain's score are not negative and sum to {_WHOLE}: {parts}")


@dataclass(frozen=True, slots=True)
class DomainScore:
    """A domain's score, 0..100, and its parts as they are weighed."""

    availability: float
    """How much of the domain's room the gang needs: tight is good, large holes are kept. Distributed: the reverse."""
    alignment: float
    """Predicted GB/s of the ring over that of the fastest candidate; nothing when not known."""
    utilisation: float
    """How much of its cards is in use already: full is good, empty domains are kept. Distributed: the reverse."""
    history: float
    """How well workloads ended on the domain's nodes before; nothing when not known."""

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
    """What was found on one level."""

    level: str
    domains: int
    holding: int
    """Domains that could take the whole gang."""
    most: int
    """The most pods (of the role that is shortest) that any domain has room for."""
    needed: int

    def describe(self) -> str:
        if self.holding:
            return f"{self.level}: {self.holding}/{self.domains} available"
        return f"{self.level}: 0/{self.domains} available, at most {self.most} of {self.needed} pods fit in one"


@dataclass(frozen=True)
class GangPlan:
    """All of the gang's pods, placed; nothing is booked. `Snapshot.commit_all(plan.grants)` does."""

    seats: tuple[Seat, ...]
    """By rank."""
    level: str
    """Level of the lowest domain that was found to hold the gang."""
    domain: str
    """Its name; empty for one that is not known."""
    replicas: Mapping[str, int]
    """Role -> pods; fewer than asked at most for when the gang is elastic."""
    preferred_met: bool
    """Whether the preferred level holds; True when none was asked for."""
    ring: Ring
    score: DomainScore
    size_class: SizeClass
    level_reports: tuple[LevelReport, ...]
    """Level by level, why it is not a lower one."""
    reliability_note: str = ""
    """Unreliable nodes it was kept off, or has to use all the same."""
    leaves: int = 1
    """Leaves that its pods are in."""
    choice_note: str = ""
    """Why it is not where it would be if no gang followed; empty: it is."""
    spot_note: str = ""
    """Why it is on spot nodes that it avoids; empty: it is not."""

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(seat.grant for seat in self.seats)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in the order the ranks visit them first."""
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    def describe(self) -> str:
        found = describe_place(len(self.seats), len(self.nodes), self.level, self.domain, self.ring.describe())
        remarks = [remark for remark in (self.choice_note, self.spot_note, self.reliability_note) if remark]
        return "\n".join([found, *remarks, *[look.describe() for look in self.level_reports]])


def describe_place(pods: int, nodes: int, level: str, domain: str, ring: str) -> str:
    where = f"{level} {domain}" if domain != level else level
    return f"{counted(pods, 'pod')} on {counted(nodes, 'node')} in {where}; ring {ring}"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What the gang lacks in the domain that comes nearest to holding it."""

    role: str
    """The role that is shortest."""
    needed: int
    """Pods of it that are needed at least."""
    room: int
    """Pods of it that the best domain takes."""
    level: str
    domain: str
    level_reports: tuple[LevelReport, ...]
    most_when_empty: int | None
    """Pods of it that one domain could take if nothing ran there; None: not known. Below `needed`, it never starts."""
    proven: bool
    """False when each role alone would fit and no way was found to place them together."""

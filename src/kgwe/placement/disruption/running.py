"""Work that runs, as the plans that would disturb it see it: what it holds, what it asked for, what stopping it costs.

Stopping work costs three things, each in milli-GPU-seconds (1000: one card for one second), so that they add up:

    lost      what was computed since the state was last saved, and is computed again
    restart   the cards stand still while it starts again
    priority  a step up in priority weighs as much as an hour of lost work on the same cards

Priorities are compared by rank among the priorities in play: whether they are called 1 and 2 or 1,000 and
1,000,000 makes no difference to a plan.

A gang that falls below its least number of members cannot go on: whoever evicts one of those evicts them all, and
pays for them all. An elastic gang, or pods that do not know of each other (`least` 0), can lose some and go on.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.fleet.node import CARD_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.gang.request import GangRequest

#: what a step up in priority weighs: an hour of lost work on the same cards
PRIORITY_STEP_S: Final = 3600

MILLI_S_PER_GPU_HOUR: Final = CARD_MILLI * 3600


class Repair(enum.StrEnum):
    """What is to happen to a workload that loses members to a failure."""

    REPLACE_FAILED = "ReplaceFailed"
    RESTART_GANG = "RestartGang"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Member:
    """One pod. Without a grant it has lost its place and waits for another."""

    name: str
    request: Request
    grant: Grant | None
    failed: bool = False
    """It must leave its place, whatever else is said to have failed."""


@dataclass(frozen=True)
class Running:
    """A workload that holds something."""

    name: str
    members: tuple[Member, ...]
    priority: int = 0
    preemptible: bool = True
    started_at_s: float = 0.0
    saved_at_s: float | None = None
    """When its state was last saved; None: never, all since the start would be lost."""
    restart_s: float = 60.0
    least: int | None = None
    """Members without which the others cannot go on; None: all of them; 0: pods that do not know of each other."""
    budget: str = ""
    """Disruption budget its pods count against; empty: none."""
    gang: GangRequest | None = None
    """What its members were placed by, in the order of ranks; None: they may be anywhere."""
    repair: Repair = Repair.REPLACE_FAILED

    @functools.cached_property
    def held(self) -> tuple[int, ...]:
        """The members that have a place."""
        return tuple(i for i, member in enumerate(self.members) if member.grant is not None)

    @functools.cached_property
    def spare(self) -> int:
        """How many more members it can lose and go on."""
        return 0 if self.least is None else max(0, len(self.held) - self.least)


@dataclass(frozen=True, slots=True)
class Cost:
    """What stopping work costs, in milli-GPU-seconds."""

    lost: int = 0
    restart: int = 0
    priority: int = 0

    @property
    def total(self) -> int:
        return self.lost + self.restart + self.priority

    @property
    def gpu_hours(self) -> float:
        return self.total / MILLI_S_PER_GPU_HOUR

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.lost + other.lost, self.restart + other.restart, self.priority + other.priority)


FREE: Final = Cost()


@dataclass(frozen=True, slots=True)
class Victim:
    """A workload and those of its members that a plan stops."""

    workload: str
    members: tuple[str, ...]
    grants: tuple[Grant, ...]
    cost: Cost
    whole: bool
    """Whether nothing of it is left running."""


def milli_of(grant: Grant, snapshot: Snapshot) -> int:
    """GPU held, in thousandths of a card; slices by their part of the card's compute."""
    held = grant.cards.bit_count() * CARD_MILLI
    if grant.share is not None:
        held += grant.share[1]
    if grant.slices:
        geometry = snapshot.nodes[grant.node].shape.geometry
        compute = geometry.compute if geometry is not None else 1
        held += sum(CARD_MILLI * placed.profile.compute // compute for _, placed in grant.slices)
    return held


def member_cost(workload: Running, member: Member, now_s: float, snapshot: Snapshot, rank: int = 0) -> Cost:
    """What it costs to stop one member; one that holds no GPU counts as a thousandth of a card."""
    if member.grant is None:
        return FREE
    milli = max(1, milli_of(member.grant, snapshot))
    saved = workload.started_at_s if workload.saved_at_s is None else workload.saved_at_s
    return Cost(
        lost=round(milli * max(0.0, now_s - saved)),
        restart=round(milli * workload.restart_s),
        priority=milli * PRIORITY_STEP_S * rank,
    )


def ranks(running: Iterable[Running]) -> Mapping[int, int]:
    """Priority -> its rank among those in play, the lowest 0."""
    return {priority: rank for rank, priority in enumerate(sorted({each.priority for each in running}))}

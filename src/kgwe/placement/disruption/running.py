"""Running workloads as disruption plans see them: what they hold, what they requested, and what stopping them costs.

Stopping a workload costs three things, each in milli-GPU-seconds (1000: one GPU for one second), so that they add up:

    lost      what was computed since the last checkpoint and must be computed again
    restart   the GPUs idle while it starts again
    priority  a step up in priority weighs as much as an hour of lost work on the same GPUs

Priorities are compared by rank among the priorities in play: whether they are called 1 and 2 or 1,000 and 1,000,000
makes no difference to a plan.

A gang below its minimum number of members cannot run: evicting one of those evicts them all, and costs as much. An
elastic gang, or independent pods (`min_members` 0), can lose some and continue.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.fleet.node import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.gang.request import GangRequest

#: what a step up in priority weighs: an hour of lost work on the same GPUs
PRIORITY_STEP_S: Final = 3600

MILLI_S_PER_GPU_HOUR: Final = GPU_MILLI * 3600


class Repair(enum.StrEnum):
    """How a workload that lost members to a failure is repaired."""

    REPLACE_FAILED = "ReplaceFailed"
    RESTART_GANG = "RestartGang"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Member:
    """One pod. Without a grant it lost its place and waits for another."""

    name: str
    request: Request
    grant: Grant | None
    failed: bool = False
    """It must leave its place, whatever else failed."""


@dataclass(frozen=True)
class Running:
    """A running workload."""

    name: str
    members: tuple[Member, ...]
    priority: int = 0
    preemptible: bool = True
    started_at_s: float = 0.0
    saved_at_s: float | None = None
    """Time of its last checkpoint; None: all since the start would be lost."""
    restart_s: float = 60.0
    min_members: int | None = None
    """Fewest members it can run with; None: all of them; 0: independent pods."""
    budget: str = ""
    """Disruption budget its pods count against; empty: none."""
    gang: GangRequest | None = None
    """The request its members were placed by, in rank order; None: no constraints."""
    repair: Repair = Repair.REPLACE_FAILED

    @functools.cached_property
    def placed_members(self) -> tuple[int, ...]:
        """Members that have a place."""
        return tuple(i for i, member in enumerate(self.members) if member.grant is not None)

    @functools.cached_property
    def expendable(self) -> int:
        """How many members it can lose and continue."""
        return 0 if self.min_members is None else max(0, len(self.placed_members) - self.min_members)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of stopping workloads, in milli-GPU-seconds."""

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
    """Whether all of it stops."""


def grant_milli(grant: Grant, snapshot: Snapshot) -> int:
    """Milli-GPUs of a grant; slices count by their part of the GPU's compute."""
    held = grant.gpus.bit_count() * GPU_MILLI
    if grant.share is not None:
        held += grant.share[1]
    if grant.slices:
        geometry = snapshot.nodes[grant.node].shape.geometry
        compute = geometry.compute if geometry is not None else 1
        held += sum(GPU_MILLI * placed.profile.compute // compute for _, placed in grant.slices)
    return held


def member_cost(workload: Running, member: Member, now_s: float, snapshot: Snapshot, rank: int = 0) -> Cost:
    """Cost of stopping one member; one without GPUs counts as one milli-GPU."""
    if member.grant is None:
        return FREE
    milli = max(1, grant_milli(member.grant, snapshot))
    saved = workload.started_at_s if workload.saved_at_s is None else workload.saved_at_s
    return Cost(
        lost=round(milli * max(0.0, now_s - saved)),
        restart=round(milli * workload.restart_s),
        priority=milli * PRIORITY_STEP_S * rank,
    )


def rank_priorities(running: Iterable[Running]) -> Mapping[int, int]:
    """Priority -> its rank among those in play, the lowest 0."""
    return {priority: rank for rank, priority in enumerate(sorted({each.priority for each in running}))}

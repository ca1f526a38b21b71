"""A reservation of nodes for a waiting workload, and the settings of reservations and backfill."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.placement.queue.queue import Level


class BackfillRule(enum.StrEnum):
    """Which workloads may overtake one that does not fit."""

    BLOCK = "block"
    """None."""
    GREEDY = "greedy"
    """All; large gangs starve."""
    HOLD = "hold"
    """Those placed on nodes that are not reserved for it."""
    BACKFILL = "backfill"
    """Those, and on its reserved nodes the ones that do not delay it."""


@dataclass(frozen=True, slots=True)
class ReservationSettings:
    rule: BackfillRule = BackfillRule.BACKFILL
    max_reservations: int = 3
    """Most reservations at a time, for the highest priorities; at most two per priority."""
    depth: int = 256
    """Workloads examined behind reservations in one cycle."""
    refresh_s: float = 30.0
    """How old the forecast of a reservation may be."""
    blind_after_s: float = 600.0
    """A reservation without a known start is made only for a workload that has waited this long, one at a time."""
    blind_s: float = 14400.0
    """It ends when no GPU came free there for this long; its namespace then gets none for as long as it lasted."""
    blind_share: float = 0.5
    """It covers at most this share of the GPUs that the workload could use, or one node."""
    far_s: float = 14400.0
    """A reservation that starts later than this is limited to the same share."""
    short_s: float = 600.0
    """Workloads whose p95 run time is below this may use reserved nodes without a known start."""
    likely_quantile: float = 0.7
    """Nodes are chosen by this quantile of run times, because a single late workload delays the start."""
    max_broken: int = 3
    """Broken promises, of a namespace's last twenty, before it may no longer backfill."""
    memory_s: float = 86400.0
    """Promises are forgotten after this."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that are reserved for one workload."""

    key: str
    rank: Level
    """The workload's queue level; the lowest goes first."""
    nodes: frozenset[str]
    start_s: float | None
    """Earliest start if all workloads in its way end at their median; None: not known."""
    level: str
    domain: str
    namespace: str = ""
    name: str = ""

    def title(self, namespace: str) -> str:
        """The workload it is for, as shown in that namespace. Names of other namespaces are not shown."""
        if self.namespace == namespace:
            return self.name
        return f"a workload of priority {-self.rank[0]} in another namespace"

    def describe(self) -> str:
        """The reservation for people. The start is estimated for all workloads that wait, not here."""
        domain = self.level if self.domain in ("", self.level) else f"{self.level} {self.domain}"
        where = f"{len(self.nodes)} nodes in {domain}" if len(self.nodes) > 1 else ", ".join(self.nodes)
        # The nearest place now need not be the first that becomes free.
        where += " (free soonest)" if self.start_s is not None else ""
        if self.start_s is None:
            return f"Reserved {where} for it; start unknown: workloads there declare no duration."
        return f"Reserved {where} for it."

"""Commitments: reservations, capacity blocks and savings plans. Each is a pool that is paid for, used or not.

A pool covers whole nodes, as far as it has room. What it does not cover is the pool's idle cost, and its owner's.
"""

from __future__ import annotations

import enum
import fnmatch
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.costing import money

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_PERCENT_MILLI: Final = 100_000
#: Names of holders and of nodes that stand for a pool begin with it.
PREFIX: Final = "commitment/"


class CommitmentKind(enum.StrEnum):
    """How a commitment was bought."""

    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"
    SAVINGS_PLAN = "savings-plan"


@dataclass(frozen=True, slots=True)
class Commitment:
    """A pool that is paid for from one time until before another."""

    name: str
    kind: CommitmentKind
    micros_per_hour: int
    """Of the whole pool."""
    start_s: int
    end_s: int
    owner: str = ""
    """The team that bought it."""
    instance_type: str = "*"
    region: str = "*"
    zone: str = "*"
    count: int = 0
    """Nodes of a reservation or capacity block."""
    percent_milli: int = 0
    """Discount of a savings plan on the on-demand price, in thousandths of a percent."""

    def covers(self, at_s: int) -> bool:
        """Whether the pool is paid for at a time."""
        return self.start_s <= at_s < self.end_s

    def matches(self, instance_type: str, region: str, zone: str) -> bool:
        """Whether a node may be covered by the pool. Patterns are those of a shell."""
        pairs = ((instance_type, self.instance_type), (region, self.region), (zone, self.zone))
        return all(fnmatch.fnmatchcase(value, pattern) for value, pattern in pairs)

    def price(self, on_demand: int | None) -> int | None:
        """Return what one covered node takes of the pool; None if it cannot be covered."""
        if self.kind is not CommitmentKind.SAVINGS_PLAN:
            return self.micros_per_hour // self.count if self.count else None
        if on_demand is None:
            return None
        return money.round_fraction(Fraction(on_demand * (_PERCENT_MILLI - self.percent_milli), _PERCENT_MILLI))


class Candidate(NamedTuple):
    """A node that a pool may cover."""

    node: str
    instance_type: str
    region: str
    zone: str
    on_demand: int | None
    """Its price without a commitment; None if it has none."""


class Pools:
    """Which node is covered by which pool. A node keeps its pool until one of both ends."""

    def __init__(self, commitments: Iterable[Commitment] = ()) -> None:
        self._commitments = {each.name: each for each in commitments}
        self._covered: dict[str, tuple[str, int]] = {}
        """Node -> (pool, what the node takes of it)."""

    def __bool__(self) -> bool:
        return bool(self._commitments)

    def find(self, node: str) -> str:
        """Return the pool of a node; empty if it has none."""
        return self._covered.get(node, ("", 0))[0]

    def release(self, node: str) -> str:
        """The node is gone. Return the pool that has its room back."""
        return self._covered.pop(node, ("", 0))[0]

    def assign(self, candidates: Iterable[Candidate], at_s: int) -> Mapping[str, str]:
        """Cover nodes as far as there is room, in the order of their names. Return the nodes whose pool changed."""
        changed: dict[str, str] = {}
        for node, (name, _) in list(self._covered.items()):
            if not self._commitments[name].covers(at_s):
                del self._covered[node]
                changed[node] = ""
        waiting = sorted(each for each in candidates if each.node not in self._covered)
        for each in waiting:
            for commitment in self._commitments.values():
                taken = commitment.price(each.on_demand) if self._may_cover(commitment, each, at_s) else None
                if taken is not None and taken <= self.measure_idle(commitment.name, at_s):
                    self._covered[each.node] = commitment.name, taken
                    changed[each.node] = commitment.name
                    break
        return changed

    def measure_idle(self, name: str, at_s: int) -> int:
        """Return what a pool costs per hour for nothing."""
        commitment = self._commitments[name]
        used = sum(taken for pool, taken in self._covered.values() if pool == name)
        return commitment.micros_per_hour - used if commitment.covers(at_s) else 0

    def list_names(self) -> Iterator[str]:
        """Yield the names of all pools."""
        yield from self._commitments

    @staticmethod
    def _may_cover(commitment: Commitment, node: Candidate, at_s: int) -> bool:
        return commitment.covers(at_s) and commitment.matches(node.instance_type, node.region, node.zone)

"""What admitted workloads are going to cost: money that is spoken for before it is spent.

The cost engine publishes the spend of a period up to a time. From that time on the encumbrances count: what ran since,
what runs, and what was admitted. Nothing counts twice, and when the cost engine is down the last spend stays right.
Costs are in ticks, as in `costing/money.py`: a rate per hour times seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.costing.budgets.periods import Period

# Nothing is planned for longer than this, so that no sum overflows and no search for periods goes on for ever.
MOST_SECONDS: Final = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Encumbrance:
    """What one workload is expected to cost. It lasts until the published spend covers the end of the workload."""

    owner: str
    rate: int
    """Micro-dollars, or micro-GPUs for budgets of GPU-hours, per hour."""
    start_s: int
    duration_s: int
    """How long it is expected to run; the caller chooses the quantile."""
    ended_s: int | None = None
    overrun_s: int = 0
    """How much longer it is expected to run at least, once it has run longer than expected."""
    deadline_s: int | None = None
    """After this time something other than itself stops it."""

    def end_at(self, now_s: int) -> int:
        """Return when it has ended, or is expected to end.

        A workload that has run longer than expected is expected to run as long again, and at least for `overrun_s`.
        """
        if self.ended_s is not None:
            return self.ended_s
        ran_s = max(now_s - self.start_s, 0)
        expected = self.duration_s if ran_s < self.duration_s else ran_s + max(ran_s, self.overrun_s)
        if self.deadline_s is not None:
            expected = min(expected, max(self.deadline_s, ran_s))
        return self.start_s + min(expected, max(MOST_SECONDS, ran_s))

    def cost_in(self, period: Period, since_s: int, now_s: int) -> int:
        """Return its cost in the period after `since_s`, in ticks."""
        return self.rate * period.overlap_s(max(self.start_s, since_s), self.end_at(now_s))


class EncumbranceBook:
    """The encumbrances of one budget. Every change is by owner and idempotent."""

    def __init__(self, known: Iterable[Encumbrance] = ()) -> None:
        self._by_owner = {each.owner: each for each in known}
        # Many workloads are decided at one time, and few of them change the book.
        self._totals: dict[tuple[Period, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def __contains__(self, owner: str) -> bool:
        return owner in self._by_owner

    def add(self, encumbrance: Encumbrance) -> None:
        self._replace(encumbrance.owner, encumbrance)

    def remove(self, owner: str) -> None:
        """Forget a workload that never ran, or whose admission failed."""
        self._replace(owner, None)

    def end(self, owner: str, at_s: int) -> None:
        """Record that a workload has ended. Its cost counts until the published spend covers it."""
        if (known := self._by_owner.get(owner)) is not None and known.ended_s is None:
            self._replace(owner, replace(known, ended_s=max(at_s, known.start_s)))

    def forget_before(self, spend_until_s: int) -> None:
        """Drop the workloads that ended before the published spend was counted."""
        for owner, each in list(self._by_owner.items()):
            if each.ended_s is not None and each.ended_s <= spend_until_s:
                self._replace(owner, None)

    def total_in(self, period: Period, since_s: int, now_s: int) -> int:
        """Return the cost of all encumbrances in a period after `since_s`, in ticks."""
        key = period, since_s, now_s
        if key not in self._totals:
            if any(now != now_s for _, _, now in self._totals):
                self._totals.clear()
            self._totals[key] = sum(each.cost_in(period, since_s, now_s) for each in self._by_owner.values())
        return self._totals[key]

    def _replace(self, owner: str, new: Encumbrance | None) -> None:
        """Replace one encumbrance, and correct the sums that are known."""
        old = self._by_owner.pop(owner, None)
        if new is not None:
            self._by_owner[owner] = new
        for period, since_s, now_s in self._totals:
            for each, sign in ((old, -1), (new, 1)):
                if each is not None:
                    self._totals[period, since_s, now_s] += sign * each.cost_in(period, since_s, now_s)

    def list_running(self) -> list[Encumbrance]:
        return [each for each in self._by_owner.values() if each.ended_s is None]


def to_duration(seconds: float | None, fallback_s: int) -> int:
    """Return a predicted duration as whole seconds; the fallback where it is unknown or not a number."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return min(fallback_s, MOST_SECONDS)
    return min(math.ceil(seconds), MOST_SECONDS)

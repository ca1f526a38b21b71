"""Whether a budget admits a workload, before its money is spent.

    Alert     always admits
    Throttle  above the soft limit: after all other workloads, and only while the expected spend stays within the limit
    Block     refuses when spend, encumbrances and the workload's p90 cost exceed the limit

A workload that runs into later periods must fit into each of them. With several budgets the strictest answer counts.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from kgwe.costing import money
from kgwe.costing.budgets.encumbrances import Encumbrance
from kgwe.costing.budgets.periods import Period, PeriodLength, list_periods

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.costing.budgets.encumbrances import EncumbranceBook

SOFT_LIMIT: Final = Fraction(8, 10)
# Part of each message of a workload that waiting does not help.
TOO_SMALL: Final = "is too small"
_TICKS_PER_MICRO: Final = money.TICKS


class Policy(StrEnum):
    ALERT = "Alert"
    THROTTLE = "Throttle"
    BLOCK = "Block"


class Measure(StrEnum):
    """What the limit counts."""

    DOLLARS = "dollars"
    GPU_HOURS = "GPU-hours"


class Outcome(IntEnum):
    """Answers from mild to strict."""

    ADMITTED = 0
    THROTTLED = 1
    """Admitted after all workloads that are not throttled."""
    WAITS = 2
    """Refused in this period; it may start when money is freed, or in the next period."""
    IMPOSSIBLE = 3
    """Costs more than the whole limit of a period."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit per period. Amounts are in micro-dollars or micro-GPU-hours."""

    name: str
    limit: int
    measure: Measure = Measure.DOLLARS
    length: PeriodLength = PeriodLength.MONTHLY
    zone: dt.tzinfo = dt.UTC
    policy: Policy = Policy.ALERT
    soft: Fraction = SOFT_LIMIT

    @property
    def limit_ticks(self) -> int:
        return self.limit * _TICKS_PER_MICRO


@dataclass(frozen=True, slots=True)
class Spend:
    """What the cost engine has published for the period that contains `until_s`."""

    ticks: int
    until_s: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a workload would cost: its rate, and how long it runs by expectation and at most (p90)."""

    owner: str
    rate: int
    expected_s: int
    longest_s: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of one budget, with the amounts of the period that is tightest."""

    outcome: Outcome
    budget: Budget
    spent: int = 0
    encumbered: int = 0
    cost: int = 0
    retry_at_s: int | None = None

    @property
    def is_admitted(self) -> bool:
        return self.outcome <= Outcome.THROTTLED

    @property
    def left(self) -> int:
        """What is neither spent nor encumbered, in ticks; never negative."""
        return max(self.budget.limit_ticks - self.spent - self.encumbered, 0)

    @property
    def message(self) -> str:
        """The reason in words, for conditions and `kgwe explain`."""
        budget, measure = self.budget, self.budget.measure
        used = f"{format_amount(self.spent, measure)} spent and {format_amount(self.encumbered, measure)} encumbered"
        limit = format_amount(budget.limit_ticks, measure)
        if self.outcome is Outcome.ADMITTED:
            return f"Budget {budget.name} has room: {used} of {limit}."
        if self.outcome is Outcome.THROTTLED:
            return f"Budget {budget.name} is above its soft limit: {used} of {limit}. Other workloads start first."
        costs = f"the workload costs up to {format_amount(self.cost, measure)}"
        if self.outcome is Outcome.IMPOSSIBLE:
            fix = "Ask for fewer or cheaper GPUs or for a shorter run time, or raise the limit."
            return f"Budget {budget.name} {TOO_SMALL}: {costs} in one period; the limit is {limit}. {fix}"
        left = format_amount(self.left, measure)
        return f"Budget {budget.name} has {left} left of {limit} ({used}); {costs}.{self.describe_next()}"

    @property
    def message_without_amounts(self) -> str:
        """The reason in words for tenants that may not know what others spend: only their own cost is an amount."""
        costs = f"the workload costs up to {format_amount(self.cost, self.budget.measure)}"
        if self.outcome is Outcome.IMPOSSIBLE:
            fix = "Ask for fewer or cheaper GPUs or for a shorter run time, or ask an operator to raise the limit."
            return f"Budget {self.budget.name} {TOO_SMALL}: {costs} in one period. {fix}"
        return self.describe_no_room(f"; {costs}")

    def describe_no_room(self, more: str = "") -> str:
        """Return that the budget has no room, without amounts. `more` ends the first sentence."""
        fix = "An operator sees its amounts with `kgwe budget list`, and may raise the limit."
        return f"Budget {self.budget.name} has no room{more}.{self.describe_next()} {fix}"

    def describe_next(self) -> str:
        """Return when the next period begins, as a sentence after others; empty where waiting does not help."""
        at_s = self.retry_at_s
        return "" if at_s is None else f" The next period begins at {_format_time(at_s, self.budget.zone)}."


def decide(
    budget: Budget, spend: Spend, book: EncumbranceBook, demand: Demand, now_s: int, *, start_s: int | None = None
) -> Decision:
    """Return whether the budget admits the workload: now, or, as far as it is known now, at a later start."""
    start_s = now_s if start_s is None else start_s
    if budget.policy is Policy.ALERT:
        return Decision(Outcome.ADMITTED, budget)
    is_strict = budget.policy is Policy.BLOCK
    wanted = Encumbrance(demand.owner, demand.rate, start_s, demand.longest_s if is_strict else demand.expected_s)
    ends_s = wanted.start_s + wanted.duration_s
    found = [
        _decide_period(budget, spend, book, wanted, period, now_s=now_s)
        for period in list_periods(budget.length, budget.zone, start_s, ends_s)
    ]
    return max(found, key=lambda each: (each.outcome, each.spent + each.encumbered + each.cost))


def _decide_period(
    budget: Budget, spend: Spend, book: EncumbranceBook, wanted: Encumbrance, period: Period, *, now_s: int
) -> Decision:
    # Spend of an earlier period says nothing about this one; then everything since its start is encumbered.
    spent = spend.ticks if period.start_s <= spend.until_s < period.end_s else 0
    encumbered = book.total_in(period, spend.until_s, now_s)
    cost = wanted.cost_in(period, wanted.start_s, wanted.start_s)
    used, limit = spent + encumbered + cost, budget.limit_ticks
    if cost > limit:
        # A workload that needs more than all of a period for itself does not fit into a later one either.
        is_whole = cost == wanted.rate * wanted.duration_s or _covers(wanted, period)
        outcome = Outcome.IMPOSSIBLE if is_whole else Outcome.WAITS
    elif used > limit:
        outcome = Outcome.WAITS
    elif budget.policy is Policy.THROTTLE and used > limit * budget.soft:
        outcome = Outcome.THROTTLED
    else:
        outcome = Outcome.ADMITTED
    retry = period.end_s if outcome is Outcome.WAITS else None
    return Decision(outcome, budget, spent, encumbered, cost, retry)


def _covers(wanted: Encumbrance, period: Period) -> bool:
    return wanted.start_s <= period.start_s and wanted.start_s + wanted.duration_s >= period.end_s


def choose_strictest(decisions: Iterable[Decision]) -> Decision | None:
    """Return the answer that counts for a workload under several budgets; None without any."""
    return max(decisions, key=lambda each: (each.outcome, each.retry_at_s or 0), default=None)


def order_by_throttle(owners: Sequence[str], throttled: frozenset[str]) -> list[str]:
    """Return the owners in their order, throttled ones last."""
    return sorted(owners, key=lambda owner: owner in throttled)


def _format_time(at_s: int, zone: dt.tzinfo) -> str:
    return dt.datetime.fromtimestamp(at_s, zone).isoformat(timespec="minutes")


def format_amount(ticks: int, measure: Measure) -> str:
    """Return an amount for people: `$1,234.50` or `12.5 GPU-hours`."""
    micros = money.round_ticks(ticks)
    if measure is Measure.GPU_HOURS:
        return f"{micros / money.MICROS:,.1f} GPU-hours"
    return f"${money.format_dollars(micros)}"

"""What budgets need from the cost ledger: the spend of accounts in a period, in the last hours and on the last days."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kgwe.costing.budgets.admission import Measure
from kgwe.costing.budgets.periods import PeriodLength, find_period
from kgwe.costing.money import DAY_S, HOUR_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.costing.books import Sums
    from kgwe.costing.segments import Account

#: windows of the burn rate
SHORT_S: Final = HOUR_S
LONG_S: Final = 6 * HOUR_S
_PAST_DAYS: Final = 14


class AccountReader(Protocol):
    """Sums of a window by account, as `LedgerReader` gives them."""

    def sum_accounts(self, start_s: int, end_s: int) -> Mapping[Account, Sums]: ...


class Line(NamedTuple):
    """A part of the spend, in ticks."""

    account: Account
    ticks: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one budget has spent, in ticks of its measure."""

    spent: int
    lines: tuple[Line, ...] = ()
    last_hour: int = 0
    last_hours: int = 0
    days: tuple[int, ...] = field(default=())
    """Costs of the last whole days, oldest first."""


class FigureReader:
    """Reads each window once for all budgets. Days that are over are read once, too."""

    def __init__(self, reader: AccountReader, until_s: int, known_days: dict[int, Mapping[Account, Sums]]) -> None:
        self._reader = reader
        self._until_s = until_s
        self._windows: dict[tuple[int, int], Mapping[Account, Sums]] = {}
        self._days = known_days

    def read(self, rule: BudgetRule) -> Figures:
        """Return the figures of a budget."""
        budget, until_s = rule.budget, self._until_s
        period = find_period(budget.length, budget.zone, until_s)
        lines = tuple(
            Line(account, ticks)
            for account, sums in self._sum(period.start_s, until_s).items()
            if rule.scope.matches(account) and (ticks := _measure(sums, budget.measure))
        )
        return Figures(
            sum(line.ticks for line in lines),
            lines,
            self._total(rule, max(until_s - SHORT_S, period.start_s), until_s),
            self._total(rule, max(until_s - LONG_S, period.start_s), until_s),
            tuple(self._list_days(rule)),
        )

    def _total(self, rule: BudgetRule, start_s: int, end_s: int) -> int:
        found = self._sum(start_s, end_s).items()
        return sum(_measure(sums, rule.budget.measure) for account, sums in found if rule.scope.matches(account))

    def _list_days(self, rule: BudgetRule) -> list[int]:
        """Return the days since the first with a cost; days before are not known, which is not zero."""
        last = find_period(PeriodLength.DAILY, dt.UTC, self._until_s).start_s
        found: list[int] = []
        for number in range(_PAST_DAYS, 0, -1):
            start_s = last - number * DAY_S
            if start_s not in self._days:
                self._days[start_s] = self._reader.sum_accounts(start_s, start_s + DAY_S)
            sums = self._days[start_s]
            ticks = sum(_measure(each, rule.budget.measure) for key, each in sums.items() if rule.scope.matches(key))
            if ticks or found:
                found.append(ticks)
        return found

    def _sum(self, start_s: int, end_s: int) -> Mapping[Account, Sums]:
        key = start_s, end_s
        if key not in self._windows:
            self._windows[key] = self._reader.sum_accounts(start_s, end_s) if start_s < end_s else {}
        return self._windows[key]


def _measure(sums: Sums, measure: Measure) -> int:
    return sums.ticks if measure is Measure.DOLLARS else sums.ppm_s

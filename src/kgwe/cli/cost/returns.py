"""Return on investment: the savings that the ledger has recorded, beside what KGWE costs. Nothing is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.costing import money
from kgwe.costing.reports.values import amount
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.savings import load_savings

if TYPE_CHECKING:
    from kgwe.costing.statement import Statement

_MONTH_S: Final = 730 * money.HOUR_S


@dataclass(frozen=True, slots=True)
class Return:
    """Savings and investment of a window, in micro-dollars."""

    savings: int
    methods: tuple[str, ...]
    investment: int
    monthly_investment: int

    @property
    def percent(self) -> float | None:
        """Return the net gain over the investment; None without an investment."""
        return 100 * (self.savings - self.investment) / self.investment if self.investment else None


def load_return(store: str, statement: Statement, monthly: str) -> Return:
    """Return the savings recorded in a window, and its part of the monthly investment."""
    micros = money.parse_dollars(monthly)
    with Ledger.open(store, read_only=True) as ledger:
        found = load_savings(ledger, statement.start_s, statement.end_s)
    seconds = statement.end_s - statement.start_s
    methods = tuple(sorted({each.method for each in found}))
    return Return(sum(each.micros for each in found), methods, micros * seconds // _MONTH_S, micros)


def describe(found: Return) -> dict[str, Any]:
    """Return plain values."""
    return {
        "savings": amount(found.savings),
        "methods": list(found.methods),
        "investment": amount(found.investment),
        "monthlyInvestment": amount(found.monthly_investment),
        "percent": found.percent,
    }


def explain(found: Return) -> str:
    """Return sentences that state all inputs."""
    if not found.methods:
        return "\nROI: no savings are recorded in this time. `kgwe savings --record` records them.\n"
    gain = "" if found.percent is None else f" = {found.percent:.0f} %"
    return (
        f"\nROI: (savings {money.format_dollars(found.savings)} - investment {money.format_dollars(found.investment)})"
        f" / investment{gain}\n"
        f"  savings: {'; '.join(found.methods)}\n"
        f"  investment: {money.format_dollars(found.monthly_investment)} per month of 730 hours (--investment)\n"
    )

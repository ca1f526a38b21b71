"""Return on investment: savings that were stated, verified or recorded, beside what KGWE costs. Nothing is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.optimizer.waste.savings import KIND, Entry
from kgwe.costing import money
from kgwe.costing.reports.values import amount
from kgwe.store.history import HistoryStore
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.savings import load_savings

if TYPE_CHECKING:
    from kgwe.costing.statement import Statement

_MONTH_S: Final = 730 * money.HOUR_S


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the options say. Empty: not stated."""

    investment: str
    savings: str = ""
    savings_from: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Savings of a window in micro-dollars, and where they come from."""

    micros: int
    origin: str


@dataclass(frozen=True, slots=True)
class Return:
    """Savings and investment of a window, in micro-dollars."""

    sources: tuple[Source, ...]
    investment: int
    monthly_investment: int

    @property
    def savings(self) -> int:
        """The sum of all sources."""
        return sum(each.micros for each in self.sources)

    @property
    def percent(self) -> float | None:
        """Return the net gain over the investment; None without savings that are known, or without an investment."""
        known = bool(self.sources) and self.investment > 0
        return 100 * (self.savings - self.investment) / self.investment if known else None


def load_return(store: str, statement: Statement, inputs: Inputs) -> Return:
    """Return the savings that are known of a window, and its part of the monthly investment."""
    monthly = money.parse_dollars(inputs.investment)
    sources = []
    if inputs.savings:
        sources.append(Source(money.parse_dollars(inputs.savings), "as stated (--savings)"))
    if inputs.savings_from:
        sources.append(_load_verified(inputs.savings_from, statement.start_s, statement.end_s))
    with Ledger.open(store, read_only=True) as ledger:
        recorded = load_savings(ledger, statement.start_s, statement.end_s)
    for method in sorted({each.method for each in recorded}):
        micros = sum(each.micros for each in recorded if each.method == method)
        sources.append(Source(micros, f"{method} (cost_savings of the ledger)"))
    seconds = statement.end_s - statement.start_s
    return Return(tuple(sources), monthly * seconds // _MONTH_S, monthly)


def make_return(investment: str, seconds: int, saved: int, origin: str) -> Return:
    """Return the gain of one source of savings over a time."""
    monthly = money.parse_dollars(investment)
    return Return((Source(saved, origin),), monthly * seconds // _MONTH_S, monthly)


def _load_verified(store: str, start_s: int, end_s: int) -> Source:
    """Return what followed recommendations saved within a window, as the optimizer verified it."""
    with HistoryStore.open(store, read_only=True) as history:
        documents = history.list_documents(KIND)
    try:
        entries = [msgspec.convert(each.body, Entry) for each in documents]
    except msgspec.ValidationError as exc:
        raise errors.Permanent(f"--savings-from {store}: a saving is not as this version writes it: {exc}") from exc
    parts = [part for each in entries if (part := clip_saving(each, start_s, end_s)) is not None]
    counted = f"{len(parts)} recommendations that were followed, verified by the optimizer (--savings-from)"
    return Source(sum(parts), counted)


def clip_saving(entry: Entry, start_s: int, end_s: int) -> int | None:
    """Return the part of a verified saving that falls in a window; None if none does. A loss is below 0."""
    if entry.followed_s is None or entry.realized is None:
        return None
    first_s, last_s = entry.followed_s, entry.seen_s if entry.ended_s is None else entry.ended_s
    inside_s = min(last_s, end_s) - max(first_s, start_s)
    if inside_s <= 0:
        return None
    return round(entry.realized * money.MICROS * inside_s / (last_s - first_s))


def describe(found: Return) -> dict[str, Any]:
    """Return plain values."""
    return {
        "savings": amount(found.savings) if found.sources else None,
        "sources": [{"savings": amount(each.micros), "origin": each.origin} for each in found.sources],
        "investment": amount(found.investment),
        "monthlyInvestment": amount(found.monthly_investment),
        "percent": found.percent,
    }


def explain(found: Return) -> str:
    """Return sentences that state all inputs."""
    if not found.sources:
        return (
            "\nROI: unknown, because no savings are known. State those of this time with --savings DOLLARS, or name "
            "the store of the optimizer with --savings-from.\n"
        )
    gain = "" if found.percent is None else f" = {found.percent:.0f} %"
    saved, invested = money.format_dollars(found.savings), money.format_dollars(found.investment)
    lines = [
        f"\nROI: (savings {saved} - investment {invested}) / investment{gain}",
        *(f"  savings {money.format_dollars(each.micros)}: {each.origin}" for each in found.sources),
        f"  investment: {money.format_dollars(found.monthly_investment)} per month of 730 hours (--investment)",
    ]
    return "\n".join(lines) + "\n"

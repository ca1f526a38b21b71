"""Lines of a bill, from rows of a FOCUS file or of an AWS Cost and Usage Report.

The format is known by its columns. A file with a wrong row is refused as a whole, with every problem and its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.costing import dates, money
from kgwe.costing.money import HOUR_S, MICROS
from kgwe.costing.prices.rows import CURRENCIES, collect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.costing.prices.rows import Row

_MAX_CHARS: Final = 60
_MOST: Final = 10**12
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Columns by format: billed and effective cost, period, resource, instance type, currency.
_FOCUS: Final = ("BilledCost", "ChargePeriodStart", "ChargePeriodEnd", "BillingCurrency")
_CUR: Final = ("line_item_unblended_cost", "line_item_usage_start_date", "line_item_usage_end_date")
_CUR_EFFECTIVE: Final = ("savings_plan_savings_plan_effective_cost", "reservation_effective_cost")


@dataclass(frozen=True, slots=True)
class BillLine:
    """An amount for a resource and a time."""

    where: str
    resource: str
    """As the cloud names it: `i-0abc`; empty for amounts of no resource, such as taxes."""
    start_s: int
    end_s: int
    micros: Fraction
    """May be negative: credits and discounts."""
    instance_type: str = ""
    kind: str = ""
    """Usage, Tax, Credit and others, as the bill says."""
    used_s: int | None = None
    """Seconds of use that the amount is for; None if the bill does not say."""


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines of a file in one currency."""

    lines: tuple[BillLine, ...]
    currency: str
    format: str

    @property
    def micros(self) -> Fraction:
        """Return the exact sum."""
        return sum((each.micros for each in self.lines), Fraction())

    @property
    def start_s(self) -> int:
        """The first whole hour."""
        return min(each.start_s for each in self.lines) // HOUR_S * HOUR_S

    @property
    def end_s(self) -> int:
        return -(-max(each.end_s for each in self.lines) // HOUR_S) * HOUR_S


def read_bill(rows: Sequence[Row], *, effective: bool = False) -> Bill:
    """Return the bill of a file; Permanent with its problems. `effective`: amortised amounts instead of billed ones."""
    if not rows:
        raise errors.Permanent("the bill has no rows")
    columns = set(rows[0].cells)
    if {"BilledCost", "ChargePeriodStart"} <= columns:
        name = "FOCUS"
        found = list(collect(rows, lambda row: _read_focus(row, effective=effective)))
    elif set(_CUR[:2]) <= {snake(each) for each in columns}:
        name = "AWS CUR"
        found = list(collect(rows, lambda row: _read_cur(row, effective=effective)))
    else:
        raise errors.Permanent(
            "unknown format: a bill is a FOCUS file (BilledCost, ChargePeriodStart) or an AWS Cost and Usage Report"
            " (lineItem/UnblendedCost, lineItem/UsageStartDate)"
        )
    currencies = {currency for _, currency in found}
    if len(currencies) != 1:
        names = ", ".join(sorted(currencies))
        raise errors.Permanent(f"the bill has several currencies ({names}): split it by currency")
    return Bill(tuple(line for line, _ in found), currencies.pop(), name)


def snake(name: str) -> str:
    """Return the newer name of a column: lineItem/UsageType -> line_item_usage_type."""
    return _WORD.sub("_", name.replace("/", "_")).lower().replace("__", "_")


def _read_focus(row: Row, *, effective: bool) -> Iterator[tuple[BillLine, str]]:
    currency = _read_currency(row.text("BillingCurrency"))
    details = _read_details(row.text("SkuPriceDetails"))
    used = row.text("ConsumedQuantity") if row.text("ConsumedUnit").lower() in {"hours", "hour"} else ""
    yield (
        BillLine(
            row.where,
            name_resource(row.text("ResourceId")),
            *_read_period(row.text("ChargePeriodStart"), row.text("ChargePeriodEnd")),
            parse_amount(row.text("EffectiveCost" if effective else "BilledCost")),
            row.text("x_InstanceType") or details.get("InstanceType", ""),
            row.text("ChargeCategory"),
            _read_hours(used),
        ),
        currency,
    )


def _read_cur(row: Row, *, effective: bool) -> Iterator[tuple[BillLine, str]]:
    cells = {snake(name): value for name, value in row.cells.items() if name}

    def text(name: str) -> str:
        return (cells.get(name) or "").strip()

    amount = text("line_item_unblended_cost")
    if effective:
        amount = next((text(name) for name in _CUR_EFFECTIVE if text(name)), amount)
    usage = text("line_item_usage_type")
    is_hours = text("pricing_unit").lower() in {"hrs", "hours"} or "BoxUsage" in usage
    yield (
        BillLine(
            row.where,
            name_resource(text("line_item_resource_id")),
            *_read_period(text("line_item_usage_start_date"), text("line_item_usage_end_date")),
            parse_amount(amount),
            text("product_instance_type") or usage.partition(":")[2],
            text("line_item_line_item_type"),
            _read_hours(text("line_item_usage_amount")) if is_hours else None,
        ),
        _read_currency(text("line_item_currency_code") or "USD"),
    )


def name_resource(text: str) -> str:
    """Return the last part of a resource's name: `aws:///us-east-1a/i-0abc` and ARNs end in what bills name it by."""
    return text.strip().rpartition("/")[2]


def parse_amount(text: str) -> Fraction:
    """Return micro-dollars of a decimal text, exactly. It may be negative."""
    cleaned, value = text.strip(), money.parse_decimal(text, _MAX_CHARS)
    if value is None:
        raise errors.Permanent(f"{cleaned[:_MAX_CHARS]!r} is not an amount; write it like 2.50")
    if abs(value) > _MOST:
        raise errors.Permanent(f"{cleaned} is more than any line of a bill")
    return value * MICROS


def _read_currency(text: str) -> str:
    if text not in CURRENCIES:
        raise errors.Permanent(f"unknown currency {text!r}; write it like USD or EUR")
    return text


def _read_period(start: str, end: str) -> tuple[int, int]:
    start_s, end_s = dates.parse_time(start), dates.parse_time(end)
    if end_s <= start_s:
        raise errors.Permanent(f"the period ends at {end}, which is not after its start {start}")
    if end_s - start_s > 366 * 24 * HOUR_S:
        raise errors.Permanent(f"the period from {start} to {end} is longer than a year")
    return start_s, end_s


def _read_hours(text: str) -> int | None:
    hours = money.parse_decimal(text, _MAX_CHARS)
    return None if hours is None or not 0 <= hours <= _MOST else round(hours * HOUR_S)


def _read_details(text: str) -> Mapping[str, str]:
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

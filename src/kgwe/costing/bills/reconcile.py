"""Book and bill, node-hour by node-hour: what differs, why, and the restated amount of each node-hour.

The restated amounts are whole micro-dollars and sum to the bill. A node-hour that the bill does not have is restated to
nothing; an amount of the bill that no meter saw keeps a line of its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.money import HOUR_S, TICKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.costing.bills.lines import Bill, BillLine

# Bills round to a second or a minute: less is no difference in time.
_SAME_S: Final = 60
# A year of 200 nodes. More take minutes, in which the engine restates nothing else.
_MOST_HOURS: Final = 2_000_000
_Key = TypeVar("_Key")
_PERMILLE: Final = 1000


class Cause(enum.StrEnum):
    """Why a node-hour differs."""

    EQUAL = "equal"
    RATE = "rate"
    """Billed at another rate than the book's: a discount, or a price that changed."""
    DURATION = "duration"
    """Billed for more or fewer seconds than metered."""
    UNPRICED = "unpriced"
    """Metered, but the book has no price for the type."""
    NOT_BILLED = "not-billed"
    """Metered, and missing in the bill."""
    NOT_METERED = "not-metered"
    """Billed for a known node, and not metered."""
    UNKNOWN_RESOURCE = "unknown-resource"
    """Billed for a resource that was never metered."""
    NO_RESOURCE = "no-resource"
    """An amount without a resource: taxes, fees, credits."""


#: Amounts that belong to no metered node-hour.
BILLED_ONLY: Final = frozenset({Cause.NOT_METERED, Cause.UNKNOWN_RESOURCE, Cause.NO_RESOURCE})


class NodeHour(NamedTuple):
    """What the ledger has of a node in an hour."""

    ticks: int
    seconds: int
    instance_type: str = ""
    is_unpriced: bool = False


class NodeHourKey(NamedTuple):
    node: str
    hour: int
    """Hours since 1970."""


@dataclass(frozen=True, slots=True)
class Restated:
    """One node-hour: what the book said, and what was billed."""

    key: NodeHourKey
    book_ticks: int
    billed_micros: int
    cause: Cause
    instance_type: str = ""

    @property
    def factor(self) -> Fraction | None:
        """Return billed over book; None where the book has nothing."""
        return Fraction(self.billed_micros * TICKS, self.book_ticks) if self.book_ticks else None


@dataclass(frozen=True, slots=True)
class Difference:
    """All node-hours of one cause, type and rate: a line of the variance report."""

    cause: Cause
    instance_type: str
    percent_milli: int | None
    """Billed over book less 100 %, in thousandths of a percent; None without a book price."""
    node_hours: int
    book_micros: int
    billed_micros: int

    @property
    def micros(self) -> int:
        return self.billed_micros - self.book_micros


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result. Restated amounts sum to the bill."""

    start_s: int
    end_s: int
    currency: str
    restated: tuple[Restated, ...]
    differences: tuple[Difference, ...]
    book_micros: int
    billed_micros: int


class _Amount(NamedTuple):
    micros: Fraction
    used_s: int | None
    instance_type: str


def reconcile(
    bill: Bill, metered: Mapping[NodeHourKey, NodeHour], nodes: Mapping[str, str], *, only_known: bool = False
) -> Reconciliation:
    """Compare a bill with the metered node-hours of its period. `nodes`: resource of the cloud -> node.

    `only_known`: lines of resources that were never metered are left out, such as those of other clusters.
    """
    lines = [each for each in bill.lines if not only_known or each.resource in nodes]
    billed = _sum_by_hour(lines, nodes)
    covered = {nodes[each.resource] for each in lines if each.resource in nodes}
    keys = sorted({*billed, *(key for key in metered if key.node in covered)})
    amounts = round_amounts([billed[key].micros if key in billed else Fraction() for key in keys])
    restated = tuple(
        _judge(key, metered.get(key), billed.get(key), micros, set(nodes.values()))
        for key, micros in zip(keys, amounts, strict=True)
    )
    return Reconciliation(
        bill.start_s,
        bill.end_s,
        bill.currency,
        restated,
        tuple(_group(restated)),
        money.round_ticks(sum(each.book_ticks for each in restated)),
        sum(amounts),
    )


def round_amounts(amounts: Sequence[Fraction]) -> list[int]:
    """Return whole micro-dollars that sum to the rounded sum."""
    parts = [each.numerator // each.denominator for each in amounts]
    left = money.round_fraction(sum(amounts, Fraction())) - sum(parts)
    order = sorted(range(len(amounts)), key=lambda number: parts[number] - amounts[number])
    for number in order[:left]:
        parts[number] += 1
    return parts


class _Span(NamedTuple):
    """Lines of one node and time count together: a bill may have very many of them."""

    node: str
    start_s: int
    end_s: int

    @property
    def hours(self) -> range:
        return range(self.start_s // HOUR_S, (self.end_s - 1) // HOUR_S + 1)


def _sum_by_hour(lines: Iterable[BillLine], nodes: Mapping[str, str]) -> dict[NodeHourKey, _Amount]:
    spans: dict[_Span, _Amount] = {}
    for line in lines:
        span = _Span(nodes.get(line.resource, line.resource), line.start_s, line.end_s)
        _add(spans, span, _Amount(line.micros, line.used_s, line.instance_type))
    count = sum(len(span.hours) for span in spans)
    if count > _MOST_HOURS:
        raise errors.Permanent(
            f"the bill has {count:,} hours of lines, more than {_MOST_HOURS:,}: split it by month or by account"
        )
    found: dict[NodeHourKey, _Amount] = {}
    for span, amount in spans.items():
        for hour, share in _list_hours(span):
            seconds = None if amount.used_s is None else round(amount.used_s * share)
            part = _Amount(amount.micros * share, seconds, amount.instance_type)
            _add(found, NodeHourKey(span.node, hour), part)
    return found


def _add(found: dict[_Key, _Amount], key: _Key, more: _Amount) -> None:
    before = found.get(key)
    if before is None:
        found[key] = more
        return
    used_s = before.used_s if more.used_s is None else (before.used_s or 0) + more.used_s
    found[key] = _Amount(before.micros + more.micros, used_s, before.instance_type or more.instance_type)


def _list_hours(span: _Span) -> Iterator[tuple[int, Fraction]]:
    """Yield the hours of a time with their share of it."""
    length = span.end_s - span.start_s
    for hour in span.hours:
        seconds = min(span.end_s, (hour + 1) * HOUR_S) - max(span.start_s, hour * HOUR_S)
        yield hour, Fraction(seconds, length)


def _judge(
    key: NodeHourKey, metered: NodeHour | None, billed: _Amount | None, micros: int, known: set[str]
) -> Restated:
    kind = (metered.instance_type if metered else "") or (billed.instance_type if billed else "")
    if metered is None:
        cause = Cause.NO_RESOURCE
        if key.node:
            cause = Cause.NOT_METERED if key.node in known else Cause.UNKNOWN_RESOURCE
        return Restated(key, 0, micros, cause, kind)
    if billed is None:
        cause = Cause.NOT_BILLED
    elif metered.is_unpriced:
        cause = Cause.UNPRICED
    elif money.round_ticks(metered.ticks) == micros:
        cause = Cause.EQUAL
    elif billed.used_s is not None and abs(billed.used_s - metered.seconds) > _SAME_S:
        cause = Cause.DURATION
    else:
        cause = Cause.RATE
    return Restated(key, metered.ticks, micros, cause, kind)


def _group(restated: Iterable[Restated]) -> Iterator[Difference]:
    """Yield the differences, the largest first. Node-hours of one cause, type and rate (to 0.1 %) are one line."""
    groups: dict[tuple[Cause, str, int | None], list[Restated]] = {}
    for each in restated:
        factor = each.factor if each.cause is Cause.RATE else None
        rate = None if factor is None else money.round_fraction((factor - 1) * _PERMILLE)
        groups.setdefault((each.cause, each.instance_type, rate), []).append(each)
    found = []
    for (cause, kind, _), members in groups.items():
        book = money.round_ticks(sum(each.book_ticks for each in members))
        billed = sum(each.billed_micros for each in members)
        percent = money.round_fraction(Fraction(100_000 * (billed - book), book)) if book else None
        found.append(Difference(cause, kind, percent, len(members), book, billed))
    yield from sorted(found, key=lambda each: (-abs(each.micros), each.cause, each.instance_type))

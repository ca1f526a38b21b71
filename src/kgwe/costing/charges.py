"""Charges: what each pod, or no pod, cost on a node in an hour or a day. Exports and restated reports have them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.bills.reconcile import BILLED_ONLY, Cause, NodeHourKey
from kgwe.costing.books import Books, Dimension, Sums
from kgwe.costing.money import HOUR_S, TICKS
from kgwe.costing.segments import HELD, Account, Bucket, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Filter:
    """Accounts that a report is about; empty texts match all."""

    namespace: str = ""
    team: str = ""

    def matches(self, account: Account) -> bool:
        """Whether an account is wanted."""
        return self.namespace in {"", account.namespace} and self.team in {"", account.team}


@dataclass(frozen=True, slots=True)
class Attribution:
    """A report: the books of the fleet, and the costs of pods by a dimension."""

    books: Books
    lines: dict[str, Sums]
    memo: dict[Bucket, dict[str, Sums]] = field(default_factory=dict)
    """Reserved idle by owner, and quota held by namespace."""


class Place(NamedTuple):
    """What a charge is about."""

    node: str
    part: Part
    model: str
    capacity: str
    instance_type: str


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of one holder, or of no holder, on one kind of piece of a node in one period."""

    start_s: int
    end_s: int
    bucket: Bucket
    place: Place
    account: Account
    workload: str
    pod: str
    price: str
    sums: Sums
    seconds: int = 0
    """Seconds for which it was held, summed over its pieces."""


def attribute_charges(charges: Iterable[Charge], by: Dimension, wanted: Filter = Filter()) -> Attribution:  # noqa: B008 -- frozen
    """Return the books of charges and the costs of pods by a dimension."""
    books, lines, memo = Books(), dict[str, Sums](), dict[Bucket, dict[str, Sums]]()
    for each in charges:
        books.open_line(each.bucket).merge(each.sums)
        add_memo(memo, each.bucket, each.account, each.sums)
        if each.bucket in HELD and wanted.matches(each.account):
            lines.setdefault(name_charge(each, by), Sums()).merge(each.sums)
    return Attribution(books, lines, memo)


def name_charge(charge: Charge, by: Dimension) -> str:
    """Return the name of a charge in a dimension."""
    match by:
        case Dimension.NODE:
            return charge.place.node
        case Dimension.MODEL:
            return charge.place.model
        case Dimension.WORKLOAD:
            return f"{charge.account.namespace}/{charge.workload}"
        case Dimension.POD:
            return f"{charge.account.namespace}/{charge.pod}"
    return str(getattr(charge.account, by.value.replace("-", "_")))


def restate(charges: Iterable[Charge], billed: Iterable[tuple[NodeHourKey, int, Cause]]) -> list[Charge]:
    """Return the charges of hours as billed. Those of a node-hour are scaled so that they sum to the bill.

    Where the book has no price, GPUs bear the bill by their time.
    """
    amounts = {key: (micros, cause) for key, micros, cause in billed}
    by_hour: dict[NodeHourKey, list[Charge]] = {}
    kept: list[Charge] = []
    for each in charges:
        key = NodeHourKey(each.place.node, each.start_s // HOUR_S)
        if key in amounts and each.bucket is not Bucket.QUOTA_HELD:
            by_hour.setdefault(key, []).append(each)
        else:
            kept.append(each)
    for key, (micros, cause) in amounts.items():
        members = by_hour.get(key, [])
        if members and cause not in BILLED_ONLY:
            kept += _scale(members, micros * TICKS)
        elif micros:
            kept += _bill_only(key, micros * TICKS)
            kept += members
    return sorted(kept, key=lambda each: (each.start_s, each.bucket))


def _scale(members: list[Charge], ticks: int) -> Iterator[Charge]:
    """Yield the charges of a node-hour so that the node, and its parts together, cost what was billed."""
    for bucket in (Bucket.FLEET, Bucket.UNALLOCATED):
        parts = [each for each in members if (each.bucket is Bucket.FLEET) == (bucket is Bucket.FLEET)]
        if not parts:
            parts = [replace(members[0], bucket=bucket, account=Account(), workload="", pod="", sums=Sums())]
        weights = [each.sums.ticks for each in parts]
        if not any(weights):
            weights = [each.sums.ppm_s for each in parts]
        if not any(weights):
            weights = [1] * len(parts)
        amounts = divide_signed(ticks, weights)
        yield from (_rescale(each, amount) for each, amount in zip(parts, amounts, strict=True))


def divide_signed(total: int, weights: list[int]) -> list[int]:
    """Divide a whole number that may be negative; the parts sum to it."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    left = total - sum(parts)
    for number in sorted(range(len(weights)), key=lambda each: -(total * weights[each] % whole))[:left]:
        parts[number] += 1
    return parts


def _rescale(charge: Charge, ticks: int) -> Charge:
    before = charge.sums
    if before.ticks:
        measured = before.measured_ticks * ticks // before.ticks
        idle = before.idle_ticks * ticks // before.ticks
    else:
        measured = idle = 0
    return replace(charge, sums=Sums(ticks, idle, measured, before.ppm_s, 0))


def _bill_only(key: NodeHourKey, ticks: int) -> Iterator[Charge]:
    place = Place(key.node, Part.NODE, "", "", "")
    for bucket in (Bucket.FLEET, Bucket.BILLED_ONLY):
        start_s = key.hour * HOUR_S
        yield Charge(start_s, start_s + HOUR_S, bucket, place, Account(), "", "", "billed", Sums(ticks))


def add_memo(memo: dict[Bucket, dict[str, Sums]], bucket: Bucket, account: Account, sums: Sums) -> None:
    """Add to the lines of buckets that belong to an owner or a namespace."""
    if bucket in {Bucket.RESERVED_IDLE, Bucket.QUOTA_HELD}:
        name = account.team if bucket is Bucket.RESERVED_IDLE else account.namespace
        memo.setdefault(bucket, {}).setdefault(name, Sums()).merge(sums)

"""Rows of price files as prices. A file with a wrong row is refused as a whole, with every problem and its line.

Three formats are known by their columns:

prices      instance_type or gpu_model, region, zone, on_demand, spot, reserved, currency, valid_from, valid_until and
            source
catalogue   cloud, instance_type, accelerator, accelerator_count, region, zone, price_usd_h, spot_price_usd_h
history     snapshot_utc, instance_type, region, zone, on_demand_usd_h, spot_usd_h: a row where a price changed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kgwe import errors
from kgwe.costing import dates, money
from kgwe.costing.prices import gcp
from kgwe.costing.prices.book import FOREVER, Capacity, Price
from kgwe.costing.split import HostSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

#: Currencies that ISO 4217 lists and GPU prices are quoted in. Another one is most likely a typing error.
CURRENCIES: Final = frozenset(
    {
        *("AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "HKD", "IDR", "ILS", "INR", "JPY", "KRW"),
        *("MXN", "NOK", "NZD", "PLN", "SAR", "SEK", "SGD", "THB", "TRY", "TWD", "USD", "ZAR"),
    }
)
_MOST_PROBLEMS: Final = 10
T = TypeVar("T")
_CAPACITIES: Final = {
    "on_demand": Capacity.ON_DEMAND,
    "spot": Capacity.SPOT,
    "reserved": Capacity.RESERVED,
}


class Row(NamedTuple):
    """A row and where it is in its file, such as `line 7`."""

    where: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()


@dataclass(frozen=True, slots=True)
class Currencies:
    """The currency of the book, and what one unit of others is worth in it."""

    book: str = "USD"
    exchange: Mapping[str, Fraction] = field(default_factory=dict)

    def convert(self, micros: int, currency: str) -> int:
        """Return an amount in the currency of the book; Permanent if the rate is not known."""
        if not currency or currency == self.book:
            return micros
        if currency not in CURRENCIES:
            raise errors.Permanent(f"unknown currency {currency!r}; write it like USD or EUR")
        if currency not in self.exchange:
            raise errors.Permanent(f"the file has no exchange rate from {currency} to {self.book}")
        return money.round_fraction(micros * self.exchange[currency])


class Found(NamedTuple):
    """A price with the row it came from."""

    where: str
    price: Price


def read_rows(rows: Sequence[Row], currencies: Currencies = Currencies()) -> tuple[Price, ...]:  # noqa: B008 -- frozen
    """Return the prices of a file; Permanent with its problems."""
    if not rows:
        raise errors.Permanent("the price file has no rows")
    columns = set(rows[0].cells)
    if "snapshot_utc" in columns:
        return _read_history(rows)
    if "price_usd_h" in columns:
        return _read_catalogue(rows)
    return _read_prices(rows, currencies)


def read_cpu_nodes(rows: Sequence[Row], currencies: Currencies = Currencies()) -> tuple[HostSample, ...]:  # noqa: B008 -- frozen
    """Return nodes without GPUs, from which the prices of CPUs and memory are estimated."""

    def read(row: Row) -> Iterator[HostSample]:
        rate = _read_amount(row, "on_demand", currencies)
        vcpus, gib = _read_number(row, "vcpus"), _read_number(row, "memory_gib")
        if rate is None:
            raise errors.Permanent("on_demand is missing")
        yield HostSample(row.text("family") or row.where, vcpus, gib, rate)

    return tuple(collect(rows, read))


def _read_prices(rows: Sequence[Row], currencies: Currencies) -> tuple[Price, ...]:
    def read(row: Row) -> Iterator[Found]:
        instance_type, gpu_model = row.text("instance_type"), row.text("gpu_model")
        if bool(instance_type) == bool(gpu_model):
            raise errors.Permanent("name either instance_type, or gpu_model for a price per GPU")
        if row.text("zone") and not row.text("region"):
            raise errors.Permanent("a zone needs its region")
        start_s = dates.parse_time(row.text("valid_from")) if row.text("valid_from") else 0
        end_s = dates.parse_time(row.text("valid_until")) if row.text("valid_until") else FOREVER
        if start_s >= end_s:
            raise errors.Permanent("valid_until is not after valid_from")
        amounts = {name: _read_amount(row, name, currencies) for name in _CAPACITIES}
        if not any(each is not None for each in amounts.values()):
            raise errors.Permanent("on_demand, spot and reserved are all missing")
        for name, rate in amounts.items():
            if rate is not None:
                yield Found(
                    row.where,
                    Price(
                        rate,
                        _CAPACITIES[name],
                        instance_type,
                        gpu_model,
                        row.text("region"),
                        row.text("zone"),
                        start_s,
                        end_s,
                        row.text("source"),
                    ),
                )

    return _check_overlaps(list(collect(rows, read)))


def _read_catalogue(rows: Sequence[Row]) -> tuple[Price, ...]:
    """Read a catalogue of one day. Rows that say the same twice count once; GCP lists GPUs and hosts separately."""

    def read(row: Row) -> Iterator[gcp.CatalogueRow]:
        on_demand = _read_amount(row, "price_usd_h", Currencies())
        spot = _read_amount(row, "spot_price_usd_h", Currencies())
        if not row.text("instance_type") and not row.text("accelerator"):
            raise errors.Permanent("instance_type and accelerator are both missing")
        yield gcp.CatalogueRow(
            row.where,
            row.text("cloud"),
            row.text("instance_type"),
            row.text("accelerator"),
            row.text("accelerator_count"),
            row.text("region"),
            row.text("zone"),
            on_demand,
            spot,
        )

    found: dict[tuple[str, ...], Found] = {}
    problems = []
    for each in gcp.join_hosts(list(collect(rows, read))):
        for capacity, rate in ((Capacity.ON_DEMAND, each.on_demand), (Capacity.SPOT, each.spot)):
            if rate is None:
                continue
            price = Price(
                rate, capacity, each.instance_type, "", each.region, each.zone, source=f"{each.cloud} catalogue"
            )
            known = found.setdefault(price.key, Found(each.where, price))
            if known.price.micros_per_hour != rate:
                problems.append(f"{each.where}: {capacity} price differs from {known.where} ({each.instance_type})")
    if problems:
        raise _refuse(problems)
    return tuple(each.price for each in found.values())


def _read_history(rows: Sequence[Row]) -> tuple[Price, ...]:
    """Read a file of changes: a price is valid until the next row of the same type and zone."""

    def read(row: Row) -> Iterator[tuple[tuple[str, str, str], int, int | None, int | None]]:
        if not row.text("instance_type"):
            raise errors.Permanent("instance_type is missing")
        key = row.text("instance_type"), row.text("region"), row.text("zone")
        at_s = dates.parse_time(row.text("snapshot_utc"))
        on_demand = _read_amount(row, "on_demand_usd_h", Currencies())
        yield key, at_s, on_demand, _read_amount(row, "spot_usd_h", Currencies())

    series: dict[tuple[str, str, str], dict[int, tuple[int | None, int | None]]] = {}
    for key, at_s, on_demand, spot in collect(rows, read):
        moments = series.setdefault(key, {})
        before = moments.get(at_s, (None, None))
        # One snapshot may list a pool twice, once without its spot price.
        moments[at_s] = (
            on_demand if on_demand is not None else before[0],
            spot if spot is not None else before[1],
        )
    return tuple(price for key, moments in series.items() for price in _list_validities(key, moments))


def _list_validities(
    key: tuple[str, str, str], moments: Mapping[int, tuple[int | None, int | None]]
) -> Iterator[Price]:
    ordered = sorted(moments)
    for position, capacity in enumerate((Capacity.ON_DEMAND, Capacity.SPOT)):
        since_s, rate = 0, None
        for at_s in (*ordered, FOREVER):
            new = moments[at_s][position] if at_s != FOREVER else None
            if new == rate and at_s != FOREVER:
                continue
            if rate is not None:
                yield Price(rate, capacity, key[0], "", key[1], key[2], since_s, at_s, "price history")
            since_s, rate = at_s, new


def _check_overlaps(found: Sequence[Found]) -> tuple[Price, ...]:
    problems = []
    by_key: dict[tuple[str, ...], list[Found]] = {}
    for each in found:
        by_key.setdefault(each.price.key, []).append(each)
    for same in by_key.values():
        same.sort(key=lambda each: each.price.valid_from_s)
        longest = same[0]
        for other in same[1:]:
            if other.price.valid_from_s < longest.price.valid_until_s:
                problems.append(_describe_overlap(longest, other))
            if other.price.valid_until_s > longest.price.valid_until_s:
                longest = other
    if problems:
        raise _refuse(problems)
    return tuple(each.price for each in found)


def _describe_overlap(one: Found, other: Found) -> str:
    times = [(each.price.valid_from_s, each.price.valid_until_s) for each in (one, other)]
    name = one.price.instance_type or one.price.gpu_model
    word = "repeats" if times[0] == times[1] else "overlaps in time with"
    return f"{other.where}: the {one.price.capacity} price of {name} {word} {one.where}"


def collect(rows: Iterable[Row], read: Callable[[Row], Iterator[T]]) -> Iterator[T]:
    """Read all rows before the first is used, so that a refusal names all problems."""
    found: list[T] = []
    problems: list[str] = []
    for row in rows:
        try:
            found += read(row)
        except errors.Permanent as exc:
            problems.append(f"{row.where}: {exc}")
    if problems:
        raise _refuse(problems)
    return iter(found)


def _refuse(problems: Sequence[str]) -> errors.Permanent:
    shown = "; ".join(problems[:_MOST_PROBLEMS])
    more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
    return errors.Permanent(f"{shown}{more}")


def _read_amount(row: Row, name: str, currencies: Currencies) -> int | None:
    text = row.text(name)
    if not text:
        return None
    try:
        rate = currencies.convert(money.parse_dollars(text), row.text("currency"))
    except errors.Permanent as exc:
        raise errors.Permanent(f"{name}: {exc}") from exc
    if rate > money.MOST_MICROS_PER_HOUR:
        raise errors.Permanent(f"{name}: {text} per hour is more than any node costs")
    return rate


def _read_number(row: Row, name: str) -> Fraction:
    value = money.parse_decimal(row.text(name))
    if value is None:
        raise errors.Permanent(f"{name}: {row.text(name)!r} is not a number")
    if value < 0:
        raise errors.Permanent(f"{name}: {row.text(name)} is negative")
    return value

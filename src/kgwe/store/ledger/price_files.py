"""Price books from files: the built-in prices, CSV files and YAML files."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import zlib
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from kgwe import errors, text_files, yaml_text
from kgwe.costing import dates, money
from kgwe.costing.prices.book import FOREVER, Capacity, Discount, Price, PriceBook
from kgwe.costing.prices.commitments import Commitment, CommitmentKind
from kgwe.costing.prices.owned import OwnedHardware, price_owned
from kgwe.costing.prices.rows import CURRENCIES, Currencies, Row, read_cpu_nodes, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kgwe.costing.split import HostSample

_MAX_BYTES: Final = 64 << 20
_PACKAGE: Final = "kgwe.costing.prices"
_COLUMNS: Final = (
    "instance_type", "gpu_model", "region", "zone", "on_demand", "spot", "reserved", "currency", "valid_from",
    "valid_until", "source",
)  # fmt: skip


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    pass


class _PriceEntry(_Strict, frozen=True):
    instance_type: str = ""
    gpu_model: str = ""
    region: str = ""
    zone: str = ""
    on_demand: str | float | None = None
    spot: str | float | None = None
    reserved: str | float | None = None
    currency: str = ""
    valid_from: str = ""
    valid_until: str = ""
    source: str = ""


class _OwnedEntry(_Strict, frozen=True):
    gpu_model: str
    purchase: str | float
    years: float
    watts: int = 0
    per_kwh: str | float = msgspec.field(default=0, name="perKWh")
    overhead: float = 1.0


class _DiscountEntry(_Strict, frozen=True):
    percent: float
    instance_type: str = "*"
    region: str = "*"
    capacity: str = ""
    valid_from: str = ""
    valid_until: str = ""


class _CpuNodeEntry(_Strict, frozen=True):
    vcpus: float
    memory_gib: float = msgspec.field(name="memoryGiB")
    on_demand: str | float
    family: str = ""


class _CommitmentEntry(_Strict, frozen=True):
    name: str
    kind: str
    valid_from: str
    valid_until: str
    owner: str = ""
    instance_type: str = "*"
    region: str = "*"
    zone: str = "*"
    count: int = 0
    hourly: str | float | None = None
    """Per node of a reservation, or of a whole savings plan."""
    upfront: str | float | None = None
    """Paid once for all nodes and the whole time, beside `hourly`."""
    discount_percent: float = 0.0


class _Document(_Strict, frozen=True):
    commitments: tuple[_CommitmentEntry, ...] = ()
    prices: tuple[_PriceEntry, ...] = ()
    owned: tuple[_OwnedEntry, ...] = ()
    discounts: tuple[_DiscountEntry, ...] = ()
    cpu_nodes: tuple[_CpuNodeEntry, ...] = ()
    currency: str = "USD"
    exchange: dict[str, str | float] = {}


def load_default_book() -> PriceBook:
    """Return the prices that KGWE ships: common GPU types of AWS, GCP and Azure, and prices per GPU."""
    folder = resources.files(_PACKAGE)
    prices = read_rows(list(read_csv((folder / "default_prices.csv").read_text().splitlines())))
    nodes = read_cpu_nodes(list(read_csv((folder / "default_cpu_nodes.csv").read_text().splitlines())))
    return PriceBook(prices, (), nodes)


def load_book(paths: Iterable[Path], *, with_defaults: bool = True, live: Iterable[Price] = ()) -> PriceBook:
    """Return the book of some files; a later file replaces prices of an earlier one. Permanent names file and line.

    `live`: prices of clouds, which replace built-in ones and are replaced by those of files.
    """
    book = (load_default_book() if with_defaults else PriceBook()).extend(live)
    for path in paths:
        try:
            book = _add_file(book, path)
        except errors.Permanent as exc:
            raise errors.Permanent(f"{path}: {exc}") from exc
    return book


def _add_file(book: PriceBook, path: Path) -> PriceBook:
    text = read_text(path)
    if path.name.removesuffix(".gz").endswith((".yaml", ".yml")):
        return _add_document(book, text)
    return book.extend(read_rows(list(read_csv(text.splitlines()))))


def read_text(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise errors.Permanent(f"larger than {_MAX_BYTES >> 20} MiB")
            return data.decode("utf-8-sig")
        return text_files.read_text(path, _MAX_BYTES).removeprefix("\ufeff")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as exc:
        raise errors.Permanent(f"cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def read_csv(lines: Sequence[str]) -> Iterable[Row]:
    reader = csv.DictReader(lines, strict=True)
    try:
        for cells in reader:
            where = f"line {reader.line_num}"
            if None in cells:
                raise errors.Permanent(f"{where}: more cells than the header has columns")
            yield Row(where, cells)
    except csv.Error as exc:
        raise errors.Permanent(f"line {reader.line_num}: {exc}") from exc


def _add_document(book: PriceBook, text: str) -> PriceBook:
    try:
        document = msgspec.convert(_write_dates(yaml_text.parse_yaml(text)), _Document, str_keys=True)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as exc:  # of dates such as 2026-13-45, and aliases of themselves
        raise errors.Permanent(str(exc).replace("\n", " ")) from exc
    currencies = _read_currencies(document)
    prices: list[Price] = []
    if document.prices:
        prices += read_rows([Row(f"prices[{n}]", _cells(each)) for n, each in enumerate(document.prices)], currencies)
    prices += [_price_owned(f"owned[{n}]", each) for n, each in enumerate(document.owned)]
    discounts = tuple(_read_discount(f"discounts[{n}]", each) for n, each in enumerate(document.discounts))
    nodes = _read_cpu_nodes(document, currencies)
    extended = book.extend(prices, nodes)
    commitments = tuple(
        _read_commitment(f"commitments[{n}]", each, currencies) for n, each in enumerate(document.commitments)
    )
    names = [each.name for each in (*book.commitments, *commitments)]
    if len(set(names)) < len(names):
        raise errors.Permanent(f"commitments: the name {max(names, key=names.count)!r} is repeated")
    return replace(
        extended,
        discounts=(*book.discounts, *discounts),
        currency=document.currency,
        commitments=(*book.commitments, *commitments),
    )


def _write_dates(value: Any) -> Any:
    """YAML reads 2026-01-31 as a date: return it as it was written."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _write_dates(each) for key, each in value.items()}
    return [_write_dates(each) for each in value] if isinstance(value, list) else value


def _read_currencies(document: _Document) -> Currencies:
    for name in (document.currency, *document.exchange):
        if name not in CURRENCIES:
            raise errors.Permanent(f"unknown currency {name!r}; write it like USD or EUR")
    exchange = {name: _read_number(f"exchange: {name}", rate) for name, rate in document.exchange.items()}
    if any(rate <= 0 for rate in exchange.values()):
        raise errors.Permanent("exchange: a rate is above 0")
    return Currencies(document.currency, exchange)


def _cells(entry: _PriceEntry) -> Mapping[str, str]:
    return {name: _text(getattr(entry, name)) for name in _COLUMNS}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _price_owned(where: str, entry: _OwnedEntry) -> Price:
    try:
        hardware = OwnedHardware(
            money.parse_dollars(str(entry.purchase)),
            _read_number("years", entry.years),
            entry.watts,
            money.parse_dollars(str(entry.per_kwh)),
            _read_number("overhead", entry.overhead),
        )
        rate = price_owned(hardware)
    except (errors.Permanent, ValueError) as exc:
        raise errors.Permanent(f"{where}: {exc}") from exc
    if rate > money.MOST_MICROS_PER_HOUR:
        raise errors.Permanent(f"{where}: costs more per hour than any GPU")
    return Price(rate, gpu_model=entry.gpu_model, source="owned hardware")


def _read_number(where: str, value: str | float) -> Fraction:
    found = money.parse_decimal(str(value))
    if found is None:
        raise errors.Permanent(f"{where}: {str(value)[:40]!r} is not a number such as 1.08")
    return found


def _read_discount(where: str, entry: _DiscountEntry) -> Discount:
    percent = money.round_fraction(_read_number(f"{where}: percent", entry.percent) * 1000)
    if not 0 <= percent <= 100_000:  # noqa: PLR2004 -- 100 %
        raise errors.Permanent(f"{where}: percent is from 0 to 100, not {entry.percent:g}")
    if entry.capacity and entry.capacity not in list(Capacity):
        raise errors.Permanent(f"{where}: capacity is one of {', '.join(Capacity)}, not {entry.capacity!r}")
    return Discount(
        percent,
        entry.instance_type,
        entry.region,
        Capacity(entry.capacity) if entry.capacity else None,
        dates.parse_time(entry.valid_from) if entry.valid_from else 0,
        dates.parse_time(entry.valid_until) if entry.valid_until else FOREVER,
    )


def _read_commitment(where: str, entry: _CommitmentEntry, currencies: Currencies) -> Commitment:
    try:
        return _make_commitment(entry, currencies)
    except errors.Permanent as exc:
        raise errors.Permanent(f"{where}: {exc}") from exc


def _make_commitment(entry: _CommitmentEntry, currencies: Currencies) -> Commitment:
    if not entry.name or "/" in entry.name:
        raise errors.Permanent("name is a word without a slash")
    if entry.kind not in list(CommitmentKind):
        raise errors.Permanent(f"kind is one of {', '.join(CommitmentKind)}, not {entry.kind!r}")
    kind = CommitmentKind(entry.kind)
    start_s, end_s = dates.parse_time(entry.valid_from), dates.parse_time(entry.valid_until)
    if end_s <= start_s:
        raise errors.Permanent("validUntil is not after validFrom")
    if entry.hourly is None and entry.upfront is None:
        raise errors.Permanent("hourly and upfront are both missing")
    is_plan = kind is CommitmentKind.SAVINGS_PLAN
    if not is_plan and entry.count < 1:
        raise errors.Permanent("count, the number of nodes, is missing")
    percent = money.round_fraction(_read_number("discountPercent", entry.discount_percent) * 1000)
    if not 0 <= percent < 100_000:  # noqa: PLR2004 -- 100 %
        raise errors.Permanent(f"discountPercent is from 0 to below 100, not {entry.discount_percent:g}")
    hourly = money.parse_dollars(str(entry.hourly or 0)) * (1 if is_plan else entry.count)
    upfront = Fraction(money.parse_dollars(str(entry.upfront or 0)) * money.HOUR_S, end_s - start_s)
    rate = currencies.convert(hourly + money.round_fraction(upfront), "")
    if rate > money.MOST_MICROS_PER_HOUR:
        raise errors.Permanent("costs more per hour than any pool")
    return Commitment(
        entry.name, kind, rate, start_s, end_s, entry.owner, entry.instance_type, entry.region, entry.zone,
        entry.count, percent,
    )  # fmt: skip


def _read_cpu_nodes(document: _Document, currencies: Currencies) -> tuple[HostSample, ...]:
    rows = [
        Row(
            f"cpuNodes[{number}]",
            {
                "family": each.family,
                "vcpus": str(each.vcpus),
                "memory_gib": str(each.memory_gib),
                "on_demand": str(each.on_demand),
            },
        )
        for number, each in enumerate(document.cpu_nodes)
    ]
    return read_cpu_nodes(rows, currencies)

"""The price book: what a node costs per hour at a time. What it does not list is unpriced, never guessed."""

from __future__ import annotations

import enum
import fnmatch
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.costing import money
from kgwe.costing.prices.commitments import Commitment  # noqa: TC001 - a field of a dataclass
from kgwe.costing.split import HostPrice, HostSample, estimate_host_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The end of a validity that is not known to end.
FOREVER: Final = 2**62
_PERCENT_MILLI: Final = 100_000


class Capacity(enum.StrEnum):
    """How a node is paid for."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class Price:
    """A price of one instance type, or of one GPU of a model, for a time."""

    micros_per_hour: int
    capacity: Capacity = Capacity.ON_DEMAND
    instance_type: str = ""
    gpu_model: str = ""
    """A price per GPU, for all nodes with this model, if `instance_type` is empty."""
    region: str = ""
    """Empty: all regions. The same with `zone`."""
    zone: str = ""
    valid_from_s: int = 0
    valid_until_s: int = FOREVER
    source: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What two prices of the same time must not share."""
        return self.instance_type, self.gpu_model, self.region, self.zone, self.capacity

    @property
    def version(self) -> str:
        """The name of this price in reports and in the ledger."""
        place = "/".join(filter(None, (self.region, self.zone)))
        what = self.instance_type or f"GPU {self.gpu_model}"
        return f"{what} {self.capacity}{' ' + place if place else ''} since {self.valid_from_s}"


@dataclass(frozen=True, slots=True)
class Discount:
    """A negotiated discount on the prices that match. Patterns are those of a shell: `p5*`."""

    percent_milli: int
    """Thousandths of a percent: 3000 is 3 %."""
    instance_type: str = "*"
    region: str = "*"
    capacity: Capacity | None = None
    valid_from_s: int = 0
    valid_until_s: int = FOREVER

    def applies(self, node: NodeKind, at_s: int) -> bool:
        """Whether the node gets this discount at a time."""
        return (
            self.valid_from_s <= at_s < self.valid_until_s
            and self.capacity in {None, node.capacity}
            and fnmatch.fnmatchcase(node.instance_type, self.instance_type)
            and fnmatch.fnmatchcase(node.region, self.region)
        )


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The facts about a node that its price depends on."""

    instance_type: str = ""
    region: str = ""
    zone: str = ""
    capacity: Capacity = Capacity.ON_DEMAND
    gpu_model: str = ""
    gpus: int = 0
    commitment: str = ""
    """The pool that covers it."""
    idle_micros: int = -1
    """What its pool costs for nothing, if this stands for the pool itself."""


class Quote(NamedTuple):
    """The rate of a node, until the book has another one."""

    micros_per_hour: int
    version: str
    until_s: int
    commitment: str = ""
    """The pool that pays it; what no pod holds is reserved idle."""
    owner: str = ""


class Unpriced(NamedTuple):
    """Why a node has no rate, until the book may have one."""

    reason: str
    until_s: int


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices, discounts and the market prices of CPUs and memory. Prices must not overlap (see `rows.py`)."""

    prices: tuple[Price, ...] = ()
    discounts: tuple[Discount, ...] = ()
    host_samples: tuple[HostSample, ...] = ()
    currency: str = "USD"
    commitments: tuple[Commitment, ...] = ()
    _by_name: dict[tuple[str, Capacity], list[Price]] = field(init=False, repr=False, compare=False)
    _host: HostPrice | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[tuple[str, Capacity], list[Price]] = {}
        for price in self.prices:
            found.setdefault((price.instance_type or f"GPU {price.gpu_model}", price.capacity), []).append(price)
        object.__setattr__(self, "_by_name", found)
        object.__setattr__(self, "_host", estimate_host_price(self.host_samples, source="CPU-only nodes of the book"))

    def host_price(self) -> HostPrice | None:
        """Return the market prices of CPUs and memory; None if the book lists no nodes without GPUs."""
        return self._host

    def quote(self, node: NodeKind, at_s: int) -> Quote | Unpriced:
        """Return the rate of a node at a time: by zone, by region, then for all regions; by type, then per GPU."""
        until_s = FOREVER
        pool = self.find_commitment(node.commitment)
        if pool is not None:
            if pool.covers(at_s):
                return self._quote_pool(pool, node, at_s)
            until_s = pool.start_s if at_s < pool.start_s else FOREVER
            if node.idle_micros >= 0:
                return Quote(0, pool.name, until_s, pool.name, pool.owner)
        for name, count in ((node.instance_type, 1), (f"GPU {node.gpu_model}", node.gpus)):
            if not name or not count:
                continue
            listed = self._by_name.get((name, node.capacity), ())
            found, changes_s = _choose(listed, node, at_s)
            until_s = min(until_s, changes_s)
            if found is not None:
                return self._discount(found, count, node, at_s, until_s)
        return Unpriced(_explain(node), until_s)

    def find_commitment(self, name: str) -> Commitment | None:
        """Return a commitment by its name."""
        return next((each for each in self.commitments if each.name == name), None) if name else None

    def _quote_pool(self, pool: Commitment, node: NodeKind, at_s: int) -> Quote | Unpriced:
        if node.idle_micros >= 0:
            return Quote(node.idle_micros, f"{pool.kind} {pool.name} unused", pool.end_s, pool.name, pool.owner)
        usual = self.quote(replace(node, commitment=""), at_s)
        rate = pool.price(usual.micros_per_hour if isinstance(usual, Quote) else None)
        until_s = min(pool.end_s, usual.until_s)
        if rate is None:
            return usual._replace(until_s=until_s)
        return Quote(rate, f"{pool.kind} {pool.name}", until_s, pool.name, pool.owner)

    def extend(self, prices: Iterable[Price], host_samples: Iterable[HostSample] = ()) -> PriceBook:
        """Return the book with more prices. A new price replaces one with the same key and an overlapping validity."""
        fresh = tuple(prices)
        by_key: dict[tuple[str, ...], list[Price]] = {}
        for price in fresh:
            by_key.setdefault(price.key, []).append(price)
        kept = [price for price in self.prices if not any(overlap(price, other) for other in by_key.get(price.key, ()))]
        return replace(self, prices=(*kept, *fresh), host_samples=(*self.host_samples, *host_samples))

    def _discount(self, price: Price, count: int, node: NodeKind, at_s: int, until_s: int) -> Quote:
        rate = price.micros_per_hour * count
        version = price.version
        for discount in self.discounts:
            for edge in (discount.valid_from_s, discount.valid_until_s):
                until_s = min(until_s, edge) if edge > at_s else until_s
        applied = [each for each in self.discounts if each.applies(node, at_s)]
        if applied:
            best = max(applied, key=lambda each: each.percent_milli)
            rate = money.round_fraction(Fraction(rate * (_PERCENT_MILLI - best.percent_milli), _PERCENT_MILLI))
            version += f" less {best.percent_milli / 1000:g} %"
        return Quote(rate, version, until_s)


def overlap(one: Price, other: Price) -> bool:
    """Whether two prices claim the same time for the same thing."""
    return one.key == other.key and one.valid_from_s < other.valid_until_s and other.valid_from_s < one.valid_until_s


def _choose(listed: Sequence[Price], node: NodeKind, at_s: int) -> tuple[Price | None, int]:
    """Return the most specific price of a time, and when the choice may change."""
    until_s = FOREVER
    best: Price | None = None
    for price in listed:
        if price.region not in {"", node.region} or price.zone not in {"", node.zone}:
            continue
        for edge in (price.valid_from_s, price.valid_until_s):
            if at_s < edge < until_s:
                until_s = edge
        is_valid = price.valid_from_s <= at_s < price.valid_until_s
        if is_valid and (best is None or _specificity(price) > _specificity(best)):
            best = price
    return best, until_s


def _specificity(price: Price) -> tuple[bool, bool, int]:
    return bool(price.zone), bool(price.region), price.valid_from_s


def _explain(node: NodeKind) -> str:
    place = "/".join(filter(None, (node.region, node.zone))) or "any region"
    what = node.instance_type or "a node without an instance type"
    gpu = f", and none per GPU for {node.gpu_model}" if node.gpu_model else ""
    return f"no {node.capacity} price for {what} in {place}{gpu}"

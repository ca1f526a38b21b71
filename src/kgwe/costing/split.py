"""How the price of a node is split between its GPUs, CPUs and memory. Every report names the method.

gpu-only   GPUs bear the whole price.
market     CPUs and memory cost what CPU-only nodes of the region charge for them, and GPUs bear the rest.
fixed      95 % GPUs, 3 % CPUs, 2 % memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe import errors
from kgwe.costing import money

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB: Final = 2**30
_FIXED: Final = (95, 3, 2)
# Where the price of CPUs and memory exceeds that of the node, such as on old spot nodes, GPUs keep this part.
_LEAST_GPU_PERCENT: Final = 5
_FINE: Final = 10**9


class SplitMethod(enum.StrEnum):
    """The name of a method."""

    GPU_ONLY = "gpu-only"
    MARKET = "market"
    FIXED = "fixed"


def parse_method(text: str) -> SplitMethod:
    """Return the method of a name; raise Permanent with the known ones."""
    try:
        return SplitMethod(text)
    except ValueError:
        raise errors.Permanent(f"unknown split method {text!r}; it is one of {', '.join(SplitMethod)}") from None


class Rates(NamedTuple):
    """The parts of a node's rate in micro-dollars per hour. They sum to the rate of the node."""

    gpu: int
    cpu: int
    memory: int

    @property
    def total(self) -> int:
        return self.gpu + self.cpu + self.memory


@dataclass(frozen=True, slots=True)
class HostPrice:
    """What CPU-only nodes charge, in micro-dollars per hour. Fractions, because one vCPU is cheap."""

    per_vcpu: Fraction
    per_gib: Fraction
    region: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class HostShape:
    """CPUs and memory of a node."""

    cpu_milli: int
    memory_bytes: int


class HostSample(NamedTuple):
    """The price of a node, or of a node's host part, without GPUs. Samples of a family count as one."""

    family: str
    vcpus: Fraction
    gib: Fraction
    micros_per_hour: int


def split_rate(method: SplitMethod, rate: int, shape: HostShape, host: HostPrice | None) -> Rates:
    """Split the rate of a node. `market` without a host price leaves everything to the GPUs."""
    if method is SplitMethod.GPU_ONLY or (method is SplitMethod.MARKET and host is None):
        return Rates(rate, 0, 0)
    if method is SplitMethod.FIXED:
        return Rates(*money.divide(rate, _FIXED))
    assert host is not None  # noqa: S101 -- for the type checker: the case without a price is above
    return _split_by_market(rate, shape, host)


def _split_by_market(rate: int, shape: HostShape, host: HostPrice) -> Rates:
    cpu = money.round_fraction(host.per_vcpu * Fraction(shape.cpu_milli, 1000))
    memory = money.round_fraction(host.per_gib * Fraction(shape.memory_bytes, GIB))
    most = rate - rate * _LEAST_GPU_PERCENT // 100
    if cpu + memory > most:
        cpu, memory = money.divide(most, (cpu, memory))
    return Rates(rate - cpu - memory, cpu, memory)


def estimate_host_price(samples: Sequence[HostSample], region: str = "", source: str = "") -> HostPrice | None:
    """Return the prices of a vCPU and of a GiB that fit the samples best; None without usable samples.

    Least squares of the relative errors. Every family weighs the same, whatever its number of samples. A price that
    would be negative is zero.
    """
    usable = [each for each in samples if each.micros_per_hour > 0 and (each.vcpus > 0 or each.gib > 0)]
    if not usable:
        return None
    sizes: dict[str, int] = {}
    for each in usable:
        sizes[each.family] = sizes.get(each.family, 0) + 1
    # Whole numbers of a billionth: sums of fractions with thousands of denominators would be slow.
    rows = [
        (
            money.round_fraction(each.vcpus * _FINE / each.micros_per_hour),
            money.round_fraction(each.gib * _FINE / each.micros_per_hour),
            _FINE // sizes[each.family],
        )
        for each in usable
    ]
    return _solve(rows, region, source)


def _solve(rows: Sequence[tuple[int, int, int]], region: str, source: str) -> HostPrice:
    """Solve the normal equations of two unknowns that are not negative."""
    cc, mm = sum(w * c * c for c, _, w in rows), sum(w * m * m for _, m, w in rows)
    cm = sum(w * c * m for c, m, w in rows)
    c1, m1 = sum(w * c for c, _, w in rows) * _FINE, sum(w * m for _, m, w in rows) * _FINE
    determinant = cc * mm - cm * cm
    cpu, memory = c1 * mm - m1 * cm, m1 * cc - c1 * cm
    if determinant > 0 and cpu >= 0 and memory >= 0:
        return HostPrice(_shorten(Fraction(cpu, determinant)), _shorten(Fraction(memory, determinant)), region, source)
    if not cc or (determinant > 0 and cpu < 0):
        return HostPrice(Fraction(), _shorten(Fraction(m1, mm)), region, source)
    return HostPrice(_shorten(Fraction(c1, cc)), Fraction(), region, source)


def _shorten(value: Fraction) -> Fraction:
    """A thousandth of a micro-dollar is precise enough, and keeps fractions short."""
    return Fraction(money.round_fraction(value * 1000), 1000)

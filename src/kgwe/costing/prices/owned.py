"""The price of owned hardware per GPU-hour: what it was bought for, spread over its life, and its power."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kgwe import errors
from kgwe.costing import money

_HOURS_PER_YEAR: Final = 8766
_WATTS: Final = 1000


@dataclass(frozen=True, slots=True)
class OwnedHardware:
    """A GPU that was bought, with its part of the server, network and building."""

    purchase_micros: int
    """Purchase price per GPU."""
    years: Fraction
    """Years over which it is written off."""
    watts: int = 0
    """Mean power per GPU, with its part of the server."""
    micros_per_kwh: int = 0
    overhead: Fraction = Fraction(1)
    """Power usage effectiveness of the building: 1.4 is 40 % for cooling."""


def price_owned(hardware: OwnedHardware) -> int:
    """Return micro-dollars per GPU-hour."""
    if hardware.years <= 0:
        raise errors.Permanent("owned hardware is written off over more than 0 years")
    if hardware.overhead < 1:
        raise errors.Permanent("a building uses at least the power of its servers: the overhead is 1 or more")
    capital = Fraction(hardware.purchase_micros) / (hardware.years * _HOURS_PER_YEAR)
    power = Fraction(hardware.watts * hardware.micros_per_kwh, _WATTS) * hardware.overhead
    return money.round_fraction(capital + power)

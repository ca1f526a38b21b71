"""What a pod would cost per hour on a node, before it is metered: for predictions and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.money import MICROS
from kgwe.costing.segments import PPM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.costing.split import Rates
    from kgwe.model.gpu.mig import Geometry, Profile


class HourlyRate(NamedTuple):
    """What something costs per hour."""

    micros: int = 0
    """Micro-dollars."""
    gpu_micros: int = 0
    """Millionths of a GPU."""
    is_priced: bool = True

    def plus(self, other: HourlyRate) -> HourlyRate:
        """Return the sum."""
        return HourlyRate(
            self.micros + other.micros, self.gpu_micros + other.gpu_micros, self.is_priced and other.is_priced
        )


@dataclass(frozen=True, slots=True)
class PricedNode:
    """A node's price by parts, and what pods can hold of it."""

    rates: Rates | None
    """None: the node has no price."""
    gpus: int
    cpu_milli: int
    memory_bytes: int

    def price(self, gpu_ppm: int, cpu_milli: int, memory_bytes: int) -> HourlyRate:
        """Return the rate of a pod that holds so much of it, rounded up."""
        if self.rates is None:
            return HourlyRate(0, gpu_ppm, is_priced=False)
        parts = (
            _divide_up(self.rates.gpu * gpu_ppm, self.gpus * PPM),
            _divide_up(self.rates.cpu * cpu_milli, self.cpu_milli),
            _divide_up(self.rates.memory * memory_bytes, self.memory_bytes),
        )
        return HourlyRate(sum(parts), gpu_ppm)


def weigh_profiles(geometry: Geometry, profiles: Iterable[Profile]) -> int:
    """Return the part of a GPU that slices pay for, in millionths: the mean of compute and memory slices."""
    weight = sum(each.compute * geometry.units + each.units * geometry.compute for each in profiles)
    return min(MICROS * weight // (2 * geometry.compute * geometry.units), MICROS)


def _divide_up(amount: int, by: int) -> int:
    return -(-amount // by) if by > 0 else 0

"""Rates of counters that only grow, until they wrap around or restart.

A counter that is smaller than before has wrapped or was reset (the driver was reloaded, or the GPU was reset). It
wrapped if the hardware could have made the step over the top in the time. Otherwise the amount counted before the reset
is unknown, and so is the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

#: Where byte counters wrap: 32 bits of bytes or of KiB, 64 bits of bytes or of KiB.
_TOPS: Final = (1 << 32, 1 << 42, 1 << 64, 1 << 74)

# Line rates are nominal, and two clocks never agree.
_SLACK: Final = 1.25


@dataclass(frozen=True, slots=True)
class Count:
    value: int
    at_s: float


def compute_rate(before: Count, now: Count, most_per_s: float | None = None) -> float | None:
    """Per second between two counts; None: not known. `most_per_s`: what the hardware can do at most."""
    passed_s = now.at_s - before.at_s
    if passed_s <= 0:
        return None
    step = now.value - before.value
    if step < 0:
        most = (most_per_s or 0.0) * passed_s * _SLACK
        step = min((top + step for top in _TOPS if top > before.value and top + step <= most), default=-1)
    return step / passed_s if step >= 0 else None


Key = TypeVar("Key", bound="Hashable")


class Rates(Generic[Key]):
    """The last counts, and the rates since them."""

    def __init__(self) -> None:
        self._last: dict[Key, Count] = {}

    def update(self, counts: Mapping[Key, int], at_s: float, most_per_s: Mapping[Key, float]) -> dict[Key, float]:
        """Rates of the keys for which one is known. A key that is left out is forgotten."""
        now = {key: Count(value, at_s) for key, value in counts.items()}
        found: dict[Key, float] = {}
        for key, count in now.items():
            if (before := self._last.get(key)) is not None:
                known = compute_rate(before, count, most_per_s.get(key))
                if known is not None:
                    found[key] = known
        self._last = now
        return found

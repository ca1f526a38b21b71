"""How long spot capacity stays available or away, by the age of the present run.

A run is a time in which capacity was available without a break, or away without a break. The rate at which runs end is
estimated per age from hours observed: a Kaplan-Meier curve in pieces. Long runs last longer than young ones, so the age
matters. What lies back counts less. Other pools stand in where little was observed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ages in hours at which the rate may change.
AGES_H: Final = (0.25, 1.0, 4.0)
PIECES: Final = len(AGES_H) + 1


@dataclass(frozen=True, slots=True)
class RunRates:
    """Ends of runs per hour, by age."""

    available: tuple[float, ...]
    away: tuple[float, ...]

    def estimate_survival(self, age_h: float, ahead_h: float) -> float:
        """Return the probability that capacity available since `age_h` hours stays for `ahead_h` more."""
        expected, begin = 0.0, age_h
        for edge, rate in zip((*AGES_H, float("inf")), self.available, strict=True):
            end = min(edge, age_h + ahead_h)
            if end > begin:
                expected += rate * (end - begin)
                begin = end
        return exp(-expected)


#: Mean of six public AWS pools (V100 and K80, 2022 and 2023); other pools than those in reported results.
TYPICAL: Final = RunRates(available=(1.69, 0.89, 0.285, 0.1), away=(2.24, 1.21, 0.405, 0.073))


def find_piece(age_h: float) -> int:
    """Return the piece of the curve that an age belongs to."""
    return sum(age_h >= edge - 1e-9 for edge in AGES_H)


@dataclass(slots=True)
class RunHistory:
    """What was observed of one pool: hours and ends by age. After `half_life_h` an observation counts half."""

    half_life_h: float = 300.0
    is_available: bool | None = None
    age_h: float = 0.0
    _hours: list[list[float]] = field(default_factory=lambda: [[0.0] * PIECES, [0.0] * PIECES])
    _ends: list[list[float]] = field(default_factory=lambda: [[0.0] * PIECES, [0.0] * PIECES])

    def observe(self, *, is_available: bool, hours: float) -> None:
        """Add an observation: capacity was available, or away, for the next `hours`."""
        if hours <= 0:
            return
        keep = 0.5 ** (hours / self.half_life_h)
        for table in (*self._hours, *self._ends):
            table[:] = [value * keep for value in table]
        if self.is_available is not None and is_available != self.is_available:
            # The run ended at the age it had reached: in the piece of its last observation.
            self._ends[self.is_available][find_piece(max(self.age_h - hours, 0.0))] += 1.0
            self.age_h = 0.0
        self.is_available = is_available
        self._hours[is_available][find_piece(self.age_h)] += hours
        self.age_h += hours

    def estimate_rates(self, prior: RunRates = TYPICAL, prior_hours: float = 3.0) -> RunRates:
        """Return rates by age. The prior counts as `prior_hours` of observation at every age."""

        return RunRates(
            mix_rates(self._hours[1], self._ends[1], prior.available, prior_hours),
            mix_rates(self._hours[0], self._ends[0], prior.away, prior_hours),
        )


def mix_rates(
    hours: Sequence[float], ends: Sequence[float], prior: Sequence[float], prior_hours: float
) -> tuple[float, ...]:
    """Return ends per hour by age. The prior counts as `prior_hours` of observation at every age."""
    return tuple(
        (ended + prior_hours * rate) / (observed + prior_hours)
        for ended, observed, rate in zip(ends, hours, prior, strict=True)
    )


def pool_rates(histories: list[RunHistory]) -> RunRates:
    """Return the rates of several pools together. Every pool counts the same, however long it was observed."""
    hours, ends = np.zeros((2, PIECES)), np.zeros((2, PIECES))
    for history in histories:
        total = sum(map(sum, history._hours))  # noqa: SLF001 -- the module's own class
        if total > 0:
            hours += np.array(history._hours) / total  # noqa: SLF001
            ends += np.array(history._ends) / total  # noqa: SLF001
    known = hours > 0
    rates = np.where(known, ends / np.where(known, hours, 1.0), np.array([TYPICAL.away, TYPICAL.available]))
    return RunRates(tuple(map(float, rates[1])), tuple(map(float, rates[0])))

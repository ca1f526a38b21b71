"""What is known of the runs with one key, and means whose weights fade with time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from kgwe.forecast.runtime.histogram import DecayedHistogram

NAN: Final = math.nan
_FAST: Final = 0.35
_SLOW: Final = 0.06
# Weight of a new run in the long mean, once many are known.
_LONG: Final = 1 / 300
# Time constants of deviations: from a user's session to the trend of the day.
_TAUS: Final = (300.0, 1800.0, 14400.0)


@dataclass(slots=True)
class Decayed:
    """A mean whose weights fade with time."""

    tau_s: float
    total: float = 0.0
    weight: float = 0.0
    at_s: float = 0.0

    def add(self, value: float, at_s: float) -> None:
        fade = math.exp(-max(at_s - self.at_s, 0.0) / self.tau_s)
        self.total, self.weight = self.total * fade + value, self.weight * fade + 1.0
        self.at_s = max(at_s, self.at_s)

    def read(self, now_s: float) -> tuple[float, float]:
        """Return the mean, drawn to zero where little is known, and the weight."""
        fade = math.exp(-max(now_s - self.at_s, 0.0) / self.tau_s)
        weight = self.weight * fade
        return self.total * fade / (weight + 0.3), weight


@dataclass(slots=True)
class Level:
    """What is known of the runs with one key. Durations are log(1 + seconds); errors are against the estimate."""

    ended: int = 0
    running: int = 0
    last: float = NAN
    before_last: float = NAN
    fast: float = NAN
    slow: float = NAN
    error: float = 0.0
    slow_error: float = 0.0
    last_error: float = NAN
    mean: float = NAN
    deviations: tuple[Decayed, ...] = field(default_factory=lambda: tuple(Decayed(tau) for tau in _TAUS))
    """Of the durations from the common estimate."""
    ended_s: float = NAN
    submitted_s: float = NAN
    numbers: tuple[float, ...] = ()
    """Of the last ended run."""
    histogram: DecayedHistogram = field(default_factory=DecayedHistogram)

    def end(self, value: float, error: float, deviation: float, at_s: float, numbers: tuple[float, ...]) -> None:
        """Count the end of a run: its duration, and how it differed from the estimate and the common estimate."""
        self.ended += 1
        self.before_last, self.last = self.last, value
        self.last_error, self.ended_s, self.numbers = error, at_s, numbers
        for decayed in self.deviations:
            decayed.add(deviation, at_s)
        self.histogram.add(math.expm1(value), at_s)
        if self.ended == 1:
            self.fast = self.slow = self.mean = value
            self.error = self.slow_error = error
            return
        quick, slow = max(_FAST, 1 / self.ended), max(_SLOW, 1 / self.ended)
        self.fast += quick * (value - self.fast)
        self.slow += slow * (value - self.slow)
        self.mean += max(_LONG, 1 / self.ended) * (value - self.mean)
        self.error += quick * (error - self.error)
        self.slow_error += slow * (error - self.slow_error)

    def describe(self, estimate: float, now_s: float) -> tuple[float, ...]:
        """Return the features of the level, in the order of `schema.LEVEL`."""
        return (
            math.log1p(self.ended),
            self.last - estimate,
            self.before_last - estimate,
            self.fast - estimate,
            self.slow - estimate,
            self.error,
            self.slow_error,
            self.last_error,
            *(part for decayed in self.deviations for part in decayed.read(now_s)),
            math.log1p(max(now_s - self.ended_s, 0.0)) if self.ended else NAN,
            # max() returns its first argument when the second is NaN; unknown must stay NaN.
            math.log1p(max(now_s - self.submitted_s, 0.0)) if not math.isnan(self.submitted_s) else NAN,
            self.running,
        )


EMPTY: Final = Level()

"""Windows: the samples of a series over a time, aggregated to a few numbers.

    samples                     number of samples
    gaps                        samples without a measured value
    mean, maximum, p95, last    of the measured values; None if there are none

A series that a tick does not contain did not exist then, such as the usage of a pod that ended. A series without a
value in a tick has a gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

_P95: Final = 0.95

#: Samples one window holds at most per series: an hour at five seconds.
MAX_SAMPLES: Final = 720


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One series over one window."""

    samples: int
    gaps: int
    mean: float | None = None
    maximum: float | None = None
    p95: float | None = None
    """The smallest measured value that at least 95 % of the samples do not exceed."""
    last: float | None = None


def aggregate(values: Iterable[float | None]) -> Aggregate:
    """One series; None is a gap."""
    seen = list(values)
    measured = [value for value in seen if value is not None]
    gaps = len(seen) - len(measured)
    if not measured:
        return Aggregate(0, gaps)
    return Aggregate(
        samples=len(measured),
        gaps=gaps,
        mean=math.fsum(measured) / len(measured),
        maximum=max(measured),
        p95=_percentile(measured),
        last=measured[-1],
    )


def _percentile(measured: Sequence[float]) -> float:
    """By nearest rank: always a value that was measured."""
    ordered = sorted(measured)
    return ordered[math.ceil(_P95 * len(ordered)) - 1]


Key = TypeVar("Key", bound="Hashable")


class Window(Generic[Key]):
    """Samples of many series, until the window is closed."""

    def __init__(self) -> None:
        self._series: dict[Key, list[float | None]] = {}
        self._ticks = 0

    @property
    def ticks(self) -> int:
        return self._ticks

    def tick(self, values: Mapping[Key, float | None]) -> None:
        """One sample of everything that is there now."""
        if self._ticks >= MAX_SAMPLES:
            raise errors.InvariantBroken(f"a window of more than {MAX_SAMPLES} samples was never closed")
        self._ticks += 1
        for key, value in values.items():
            self._series.setdefault(key, []).append(value)

    def close(self) -> dict[Key, Aggregate]:
        """Return the aggregate of each series, and begin a new window."""
        told = {key: aggregate(values) for key, values in self._series.items()}
        self._series, self._ticks = {}, 0
        return told

"""The question of a run-time forecast, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Quantiles of every known prediction.
QUANTILES: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a run when it is submitted. Nothing in it depends on how the run goes."""

    submitted_s: float
    """Unix time."""
    keys: tuple[str, ...]
    """From fine to coarse, such as fingerprint with version, fingerprint, owner and image, namespace, shape."""
    user: str = ""
    lane: int = 0
    """Index of the key whose runs compete for the same servers or nodes."""
    numbers: tuple[float, ...] = ()
    """Numeric facts in the order of the schema, such as GPUs and pods. NaN is unknown."""
    shared: int = 0
    """Index of the first key that runs of other users share."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a run will take. `is_known` is False where there is no history: the numbers then say nothing."""

    is_known: bool
    quantiles: Mapping[float, float] = field(default_factory=dict)
    """Seconds by quantile."""
    lower_s: float = 0.0
    upper_s: float = float("inf")
    """Interval that contains the run time with the stated coverage."""
    coverage: float = 0.8
    confidence: float = 0.0
    """0 to 1: how narrow the interval is and how much history it rests on."""
    reasons: tuple[str, ...] = ()
    """The three largest reasons, largest first."""
    source: str = "unknown"
    """`model`, `history` or `unknown`."""

    @property
    def median_s(self) -> float | None:
        return self.quantiles.get(0.5)


UNKNOWN: Final = Prediction(is_known=False, reasons=("no finished run of this or a similar workload is known",))

"""Whether two jobs may share a GPU: both must keep most of their speed, with a margin for what the forecast misses.

The margin counts in standard errors. The error of a job grows with its activity, and it is larger for a job that was
never seen beside another. A new job that waits for its input most of the time is never called safe: the host decides
about its speed, and a GPU's metrics do not show the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.interference.model import Signatures, compute_speeds, describe_jobs, estimate_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.forecast.interference.model import Coefficients, Floats, Indices, Latent

#: Both jobs of a safe pair keep this share of their speed.
SAFE_SPEED: Final = 0.9
#: The share of pairs called safe that must be safe.
PRECISION: Final = 0.98
#: Standard errors above `SAFE_SPEED` from which a pair is called safe when there is no history to learn it from.
DEFAULT_MARGIN: Final = 1.0
_LEAST_ERROR: Final = 0.02
_SEEN_ERROR: Final = 0.08
_NEW_ERROR: Final = 0.12
_BUSY_ACTIVITY: Final = 0.4
# A job with less activity that does use memory waits for its input.
_WAITING_ACTIVITY: Final = 0.15
_RESTING_DRAM: Final = 0.01


@dataclass(frozen=True, slots=True)
class Signature:
    """What one job did alone; None is unknown."""

    activity: float | None
    dram: float | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class PairForecast:
    """The expected speeds of two jobs that share a GPU; None: unknown."""

    first_speed: float | None
    second_speed: float | None
    is_safe: bool
    """Whether both are expected to keep `SAFE_SPEED`, margin included; False if unknown."""
    reasons: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        return self.first_speed is not None


def gather_signatures(jobs: Sequence[Signature]) -> Signatures:
    """Return the signatures of several jobs as arrays; None becomes NaN."""
    rows = [[np.nan if value is None else value for value in (job.activity, job.dram, job.step_s)] for job in jobs]
    activity, dram, step_s = np.array(rows, dtype=np.float64).reshape(len(jobs), 3).T
    return Signatures(activity, dram, step_s)


def forecast_pair(
    coefficients: Coefficients, first: Signature, second: Signature, *, margin: float = DEFAULT_MARGIN
) -> PairForecast:
    """Return the forecast for two jobs of which only the signatures are known."""
    jobs = gather_signatures([first, second])
    if np.isnan(jobs.activity).any():
        reason = "the activity of a job alone is not known: no forecast of how they share a GPU"
        return PairForecast(None, None, is_safe=False, reasons=(reason,))
    parts = estimate_parts(coefficients, describe_jobs(jobs))
    one, two = compute_speeds(parts, np.array([0, 1]), np.array([1, 0])).tolist()
    measured = measure_margins(jobs, parts, np.zeros(2, dtype=np.bool_), np.array([0]), np.array([1]))
    lower, name = min((one, "first"), (two, "second"))
    reasons = [
        f"alone the jobs keep the GPU active {jobs.activity[0]:.0%} and {jobs.activity[1]:.0%} of the time",
        f"the {name} job would keep {lower:.0%} of its speed",
    ]
    if np.isnan(jobs.dram).any():
        reasons.append("memory activity is not measured: a typical value is assumed")
    if np.isneginf(measured[0]):
        reasons.append("a job waits for its input most of the time: its speed depends on the host")
    return PairForecast(one, two, is_safe=bool(measured[0] >= margin), reasons=tuple(reasons))


def measure_margins(
    jobs: Signatures, parts: Latent, seen: NDArray[np.bool_], first: Indices, second: Indices
) -> Floats:
    """Return per pair by how many standard errors the slower job exceeds `SAFE_SPEED`; -inf: never safe."""
    one = _measure_margin(jobs, parts, seen, first, second)
    two = _measure_margin(jobs, parts, seen, second, first)
    return np.minimum(one, two)


def _measure_margin(jobs: Signatures, parts: Latent, seen: NDArray[np.bool_], job: Indices, other: Indices) -> Floats:
    busy = np.clip(jobs.activity[job] / _BUSY_ACTIVITY, 0.0, 1.0)
    error = _LEAST_ERROR + np.where(seen[job], _SEEN_ERROR, _NEW_ERROR) * busy
    margin = (compute_speeds(parts, job, other) - SAFE_SPEED) / error
    resting = jobs.dram[job] < _RESTING_DRAM
    is_waiting = ~seen[job] & (jobs.activity[job] < _WAITING_ACTIVITY) & ~resting
    return np.where(is_waiting | np.isnan(margin), -np.inf, margin)


def find_margin(margins: Floats, is_safe: NDArray[np.bool_], *, precision: float = PRECISION) -> float:
    """Return the lowest margin from which at least `precision` of pairs are safe; infinity if there is none."""
    if not len(margins):
        return float("inf")
    order = np.argsort(-margins, kind="stable")
    ordered = margins[order]
    right = np.cumsum(is_safe[order]) / np.arange(1, len(order) + 1)
    # Pairs of equal margins are taken or left together.
    is_last = np.append(ordered[1:] < ordered[:-1], np.True_)
    enough = np.flatnonzero((right >= precision) & is_last & np.isfinite(ordered))
    return float(ordered[enough[-1]]) if len(enough) else float("inf")

"""The speed of a job beside another on the same GPU, as a share of its speed alone.

    speed = exp(offset) / (1 + exp(sensitivity + intensity of the other job))

Sensitivity and intensity follow from what each job did alone: its activity, its use of the memory interface, and the
time of one of its steps. Two saturated jobs get about half of a GPU each; two light ones hardly meet. A job that was
seen beside others has an effect of its own on each part, which is added. The offset corrects the reference: very short
steps are measured too slow alone. It is zero in the coefficients that are shipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.intp]

# Below 3 % activity jobs are equally light.
_LEAST_ACTIVITY: Final = 0.03
# Jobs whose memory interface is at rest hardly use the GPU, whatever their activity says.
_RESTING_DRAM: Final = 0.01
# The typical ratio of memory to compute activity, where the former was not measured.
_DRAM_PER_ACTIVITY: Final = 0.45
_BUSY_ACTIVITY: Final = 0.4
_SHORT_STEP_S: Final = 0.040
_SHORTEST_STEP_S: Final = 0.006
_EXPONENT_LIMITS: Final = (-8.0, 4.0)


@dataclass(frozen=True, slots=True, eq=False)
class Signatures:
    """What jobs did alone on a GPU; one element per job, NaN is unknown."""

    activity: Floats
    """Share of time in which a kernel ran, 0..1."""
    dram: Floats
    """Share of time in which the memory interface worked, 0..1."""
    step_s: Floats
    """Time of one training step or request."""

    def __len__(self) -> int:
        return len(self.activity)


class Design(NamedTuple):
    """Features of each part, one row per job."""

    offset: Floats
    sensitivity: Floats
    intensity: Floats


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Weights of the features in `Design`, part by part."""

    offset: tuple[float, ...] = (0.0,)
    sensitivity: tuple[float, ...] = (-0.6, 1.0, 0.0)
    intensity: tuple[float, ...] = (1.0, 0.0)


class Latent(NamedTuple):
    """The three parts, one element per job."""

    offset: Floats
    sensitivity: Floats
    intensity: Floats


def describe_jobs(jobs: Signatures) -> Design:
    """Return the features of jobs; NaN where the activity is unknown."""
    log_activity = np.log(np.clip(jobs.activity, _LEAST_ACTIVITY, 1.0))
    dram = np.where(np.isnan(jobs.dram), _DRAM_PER_ACTIVITY * jobs.activity, jobs.dram)
    resting = np.where(np.isnan(jobs.activity), np.nan, jobs.dram < _RESTING_DRAM)
    step_s = np.where(np.isnan(jobs.step_s), _SHORT_STEP_S, np.clip(jobs.step_s, _SHORTEST_STEP_S, _SHORT_STEP_S))
    short = np.clip(jobs.activity / _BUSY_ACTIVITY, 0.0, 1.0) * np.log(_SHORT_STEP_S / step_s)
    return Design(
        offset=short[:, np.newaxis],
        sensitivity=np.column_stack([np.ones(len(jobs)), log_activity, resting]),
        intensity=np.column_stack([log_activity, dram]),
    )


def estimate_parts(coefficients: Coefficients, design: Design) -> Latent:
    """Return the parts of jobs of which only the signature is known."""
    return Latent(
        design.offset @ np.array(coefficients.offset),
        design.sensitivity @ np.array(coefficients.sensitivity),
        design.intensity @ np.array(coefficients.intensity),
    )


def compute_speeds(parts: Latent, jobs: Indices, others: Indices) -> Floats:
    """Return the speed of each of `jobs` beside the other at the same position; NaN where either is unknown."""
    exponent = np.clip(parts.sensitivity[jobs] + parts.intensity[others], *_EXPONENT_LIMITS)
    return np.asarray(np.exp(parts.offset[jobs]) / (1.0 + np.exp(exponent)), dtype=np.float64)

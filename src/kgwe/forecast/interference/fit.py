"""Fits the interference model to measured pairs.

A job's parts are drawn towards what its signature says, so a job that was seen beside few others stays near it, and a
job that was seen beside many follows its own measurements. The coefficients are in turn the regression of the parts on
the signatures, where each group (the settings of one model) has the same weight. The loss is linear in large errors:
some references were measured wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.forecast.interference.model import (
    Coefficients,
    Latent,
    Signatures,
    compute_speeds,
    describe_jobs,
    estimate_parts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.forecast.interference.model import Design, Floats, Indices

_ROUNDS: Final = 8
# Deviations of a job from its signature that are tried.
_DEVIATIONS: Final = np.linspace(-1.5, 1.5, 61)
_OFFSET_DEVIATIONS: Final = 0.3 * _DEVIATIONS
# How strongly a job is drawn to its signature: the loss of a deviation of 1.
_PULL: Final = 8.0
_OFFSET_PULL: Final = 100.0
# Errors of speed below this count by their square.
_LOSS_SCALE: Final = 0.05
_RIDGE: Final = 1e-3


class Observed(NamedTuple):
    """Measured speeds: job, the other job, speed."""

    jobs: Indices
    others: Indices
    speeds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Coefficients for new jobs, and the parts of every job."""

    coefficients: Coefficients
    parts: Latent
    seen: NDArray[np.bool_]
    """Whether the job was in a measured pair."""


def fit_model(jobs: Signatures, observed: Observed, groups: Indices, *, has_offset: bool = True) -> Fitted:
    """Fit the model; `groups` gives each job the number of its group."""
    if not len(observed.speeds):
        raise errors.Permanent("no measured pair to fit the interference model to")
    design = describe_jobs(jobs)
    seen = np.zeros(len(jobs), dtype=np.bool_)
    seen[observed.jobs] = seen[observed.others] = True
    weights = np.where(seen, 1.0 / np.maximum(np.bincount(groups[seen], minlength=groups.max() + 1)[groups], 1), 0.0)
    coefficients = Coefficients()
    parts = estimate_parts(coefficients, design)
    by_job = (np.arange(len(jobs))[:, np.newaxis] == observed.jobs).astype(np.float64)
    by_other = (np.arange(len(jobs))[:, np.newaxis] == observed.others).astype(np.float64)
    for _ in range(_ROUNDS):
        prior = estimate_parts(coefficients, design)
        parts = parts._replace(intensity=_move_part(parts, prior, "intensity", observed, by_other))
        parts = parts._replace(sensitivity=_move_part(parts, prior, "sensitivity", observed, by_job))
        if has_offset:
            parts = parts._replace(offset=_move_offset(parts, prior, observed, by_job))
        coefficients = _regress(design, parts, weights)
    prior = estimate_parts(coefficients, design)
    parts = Latent(*(np.where(seen, own, expected) for own, expected in zip(parts, prior, strict=True)))
    return Fitted(coefficients, parts, seen)


def _move_part(parts: Latent, prior: Latent, name: str, observed: Observed, members: Floats) -> Floats:
    """Return the part of each job that explains its pairs best, drawn to the prior."""
    expected: Floats = getattr(prior, name)
    at = parts._replace(**{name: expected})
    exponent = at.sensitivity[observed.jobs] + at.intensity[observed.others]
    scale = np.exp(at.offset[observed.jobs])
    tried = scale[:, np.newaxis] / (1.0 + np.exp(np.clip(exponent, -8.0, 4.0)[:, np.newaxis] + _DEVIATIONS))
    loss = members @ _measure_loss(tried - observed.speeds[:, np.newaxis]) + _PULL * _DEVIATIONS**2
    return np.asarray(expected + _DEVIATIONS[loss.argmin(axis=1)])


def _move_offset(parts: Latent, prior: Latent, observed: Observed, members: Floats) -> Floats:
    speeds = compute_speeds(parts._replace(offset=prior.offset), observed.jobs, observed.others)
    tried = speeds[:, np.newaxis] * np.exp(_OFFSET_DEVIATIONS)
    loss = members @ _measure_loss(tried - observed.speeds[:, np.newaxis]) + _OFFSET_PULL * _OFFSET_DEVIATIONS**2
    return np.asarray(prior.offset + _OFFSET_DEVIATIONS[loss.argmin(axis=1)])


def _measure_loss(error: Floats) -> Floats:
    return np.asarray(np.sqrt(1.0 + (error / _LOSS_SCALE) ** 2) - 1.0)


def _regress(design: Design, parts: Latent, weights: Floats) -> Coefficients:
    found = []
    for features, values in zip(design, parts, strict=True):
        known = weights > 0
        weighted = features[known] * weights[known, np.newaxis]
        ridge = _RIDGE * np.eye(features.shape[1])
        found.append(np.linalg.solve(weighted.T @ features[known] + ridge, weighted.T @ values[known]))
    offset, sensitivity, intensity = (tuple(float(value) for value in each) for each in found)
    return Coefficients(offset, sensitivity, intensity)

"""How well runs went in each network domain: the forecast behind the history part of a domain's score.

Two things count: the share of runs that succeeded, and measured over predicted run time. Both are compared with the
mean of all domains and drawn towards it while a domain has few runs, so mistakes of users, which happen everywhere, and
a predictor that is always too low change nothing. The score is 0..1, as `Node.history` reads it: 1.0 for a domain that
is not worse than the mean, and for one of which nothing is known.

Domains are shared by tenants, so no tenant decides alone: the runs of one namespace in one domain count as a few, and
failures soon after the start are mistakes of the workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.usage.history import Run

#: A week, as `kgwe.model.network.outcomes` remembers.
HALF_LIFE_S: Final = 7 * 86_400.0
#: Runs at the mean that every domain is credited with.
PRIOR_RUNS: Final = 8.0
#: Runs that those of one namespace in one domain count as, at most, where there are other namespaces.
MOST_PER_NAMESPACE: Final = 4.0
#: A run that fails sooner says nothing of its domain.
SHORT_S: Final = 60.0
# One run that took ten times as long as predicted is an error of the prediction.
_MOST_PACE: Final = 4.0
_LEAST_S: Final = 1.0
# Smaller differences of pace are left out of the reasons.
_LEAST_TOLD: Final = 0.01


@dataclass(frozen=True, slots=True)
class DomainHistory:
    """What is known of one domain."""

    score: float
    """0..1; 1.0 is neutral."""
    success: float
    """Share of runs that succeeded, drawn to the mean."""
    pace: float
    """Run time relative to the other domains, drawn to 1; above 1 is slower."""
    runs: float
    """Ended runs, older ones count less."""
    reasons: tuple[str, ...]


#: A domain without runs.
NEUTRAL: Final = DomainHistory(1.0, 1.0, 1.0, 0.0, ("no run has ended there",))


def rate_domains(runs: Sequence[Run], now_s: float, namespaces: Mapping[str, str]) -> dict[str, DomainHistory]:
    """Return the history of each domain in which runs ended; other domains are `NEUTRAL`.

    `namespaces`: fingerprint -> namespace. Fingerprints that are not there count as one namespace.
    """
    ended = [run for run in runs if _counts(run)]
    if not ended:
        return {}
    names = sorted({run.domain for run in ended})
    index = {name: number for number, name in enumerate(names)}
    domain = np.array([index[run.domain] for run in ended], dtype=np.intp)
    age_s = np.maximum(now_s - np.array([run.ended_s for run in ended], dtype=np.float64), 0.0)
    weight = 2.0 ** (-age_s / HALF_LIFE_S)
    succeeded = np.array([bool(run.succeeded) for run in ended], dtype=np.float64)
    count = np.bincount(domain, weight, len(names))
    weight = _cap_namespaces(weight, domain, [namespaces.get(run.fingerprint, "") for run in ended])
    success, mean_success = _shrink(domain, weight, succeeded, len(names))
    pace = _measure_pace(ended, domain, weight, len(names))
    relative = success / mean_success if mean_success > 0 else np.ones(len(names))
    score = np.clip(relative, 0.0, 1.0) * np.clip(1.0 / pace, 0.0, 1.0)
    return {
        name: DomainHistory(
            float(score[number]),
            float(success[number]),
            float(pace[number]),
            float(count[number]),
            _explain(float(success[number]), mean_success, float(pace[number]), float(count[number])),
        )
        for name, number in index.items()
    }


def _counts(run: Run) -> bool:
    if run.ended_s is None or not run.domain or run.succeeded is None:
        return False
    return run.succeeded or run.lasted_s >= SHORT_S


def _cap_namespaces(
    weight: NDArray[np.float64], domain: NDArray[np.intp], namespaces: Sequence[str]
) -> NDArray[np.float64]:
    """Return lower weights where one namespace has many runs in one domain. A single tenant harms no other."""
    index = {name: number for number, name in enumerate(sorted(set(namespaces)))}
    if len(index) == 1:
        return weight
    group = domain * len(index) + np.array([index[name] for name in namespaces], dtype=np.intp)
    total = np.bincount(group, weight)[group]
    return weight * np.minimum(1.0, MOST_PER_NAMESPACE / np.maximum(total, MOST_PER_NAMESPACE))


def _measure_pace(
    ended: Sequence[Run], domain: NDArray[np.intp], weight: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """Return measured over predicted run time per domain, relative to all; 1 where no run had a prediction."""
    log_pace = np.array(
        [
            np.log(max(run.lasted_s, _LEAST_S) / max(run.predicted_s, _LEAST_S))
            if run.succeeded and run.predicted_s is not None
            else np.nan
            for run in ended
        ]
    )
    known = ~np.isnan(log_pace)
    if not known.any():
        return np.ones(size)
    limit = np.log(_MOST_PACE)
    centre = float(np.median(log_pace[known]))
    bounded = np.clip(log_pace[known] - centre, -limit, limit)
    drawn, mean = _shrink(domain[known], weight[known], bounded, size)
    return np.asarray(np.exp(drawn - mean))


def _shrink(
    domain: NDArray[np.intp], weight: NDArray[np.float64], values: NDArray[np.float64], size: int
) -> tuple[NDArray[np.float64], float]:
    """Return the mean of each domain, drawn to that of all, and that of all."""
    total = float(weight.sum())
    mean = float((weight * values).sum() / total) if total > 0 else float(values.mean())
    sums = np.bincount(domain, weight * values, size)
    counts = np.bincount(domain, weight, size)
    return (sums + PRIOR_RUNS * mean) / (counts + PRIOR_RUNS), mean


def _explain(success: float, mean: float, pace: float, count: float) -> tuple[str, ...]:
    reasons = [f"{success:.0%} of runs succeed there, {mean:.0%} everywhere ({count:.1f} recent runs)"]
    if abs(pace - 1.0) >= _LEAST_TOLD:
        reasons.append(f"runs take {pace:.2f} times as long there as elsewhere")
    return tuple(reasons)

"""How the queue sees an ask: the gang or pod it orders, with its age and its declared run time."""

from __future__ import annotations

import contextlib
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.placement.planning import planner
from kgwe.placement.queue.workloads import QueuedWorkload, RunTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.pod.fit import Fitter

# Run times declared by users: one in twenty takes up to twice as long.
_LATE: Final = 2.0
_MEDIAN: Final = 0.5
_P95: Final = 0.95
# The queue needs a positive time; a prediction of nothing is a second.
_SHORTEST_S: Final = 1.0
# Users declare too much rather than too little. One in twenty uses less than this part of the declared time.
_LEAST_USED: Final = 0.05
# A run that can end at half of the declared time or later is not known to end before.
_OFTEN_USED: Final = 0.5


def declared_run_time(expected_s: float | None) -> RunTime | None:
    """The distribution behind a duration that a user declared; None: none was declared."""
    return RunTime(expected_s, expected_s * _LATE) if expected_s else None


def run_time_from_quantiles(quantiles: Mapping[float, float]) -> RunTime | None:
    """The run time of a prediction with a median and an upper quantile; None if one is missing.

    Run times are taken as log-normal between the quantiles to find the 95th percentile.
    """
    median_s = quantiles.get(_MEDIAN)
    upper = max((q for q in quantiles if q > _MEDIAN), default=None)
    if median_s is None or upper is None:
        return None
    p50_s = max(median_s, _SHORTEST_S)
    high_s = max(quantiles[upper], p50_s)
    normal = NormalDist()
    p95_s = p50_s * (high_s / p50_s) ** (normal.inv_cdf(_P95) / normal.inv_cdf(upper))
    return RunTime(p50_s, p95_s) if math.isfinite(p95_s) else None


def combine_run_times(declared: RunTime | None, predicted: RunTime | None) -> RunTime | None:
    """The run time that plans use, from what the user declared and what history predicts; None: neither is known.

    History says what is usual, the declaration what is possible: the prediction is moved into the range that the
    declared time leaves open. A declared time is an upper bound that users rarely exceed and often do not use up.
    Backfill is stricter: there the longer of both counts (`QueuedWorkload.promise_s`).
    """
    if declared is None or predicted is None:
        return predicted or declared
    expected_s = declared.p50_s
    p50_s = min(max(predicted.p50_s, _LEAST_USED * expected_s), expected_s)
    p95_s = min(max(predicted.p95_s, _OFTEN_USED * expected_s), declared.p95_s)
    return RunTime(p50_s, max(p50_s, p95_s))


def workload_from_ask(
    ask: Ask, fitter: Fitter, since_s: float, run_time: RunTime | None = None, predicted: RunTime | None = None
) -> QueuedWorkload:
    """The ask as the queue orders it; `since_s`: when it was made, in seconds since 1970.

    `run_time`: the one that plans use; left out, the declared one counts. `predicted`: what history alone says.
    """
    try:
        whole = planner.divide_ask(fitter, ask)
    except Exception:  # noqa: BLE001 - planning it fails with the same error, and is counted there
        whole = ask
    request: Request | GangRequest = whole.request
    if whole.pods > 1 or whole.gang is not None:
        # An inconsistent gang is refused, with the reason, when it is planned.
        with contextlib.suppress(errors.Permanent):
            request = planner.gang_request(whole)
    return QueuedWorkload(
        key=ask.owner,
        request=request,
        namespace=ask.namespace,
        priority=ask.priority,
        since_s=since_s,
        run_time=run_time or declared_run_time(ask.expected_s),
        predicted_p95_s=predicted.p95_s if predicted is not None else 0.0,
        first_claim=ask.first_claim,
        request_class=ask.without_identity(),
        name=f"{ask.namespace}/{ask.name}" if ask.name else "",
    )

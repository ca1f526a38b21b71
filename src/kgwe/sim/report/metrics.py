"""The results of a run in numbers: one flat summary per policy, and its curves.

Percentiles are over jobs that reached the state (waits: started; completion times: finished). Allocation is compared
between the first and the last arrival: afterwards the fleet drains with any policy. Fragmentation is sampled over the
same time; a value from fewer than ten samples is left out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.sim.recording import Fate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.sim.loop import Simulation
    from kgwe.sim.recording import JobRecord, Sample

_MICRO = 1_000_000
_HOUR_S = 3600.0
_CDF_POINTS = 100
_FEWEST_SAMPLES = 10
# Replaces a duration of zero in divisions.
_TINY_S = 1e-9


class Percentiles(msgspec.Struct, frozen=True):
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Jobs(msgspec.Struct, frozen=True):
    total: int
    finished: int
    running: int
    waiting: int
    #: do not fit even on the empty fleet
    impossible: int


class Gangs(msgspec.Struct, frozen=True):
    """Started jobs with more than one pod."""

    jobs: int
    #: mean of nodes used over the minimum; 1 is ideal
    node_spread: float
    #: the same for leaves of the network; None if unknown
    leaf_spread: float | None
    #: fraction of the gangs that fit in one leaf and are in one
    one_leaf_share: float | None
    #: mean, over all jobs with a known sensitivity, of step time over that of the best placement
    slowdown: float


class Failures(msgspec.Struct, frozen=True):
    interruptions: int
    #: interrupted jobs that finished
    survived: int
    #: interrupted jobs
    hit: int
    #: repeated work
    lost_gpu_hours: float
    #: fraction of capacity that was down, over the run
    out: float


class Cost(msgspec.Struct, frozen=True):
    """Dollars while jobs arrive, of nodes with a known price. paid = used + unused."""

    priced_nodes: int
    nodes: int
    paid_usd: float
    used_usd: float
    unused_usd: float
    #: paid dollars per GPU-hour of useful work; None if some prices are unknown
    usd_per_useful_gpu_hour: float | None


class Curves(msgspec.Struct, frozen=True):
    """One value per point of time, in hours since the first arrival; fractions of capacity in percent."""

    hours: list[float]
    allocated: list[float]
    fragmented: list[float]
    out: list[float]
    demand: list[float]
    waiting: list[int]
    running: list[int]
    #: waits in seconds at 0, 1 … 100 percent of the jobs
    wait_cdf_s: list[float]
    completion_cdf_s: list[float]


class Result(msgspec.Struct, frozen=True):
    policy: str
    jobs: Jobs
    #: from the first arrival to the end, and to the last arrival (to the end, if all arrive at once)
    hours: float
    busy_hours: float
    #: fraction of capacity in use while jobs arrive, and over the whole run
    allocation: float
    allocation_whole_run: float
    #: fraction of capacity that is idle and unusable for a pod of the mix, mean over the arrival period; None with
    # too few samples
    fragmentation: float | None
    wait_s: Percentiles
    completion_s: Percentiles
    gangs: Gangs
    failures: Failures
    cost: Cost
    curves: Curves


def summarise(policy: str, simulation: Simulation) -> Result:
    records, recorder = simulation.records, simulation.recorder
    total = max(simulation.world.total, 1)
    waits = [record.wait_s for record in records if record.wait_s is not None]
    completions = [record.completion_s for record in records if record.completion_s is not None]
    busy, whole = recorder.busy, recorder.whole_run
    return Result(
        policy=policy,
        jobs=_count_jobs(records),
        hours=whole.seconds / _HOUR_S,
        busy_hours=busy.seconds / _HOUR_S,
        allocation=busy.allocated / total / max(busy.seconds, _TINY_S),
        allocation_whole_run=whole.allocated / total / max(whole.seconds, _TINY_S),
        fragmentation=_fragmentation(recorder.samples, recorder.busy_until_s),
        wait_s=_percentiles(waits),
        completion_s=_percentiles(completions),
        gangs=_summarize_gangs(records),
        failures=_summarize_failures(records, whole.out / total / max(whole.seconds, _TINY_S)),
        cost=_summarize_cost(simulation),
        curves=_compute_curves(simulation, waits, completions),
    )


def _fragmentation(samples: list[Sample], until_s: float) -> float | None:
    """Return the mean up to `until_s`, each sample weighted by the time until the next."""
    seconds = [min(after.at_s, until_s) - sample.at_s for sample, after in pairwise(samples)]
    counted = [(sample, weight) for sample, weight in zip(samples, seconds, strict=False) if weight > 0]
    if len(counted) < _FEWEST_SAMPLES:
        return None
    return sum(sample.fragmented * weight for sample, weight in counted) / sum(weight for _, weight in counted)


def _percentiles(values: list[float]) -> Percentiles:
    if not values:
        return Percentiles(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return Percentiles(float(np.mean(values)), float(p50), float(p90), float(p99), max(values))


def _count_jobs(records: list[JobRecord]) -> Jobs:
    fates = [record.fate for record in records]
    finished, running, waiting, impossible = (
        fates.count(fate) for fate in (Fate.FINISHED, Fate.RUNNING, Fate.WAITING, Fate.IMPOSSIBLE)
    )
    return Jobs(len(records), finished, running, waiting, impossible)


def _summarize_gangs(records: list[JobRecord]) -> Gangs:
    gangs = [record for record in records if record.job.pods > 1 and record.starts]
    placed = [record for record in gangs if record.leaves and record.fewest_leaves]
    could = [record for record in placed if record.fewest_leaves == 1]
    sensitive = [record.slowdown for record in records if record.job.model and record.starts]
    return Gangs(
        jobs=len(gangs),
        node_spread=_mean((record.nodes / max(record.fewest_nodes, 1) for record in gangs), 1.0),
        leaf_spread=_mean(record.leaves / record.fewest_leaves for record in placed) if placed else None,
        one_leaf_share=_mean(float(record.leaves == 1) for record in could) if could else None,
        slowdown=_mean(sensitive, 1.0),
    )


def _mean(values: Iterable[float], otherwise: float = 0.0) -> float:
    listed = list(values)
    return float(np.mean(listed)) if listed else otherwise


def _summarize_failures(records: list[JobRecord], out: float) -> Failures:
    hit = [record for record in records if record.interruptions]
    return Failures(
        interruptions=sum(record.interruptions for record in hit),
        survived=sum(record.fate is Fate.FINISHED for record in hit),
        hit=len(hit),
        lost_gpu_hours=sum(record.lost_gpu_s for record in hit) / _HOUR_S,
        out=out,
    )


def _summarize_cost(simulation: Simulation) -> Cost:
    busy, prices = simulation.recorder.busy, simulation.world.price_micro
    paid, used = busy.paid_micro / _MICRO, busy.used_micro / _MICRO
    useful = busy.useful / GPU_MILLI / _HOUR_S
    priced = int((prices > 0).sum())
    # With some prices missing, dollars per hour of all work would be too low.
    is_known = useful > 0 and priced == len(prices)
    return Cost(priced, len(prices), paid, used, paid - used, paid / useful if is_known else None)


def _compute_curves(simulation: Simulation, waits: list[float], completions: list[float]) -> Curves:
    recorder = simulation.recorder
    samples = recorder.samples
    return Curves(
        hours=[round((sample.at_s - recorder.start_s) / _HOUR_S, 4) for sample in samples],
        allocated=[round(100 * sample.allocated, 3) for sample in samples],
        fragmented=[round(100 * sample.fragmented, 3) for sample in samples],
        out=[round(100 * sample.out, 3) for sample in samples],
        demand=[round(100 * sample.demand, 3) for sample in samples],
        waiting=[sample.waiting for sample in samples],
        running=[sample.running for sample in samples],
        wait_cdf_s=_compute_cdf(waits),
        completion_cdf_s=_compute_cdf(completions),
    )


def _compute_cdf(values: list[float]) -> list[float]:
    if not values:
        return []
    return [round(float(each), 3) for each in np.percentile(values, np.linspace(0, 100, _CDF_POINTS + 1))]

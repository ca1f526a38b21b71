"""Studies of the queue: waiting times with each rule, and the accuracy of estimated starts.

Each run uses KGWE's engine and gang planner. The caller chooses which run times the queue assumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.queue.reservation import BackfillRule, ReservationSettings
from kgwe.placement.queue.workloads import RunTime
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.policies import registry
from kgwe.sim.traces import generate
from kgwe.sim.traces.workload import Job, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.placement.fleet.node import Node
    from kgwe.placement.queue.eta import Eta
    from kgwe.sim.job_queue import Predict
    from kgwe.sim.recording import JobRecord


def by_kind(workload: Workload) -> Predict:
    """Return the run times of jobs with the same pods: the median, and the 95th percentile."""
    taken: dict[object, list[float]] = {}
    for job in workload.jobs:
        taken.setdefault(job.request, []).append(job.duration_s)
    known = {kind: RunTime(*np.percentile(each, (50, 95)).tolist()) for kind, each in taken.items()}
    return lambda job, _: known[job.request]


# --- estimates -------------------------------------------------------------------------------------------


class Calibration(msgspec.Struct, frozen=True):
    """The accuracy of estimates on arrival, for jobs that had to wait."""

    jobs: int
    #: jobs without an estimate
    unknown: int
    #: fraction of the others that started no later than estimated; None if there are none
    within_p50: float | None
    within_p90: float | None
    #: median of the estimated wait over the real wait
    p50_over_real: float | None
    p90_over_real: float | None


def calibrate(
    nodes: Sequence[Node], workload: Workload, predict: Predict, rule: BackfillRule = BackfillRule.BACKFILL
) -> Calibration:
    """Compare the estimates at the beginning of the wait with the actual starts."""
    told: dict[int, Eta] = {}
    world = World.from_nodes(nodes)
    options = Options(ReservationSettings(rule), predict, told, slowdowns={})
    run = Simulation(world, workload, registry.find_policy("kgwe"), options).run()
    rows = [
        (eta.p50_s, eta.p90_s, run.records[number].first_start_s, run.records[number].job.arrival_s)
        for number, eta in told.items()
        if eta.p50_s is not None
    ]
    if not rows:
        return Calibration(len(told), len(told), None, None, None, None)
    p50, p90, real, since = np.array(rows, np.float64).reshape(-1, 4).T
    p90 = np.where(np.isnan(p90), np.inf, p90)
    waits = np.maximum(real - since, 1.0)
    return Calibration(
        jobs=len(told),
        unknown=len(told) - len(rows),
        within_p50=float((real <= p50).mean()),
        within_p90=float((real <= p90).mean()),
        p50_over_real=float(np.median((p50 - since) / waits)),
        p90_over_real=float(np.median((p90 - since) / waits)),
    )


# --- comparison ------------------------------------------------------------------------------------------


class Waits(msgspec.Struct, frozen=True):
    """Waiting times in hours."""

    jobs: int
    mean: float
    p90: float
    max: float


class Row(msgspec.Struct, frozen=True):
    """The results of one workload with one rule."""

    rule: str
    heroes: Waits
    others: Waits
    #: fraction of capacity in use while jobs arrive
    allocation: float
    #: hours until the last job ended
    hours: float
    unfinished: int


_HOUR_S: Final = 3600.0
_HERO_S: Final = 4 * _HOUR_S


def with_heroes(nodes: Sequence[Node], *, jobs: int, heroes: int, load: float, part: float, seed: int) -> Workload:
    """Return research jobs, and occasional jobs that need the given part of the fleet for four hours.

    `load` is that of the research jobs alone. All have one priority, so only the queue's rule separates them.
    """
    cards = nodes[0].shape.gpu_count
    base = generate.generate("research", jobs=jobs, cards=cards * len(nodes), seed=seed, load=load)
    pods = max(1, round(len(nodes) * part))
    whole = Request(Gpus(count=cards), 64_000, 384 << 30)
    added = (
        Job(f"hero-{number}", base.span_s * (number + 1) / (heroes + 1), _HERO_S, whole, pods, user="hero")
        for number in range(heroes)
    )
    return Workload.from_jobs("heroes", (*base.jobs, *added))


def compare(
    nodes: Sequence[Node],
    workload: Workload,
    predict: Predict,
    *,
    hero_part: float,
    rules: Iterable[BackfillRule] = BackfillRule,
    **settings: float,
) -> list[Row]:
    """Run the same jobs with each rule; heroes request at least that part of the fleet."""
    return [
        _row(nodes, workload, hero_part, Options(ReservationSettings(rule, **settings), predict, slowdowns={}))  # type: ignore[arg-type]  # numbers of either kind
        for rule in rules
    ]


def _row(nodes: Sequence[Node], workload: Workload, hero_part: float, options: Options) -> Row:
    """Run one rule. `options` have no slowdowns: spread placements would change run times, and so the comparison."""
    world = World.from_nodes(nodes)
    run = Simulation(world, workload, registry.find_policy("kgwe"), options).run()
    least = hero_part * world.total
    busy = run.recorder.busy
    return Row(
        rule=str(options.reservations.rule),
        heroes=_summarize_waits([record for record in run.records if record.job.milli >= least]),
        others=_summarize_waits([record for record in run.records if record.job.milli < least]),
        allocation=busy.allocated / world.total / max(busy.seconds, 1.0),
        hours=run.recorder.whole_run.seconds / _HOUR_S,
        unfinished=run.unfinished,
    )


def _summarize_waits(records: Sequence[JobRecord]) -> Waits:
    hours = np.array([record.wait_s / _HOUR_S for record in records if record.wait_s is not None])
    if not len(hours):
        return Waits(0, 0.0, 0.0, 0.0)
    return Waits(len(hours), float(hours.mean()), float(np.percentile(hours, 90)), float(hours.max()))

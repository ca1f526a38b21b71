"""`kgwe bench eta`: estimated starts with declared run times, predicted ones, both and none, on recorded jobs.

The jobs are replayed through the queue, backfill and the estimator of the scheduler, once per source of run times. A
job that has to wait gets its estimate when it is submitted. Predictions are causal: the predictor knows the jobs that
had started or ended in the same replay before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast.data import find_file
from kgwe.bench.forecast.eta_jobs import declare_run_times, read_jobs, size_fleet
from kgwe.forecast.runtime.predictor import Predictor
from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.schema import Schema
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.queue.ask import combine_run_times, declared_run_time
from kgwe.placement.queue.workloads import RunTime
from kgwe.sim.fleet import fleets
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options as SimulationOptions
from kgwe.sim.loop import Simulation
from kgwe.sim.policies import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.local.host.progress import Progress
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.eta import Eta
    from kgwe.sim.recording import JobRecord
    from kgwe.sim.traces.workload import Job, Workload

    Floats = NDArray[np.float64]

SOURCES: Final = ("declared", "predicted", "both", "none")
SCHEMA: Final = Schema(("virtual cluster and GPUs", "virtual cluster", "GPUs"), ("GPUs",))
_FILE: Final = "jobs/philly_jobs.csv.gz"
_FLEET: Final = "dgx-h100"
_LANE: Final = 1
_SHARED: Final = 2
_SHORTEST_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: Path | None = None
    every: int = 12
    """Every n-th job of the file is replayed."""
    nodes: int = 0
    """0: as many as `load` asks for."""
    load: float = 0.8
    """Part of the GPUs that the jobs would use if none had to wait."""
    estimate_every: int = 2
    """Of these, every n-th gets an estimate."""
    late: float = 0.05
    """Share of users who declare too little."""
    seed: int = 1
    """Chooses the jobs and the declared times."""


def run(options: Options, progress: Progress) -> report.Report:
    """Replay the jobs once per source of run times."""
    if min(options.every, options.estimate_every, options.seed) < 1 or options.nodes < 0 or options.load <= 0:
        raise errors.Permanent("--every, --estimate-every and --seed must be at least 1, --load above 0")
    machine = report.examine_machine()
    path = find_file(options.data, _FILE)
    workload, skipped = read_jobs(path, every=options.every, first=options.seed - 1)
    count = options.nodes or size_fleet(workload, options.load)
    nodes = fleets.build_nodes(inventory.expand_fleet(models.load(_FLEET), count))
    replays: dict[str, Replay] = {}
    with progress.step(f"Replaying {len(workload)} jobs on {len(nodes)} nodes") as step:
        for source in SOURCES:
            step.update(f"run times: {source}")
            replays[source] = replay_jobs(nodes, workload, source, options)
    common = set.intersection(*(set(replays[source].estimates) for source in SOURCES if source != "none"))
    found = {source: measure(replay, common if source != "none" else ()) for source, replay in replays.items()}
    params = {
        "file": path.name,
        "jobs": len(workload),
        "skipped_rows": skipped,
        "every": options.every,
        "nodes": count,
        "load": options.load if not options.nodes else None,
        "fleet": _FLEET,
        "estimate_every": options.estimate_every,
        "late": options.late,
        "seed": options.seed,
    }
    metrics = {name: {source: found[source][name] for source in SOURCES} for name in found["none"]}
    return report.Report("eta", params, metrics, machine)


def replay_jobs(nodes: Sequence[Node], workload: Workload, source: str, options: Options) -> Replay:
    """Replay the jobs with one source of run times."""
    real_s = np.array([job.duration_s for job in workload.jobs])
    declared_s = declare_run_times(real_s, options.seed, options.late)
    history = CausalHistory()
    predict = choose_source(
        source, dict(zip((job.name for job in workload.jobs), declared_s.tolist(), strict=True)), history
    )
    told: dict[int, Eta] = {}
    settings = SimulationOptions(
        predict=lambda job, _left_s: predict(job), told=told, told_every=options.estimate_every, slowdowns={}
    )
    watchers = (history,) if source in ("predicted", "both") else ()
    done = Simulation(World.from_nodes(nodes), workload, registry.find_policy("kgwe"), settings, watchers).run()
    return collect(done.records, told)


def choose_source(source: str, declared_s: dict[str, float], history: CausalHistory) -> Callable[[Job], RunTime | None]:
    """Return the run times of one source."""
    known: dict[str, Callable[[Job], RunTime | None]] = {
        "declared": lambda job: declared_run_time(declared_s[job.name]),
        "predicted": history.predict,
        "both": lambda job: combine_run_times(declared_run_time(declared_s[job.name]), history.predict(job)),
        "none": lambda _job: None,
    }
    return known[source]


class CausalHistory:
    """The predictor, fed with the starts and ends of a simulation as they happen."""

    def __init__(self) -> None:
        self._predictor = Predictor(SCHEMA)

    def predict(self, job: Job) -> RunTime | None:
        """Return the prediction at the submission of a job; None if no similar job has ended."""
        found = self._predictor.predict(_make_query(job, job.arrival_s))
        if not found.is_known:
            return None
        p50_s = max(found.quantiles[0.5], _SHORTEST_S)
        return RunTime(p50_s, max(found.upper_s, p50_s))

    def moment(self, simulation: Simulation, at_s: float) -> None:
        """Do nothing: only starts and ends count."""

    def on_start(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
        del simulation, grants
        self._predictor.submit(job.name, _make_query(job, at_s))

    def on_end(self, simulation: Simulation, at_s: float, job: Job) -> None:
        del simulation
        self._predictor.end(job.name, job.duration_s, at_s)


def _make_query(job: Job, now_s: float) -> Query:
    gpus = job.milli / GPU_MILLI
    keys = (f"v|{job.user}|{gpus:g}", f"v|{job.user}", f"g|{gpus:g}")
    return Query(now_s, keys, job.user, _LANE, (gpus,), _SHARED)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """One replay: the waits of all jobs, and the jobs whose start was estimated."""

    waits_s: Floats
    asked: int
    """Jobs that waited and for which an estimate was asked."""
    estimates: dict[int, tuple[float, float, float]]
    """Job -> median and 90th percentile of the estimated start, and the real start. Jobs without an estimate: none."""


def collect(records: Sequence[JobRecord], told: dict[int, Eta]) -> Replay:
    """Return the estimates beside the real starts."""
    waits = [record.wait_s for record in records if record.wait_s is not None]
    estimates = {
        number: (eta.p50_s, np.inf if eta.p90_s is None else eta.p90_s, start_s)
        for number, eta in told.items()
        if eta.p50_s is not None and (start_s := records[number].first_start_s) is not None
    }
    return Replay(np.array(waits), len(told), estimates)


def measure(replay: Replay, common: Collection[int]) -> dict[str, Any]:
    """Return the metrics of one source; `common`: jobs that every source but none could estimate."""
    p50, p90, real = np.array(list(replay.estimates.values()), np.float64).reshape(-1, 3).T
    shared = [abs(replay.estimates[number][0] - replay.estimates[number][2]) for number in common]
    is_known = len(real) > 0
    return {
        "start_error_s": _summarize(np.abs(p50 - real)),
        "common_start_error_s": _summarize(np.array(shared if is_known else ())),
        "p90_coverage": round(float((real <= p90).mean()), 4) if is_known else None,
        "mean_wait_s": round(float(replay.waits_s.mean()), 1),
        "estimated": len(real),
        "unknown_share": round(1 - len(real) / max(replay.asked, 1), 4),
    }


def _summarize(error_s: Floats) -> dict[str, float | None]:
    if not len(error_s):
        return {"mean": None, "median": None}
    return {"mean": round(float(error_s.mean()), 1), "median": round(float(np.median(error_s)), 1)}

"""The mean run time of jobs with and without placement hints, on measured step times.

Jobs of the measured families arrive at nodes with four GPUs each. The engine places their pods one by one, as a
scheduler of single pods does, with and without the communication hint. A job that does not fit waits for its turn. Its
run time follows from the measured step time of the placement that it got. Both runs see the same jobs. The bound is the
run time on as few nodes as possible.
"""

from __future__ import annotations

import csv
import dataclasses
import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.workloads import data
from kgwe.forecast import coefficients
from kgwe.forecast.hints import communication, points
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kgwe.local.host.progress import Progress

    StepTimes = Mapping[tuple[tuple[int, ...], str], float]

GPUS_PER_NODE: Final = 4
_FLEET: Final = "l40s"
_SIZES: Final = (1, 2, 4)
_SIZE_SHARES: Final = (0.4, 0.3, 0.3)
_MEAN_RUN_S: Final = 3600.0
_REQUEST: Final = Request(Gpus(count=1), 1_000, 1 << 30)


@dataclass(frozen=True, slots=True)
class Options:
    data: Path | None = None
    nodes: int = 16
    jobs: int = 400
    load: float = 0.5
    seeds: int = 10


@dataclass(frozen=True, slots=True)
class Job:
    arrives_s: float
    family: str
    size: str
    """Batch size per GPU, as the file writes it."""
    gpus: int
    steps: float


@dataclass(frozen=True, slots=True)
class Outcome:
    run_s: float
    wait_s: float
    nodes: int
    gpus: int


def run(options: Options, progress: Progress) -> report.Report:
    """Replay the same jobs with and without hints."""
    if min(options.nodes, options.jobs, options.seeds) < 1 or not 0 < options.load <= 1:
        raise errors.Permanent("--nodes, --jobs and --seeds must be at least 1, --load above 0 and at most 1")
    machine = report.examine_machine()
    folder = data.find_folder("placement-sensitivity", options.data, "bert.csv")
    tables = {path.stem: read_step_times(path) for path in sorted(folder.glob("*.csv"))}
    found: dict[str, list[Outcome]] = {"without": [], "with": []}
    bound: list[float] = []
    with progress.step(f"{options.seeds} replays of {options.jobs} jobs on {options.nodes} nodes, each twice") as step:
        for seed in range(options.seeds):
            step.update(f"seed {seed}")
            jobs = draw_jobs(tables, options, seed)
            bound += [job.steps * _step_time(tables[job.family], (job.gpus,), job.size) for job in jobs]
            for name, use_hints in (("without", False), ("with", True)):
                found[name] += replay(jobs, tables, options.nodes, use_hints=use_hints)
    params = {**dataclasses.asdict(options), "data": str(folder.name), "gpus_per_node": GPUS_PER_NODE}
    return report.Report("hints", params, _summarize(found, bound), machine)


def read_step_times(path: Path) -> dict[tuple[tuple[int, ...], str], float]:
    """Return (GPUs per node, descending; batch size) -> step time, the mean of equal placements."""
    times: dict[tuple[tuple[int, ...], str], list[float]] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                placement = tuple(sorted(map(int, row["placement"]), reverse=True))
                times.setdefault((placement, row["local_bsz"]), []).append(float(row["step_time"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise errors.Permanent(f"{path}: a field is bad or missing: {problem}") from problem
    return {key: float(np.mean(values)) for key, values in times.items()}


def draw_jobs(tables: Mapping[str, StepTimes], options: Options, seed: int) -> list[Job]:
    """Return jobs whose consolidated run times have a mean of an hour, at the wanted load."""
    rng = np.random.default_rng(seed)
    families = sorted(tables)
    mean_gpus = float(np.dot(_SIZES, _SIZE_SHARES))
    gap_s = mean_gpus * _MEAN_RUN_S / (options.load * options.nodes * GPUS_PER_NODE)
    jobs, now_s = [], 0.0
    for _ in range(options.jobs):
        now_s += float(rng.exponential(gap_s))
        family = families[int(rng.integers(len(families)))]
        gpus = int(rng.choice(_SIZES, p=_SIZE_SHARES))
        sizes = sorted({size for placement, size in tables[family] if placement == (gpus,)}, key=float)
        size = sizes[int(rng.integers(len(sizes)))]
        run_s = float(rng.lognormal(math.log(_MEAN_RUN_S) - 0.5, 1.0))
        jobs.append(Job(now_s, family, size, gpus, run_s / _step_time(tables[family], (gpus,), size)))
    return jobs


def replay(jobs: list[Job], tables: Mapping[str, StepTimes], nodes: int, *, use_hints: bool) -> list[Outcome]:
    """Run the jobs in order of arrival; a job that does not fit holds up those behind it."""
    snapshot = _make_snapshot(nodes)
    engine = Engine(snapshot)
    running: list[tuple[float, int, list[Callable[[], None]]]] = []
    outcomes = []
    now_s = 0.0
    for number, job in enumerate(jobs):
        now_s = max(now_s, job.arrives_s)
        while running and running[0][0] <= now_s:
            _finish(running)
        while (placed := _place(engine, snapshot, job, use_hints=use_hints)) is None:
            now_s = _finish(running)
        counts, undos = placed
        run_s = job.steps * _step_time(tables[job.family], counts, job.size)
        heapq.heappush(running, (now_s + run_s, number, undos))
        outcomes.append(Outcome(run_s, now_s - job.arrives_s, len(counts), job.gpus))
    return outcomes


def _finish(running: list[tuple[float, int, list[Callable[[], None]]]]) -> float:
    ended_s, _, undos = heapq.heappop(running)
    for undo in undos:
        undo()
    return ended_s


def _place(
    engine: Engine, snapshot: Snapshot, job: Job, *, use_hints: bool
) -> tuple[tuple[int, ...], list[Callable[[], None]]] | None:
    """Place the pods one by one; None, with nothing placed, if one does not fit."""
    shipped = coefficients.load()
    slowdown = communication.find_slowdown(shipped.communication, job.family, job.gpus)
    peers = np.zeros(len(snapshot), dtype=np.int64)
    undos: list[Callable[[], None]] = []
    for _ in range(job.gpus):
        hint = None
        if use_hints:
            room = (snapshot.milli >= _REQUEST.gpus.count * 1000).sum(axis=1)
            part = communication.score_communication(slowdown, job.gpus, peers, room)
            hint = points.combine_hints(len(snapshot), {"communication": part}).points
        decision = engine.decide(_REQUEST, hint=hint)
        if not isinstance(decision, Decision):
            for undo in undos:
                undo()
            return None
        undos.append(snapshot.commit(decision.grant))
        peers[decision.node] += 1
    return tuple(sorted(peers[peers > 0].tolist(), reverse=True)), undos


def _step_time(times: StepTimes, placement: tuple[int, ...], size: str) -> float:
    found = times.get((placement, size))
    if found is not None:
        return found
    # A placement that was not measured with this batch size: the nearest number of nodes that was.
    near = [
        time
        for (other, batch), time in times.items()
        if batch == size and sum(other) == sum(placement) and len(other) == len(placement)
    ]
    if not near:
        raise errors.Permanent(f"no step time for placement {placement} and batch size {size}")
    return float(np.mean(near))


def _make_snapshot(nodes: int) -> Snapshot:
    """Return nodes of which four GPUs are usable."""
    listed = fleets.build_nodes(inventory.expand_fleet(models.load(_FLEET), nodes))
    mask = (1 << GPUS_PER_NODE) - 1
    return Snapshot.from_nodes(dataclasses.replace(node, healthy=mask) for node in itertools.islice(listed, nodes))


def _summarize(found: Mapping[str, list[Outcome]], bound: list[float]) -> dict[str, Any]:
    mean_run = {name: float(np.mean([each.run_s for each in outcomes])) for name, outcomes in found.items()}
    several = {name: [each for each in outcomes if each.gpus > 1] for name, outcomes in found.items()}
    least = float(np.mean(bound))
    return {
        "mean_run_s": round(mean_run["with"], 1),
        "baseline_mean_run_s": round(mean_run["without"], 1),
        "bound_mean_run_s": round(least, 1),
        "gain": round(1.0 - mean_run["with"] / mean_run["without"], 4),
        "gap_closed": round((mean_run["without"] - mean_run["with"]) / max(mean_run["without"] - least, 1e-9), 4),
        "mean_wait_s": {name: round(float(np.mean([each.wait_s for each in many])), 1) for name, many in found.items()},
        "nodes_per_job": {name: _mean_nodes(outcomes) for name, outcomes in several.items()},
    }


def _mean_nodes(outcomes: list[Outcome]) -> float:
    return round(float(np.mean([each.nodes for each in outcomes])), 3) if outcomes else 1.0

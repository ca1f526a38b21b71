"""`kgwe bench packing`: the published FGD experiment on real traces, with KGWE's policy and the published ones.

One run is a trace, a policy and a seed. Runs are independent, so the number of processes does not change the results.
Published results, if the data directory has them, are shown too. The cutting-stock limit of each trace is the upper
bound.
"""

from __future__ import annotations

import csv
import functools
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.bench import report
from kgwe.sim.packing import POLICIES, limit, replay
from kgwe.sim.packing.fragmentation import idle_by_cause
from kgwe.sim.traces import openb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.local.host.progress import Progress
    from kgwe.placement.packing.policy import Mix

ALL_POLICIES = tuple(POLICIES)
OURS = "MixFit"
REFERENCE = "FGD"
FIRST_SEED = 42  # of the original experiment
# Names of the original, numbered as in its figures.
_PUBLISHED_NAMES = {
    "01-Random": "Random",
    "02-DotProd": "DotProd",
    "03-GpuClustering": "GpuClustering",
    "04-GpuPacking": "GpuPacking",
    "05-BestFit": "BestFit",
    "06-FGD": "FGD",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    # Names of traces in the data directory; empty means all. Ignored if trace_files is set.
    traces: tuple[str, ...] = ()
    trace_files: tuple[Path, ...] = ()
    node_file: Path | None = None
    policies: tuple[str, ...] = ALL_POLICIES
    seeds: int = 10
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    trace_file: Path
    node_file: Path
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    alloc_100: float
    alloc_130: float
    frag_50: float
    failed: int
    seconds: float
    # CPU seconds of this process, which other load on the machine does not change.
    cpu_seconds: float
    idle_by_cause: dict[str, float]


def run(options: Options, progress: Progress) -> report.Report:
    """Run the experiment."""
    unknown = sorted(set(options.policies) - set(POLICIES))
    if unknown:
        raise errors.Permanent(f"unknown policy {', '.join(unknown)}; known policies: {', '.join(POLICIES)}")
    if options.seeds < 1 or options.jobs < 1:
        raise errors.Permanent("--seeds and --jobs must be at least 1")
    machine = report.examine_machine()
    node_file, trace_files = _find_files(options)
    doubled = [name for name, count in Counter(map(trace_name, trace_files)).items() if count > 1]
    if doubled:
        raise errors.Permanent(f"two traces have the name {doubled[0]}; rename one of the files")
    runs = [
        Run(trace_file, node_file, policy, FIRST_SEED + i)
        for trace_file in trace_files
        for policy in options.policies
        for i in range(options.seeds)
    ]
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    with progress.step(f"{len(runs)} runs of the packing experiment") as step:
        for done, (each, outcome) in enumerate(_execute(runs, options.jobs), start=1):
            outcomes.setdefault((trace_name(each.trace_file), each.policy), []).append(outcome)
            step.update(f"{done} of {len(runs)}: {trace_name(each.trace_file)}, {each.policy}, seed {each.seed}")
    limits = {trace_name(path): _compute_limit(path) for path in trace_files}
    published = _read_published(node_file.parent / openb.PUBLISHED_FILE)
    params = {
        "traces": list(limits),
        "policies": list(options.policies),
        "seeds": options.seeds,
        "first_seed": FIRST_SEED,
        "tune": openb.TUNE,
        "jobs": options.jobs,
    }
    return report.Report("packing", params, summarize(outcomes, limits, published), machine)


def trace_name(path: Path) -> str:
    return path.stem.removeprefix("openb_pod_list_")


def execute(run: Run) -> Outcome:
    """Run one replay from an empty fleet."""
    trace, nodes = _trace(run.trace_file), _nodes(run.node_file)
    mix = _count_mix(run.trace_file)
    experiment = openb.draw_experiment(trace, nodes, run.seed)
    started, cpu_started = time.perf_counter(), time.process_time()
    recording = replay.replay(experiment, mix, POLICIES[run.policy], seed=run.seed)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Outcome(
        alloc_100=recording.allocation_at(100),
        alloc_130=recording.allocation_at(130),
        frag_50=recording.fragment_at(50),
        failed=recording.failed,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        idle_by_cause={str(cause): value for cause, value in idle_by_cause(recording.fleet, mix).items()},
    )


def summarize(
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]],
    limits: Mapping[str, float],
    published: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return means over seeds: of the first trace by policy, of each trace, and KGWE compared with published results
    and limit.
    """
    traces = list(dict.fromkeys(trace for trace, _ in outcomes))
    policies = list(dict.fromkeys(policy for _, policy in outcomes))

    def table(number: Callable[[Sequence[Outcome]], float]) -> dict[str, dict[str, float]]:
        return {policy: {trace: round(number(outcomes[trace, policy]), 3) for trace in traces} for policy in policies}

    alloc_100 = table(lambda seeds: statistics.fmean(each.alloc_100 for each in seeds))
    alloc_130 = table(lambda seeds: statistics.fmean(each.alloc_130 for each in seeds))
    frag_50 = table(lambda seeds: statistics.fmean(each.frag_50 for each in seeds))
    seconds = table(lambda seeds: statistics.median(each.seconds for each in seeds))
    cpu_seconds = table(lambda seeds: statistics.median(each.cpu_seconds for each in seeds))
    known = {policy: {t: row[t] for t in traces if t in row} for policy, row in published.items() if policy in policies}
    metrics: dict[str, Any] = {
        "trace": traces[0],
        "alloc_100": {policy: alloc_100[policy][traces[0]] for policy in policies},
        "alloc_130": {policy: alloc_130[policy][traces[0]] for policy in policies},
        "frag_50": {policy: frag_50[policy][traces[0]] for policy in policies},
        "seconds_per_run": {policy: seconds[policy][traces[0]] for policy in policies},
        "cpu_seconds_per_run": {policy: cpu_seconds[policy][traces[0]] for policy in policies},
        "alloc_100_by_trace": alloc_100,
        "alloc_100_sd_by_trace": table(lambda seeds: statistics.pstdev(each.alloc_100 for each in seeds)),
        "alloc_130_by_trace": alloc_130,
        "frag_50_by_trace": frag_50,
        "seconds_per_run_by_trace": seconds,
        "published": {policy: row for policy, row in known.items() if row},
        "limit": {trace: round(limits[trace], 3) for trace in traces},
    }
    if OURS in policies:
        metrics["idle_by_cause"] = _mean_causes(outcomes[traces[0], OURS])
        metrics |= _compare_with_reference(alloc_100, metrics["limit"], published.get(REFERENCE, {}))
    return metrics


def _compare_with_reference(
    alloc_100: Mapping[str, Mapping[str, float]], limits: Mapping[str, float], published: Mapping[str, float]
) -> dict[str, Any]:
    """Return the points above FGD (published, or of this run), and the fraction of the possible gain."""
    reference = {**alloc_100.get(REFERENCE, {}), **{t: v for t, v in published.items() if t in limits}}
    ours = alloc_100[OURS]
    return {
        "above_fgd": {trace: round(ours[trace] - value, 3) for trace, value in reference.items()},
        "gap_closed": {
            trace: round((ours[trace] - value) / (limits[trace] - value), 3)
            for trace, value in reference.items()
            if limits[trace] > value
        },
    }


def _mean_causes(outcomes: Sequence[Outcome]) -> dict[str, float]:
    causes = outcomes[0].idle_by_cause
    return {cause: round(statistics.fmean(each.idle_by_cause[cause] for each in outcomes), 3) for cause in causes}


def _execute(runs: Sequence[Run], jobs: int) -> Iterator[tuple[Run, Outcome]]:
    if jobs == 1:
        yield from ((each, execute(each)) for each in runs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from zip(runs, pool.map(execute, runs), strict=True)
        except BaseException:
            # After Ctrl-C or a failed run, cancel the runs that have not started.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _find_files(options: Options) -> tuple[Path, tuple[Path, ...]]:
    if options.node_file and options.trace_files:
        return options.node_file, options.trace_files
    folder = openb.find_folder()
    node_file = options.node_file or folder / openb.NODE_FILE
    if options.trace_files:
        return node_file, options.trace_files
    there = {trace_name(path): path for path in sorted(folder.glob("openb_pod_list_*.csv"))}
    missing = [name for name in options.traces if name not in there]
    if missing:
        raise errors.NotFound(f"no trace {', '.join(missing)} in {folder}; available: {', '.join(there)}")
    # The best-known trace comes first.
    names: Iterable[str] = options.traces or sorted(there, key=lambda name: (name != "default", name))
    return node_file, tuple(there[name] for name in names)


def _compute_limit(trace_file: Path) -> float:
    cards: Counter[int] = Counter()
    for pod in _trace(trace_file).pods:
        cards[pod.demand.gpu_milli] += pod.demand.num_gpu
    return limit.fullest_allocation(cards)


def _read_published(path: Path) -> dict[str, dict[str, float]]:
    """Return the published mean allocation at 100 % by policy and trace; empty if the file does not exist."""
    published: dict[str, dict[str, float]] = {}
    if not path.is_file():
        return published
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["stat"] == "mean":
                policy = _PUBLISHED_NAMES.get(row["policy"], row["policy"])
                published.setdefault(policy, {})[trace_name(Path(row["workload"]))] = float(row["arr_100"])
    return published


# A worker runs many seeds of the same files.
_trace = functools.lru_cache(maxsize=2)(openb.read_trace)
_nodes = functools.lru_cache(maxsize=2)(openb.read_nodes)


@functools.lru_cache(maxsize=2)
def _count_mix(trace_file: Path) -> Mix:
    return openb.count_mix(_trace(trace_file).pods)

"""`kgwe bench cluster`: end to end, on a real control plane with simulated nodes.

Each phase gets a cluster of its own: same nodes, empty etcd, empty caches, no garbage of the phase before to collect
and no history that makes the API server's lists longer. A start takes some seconds; cleaning thousands of objects up
takes longer and is never quite complete. Phases of one round run one after the other, so that they share nothing but
the machine; with several rounds each number is the median, and the ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kgwe import errors
from kgwe.bench import fill, report
from kgwe.bench.load import Kind, Load, Phase
from kgwe.bench.nodes import NodeSet, slots
from kgwe.local import binaries, build, paths
from kgwe.local.cluster import ClusterOptions, LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kgwe.bench.fill import PhaseResult
    from kgwe.local.progress import Progress

Scenario = Literal["fill"]
ALL_PHASES = tuple(Phase)
# Their names carry the pid of who started them; whatever a killed benchmark left behind is recognised by it.
_PREFIX = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    scenario: Scenario = "fill"
    nodes: int = 100
    workloads: int = 200
    # The fleet model the nodes are made from, unless gpus_per_node asks for plain ones.
    fleet: str = "dgx-h100"
    gpus_per_node: int | None = None
    gpus_per_workload: int = 1
    kind: Kind = "kgwe"
    strategy: str = "leastLoaded"
    phases: tuple[Phase, ...] = ALL_PHASES
    warm_up: int = 20
    repeat: int = 1
    seed: int = 1
    timeout_s: float = 600.0
    # Leave the last cluster running.
    keep: bool = False
    # Where to write a cProfile of the controller; it costs the controller about half its speed.
    profile: Path | None = None

    @property
    def node_set(self) -> NodeSet:
        return NodeSet(self.nodes, self.fleet, self.gpus_per_node)

    def check(self) -> None:
        """Permanent when the work cannot fit, before minutes are spent on finding out."""
        least = {
            "nodes": self.nodes,
            "workloads": self.workloads,
            "gpus-per-node": 1 if self.gpus_per_node is None else self.gpus_per_node,
            "gpus-per-workload": self.gpus_per_workload,
            "repeat": self.repeat,
        }
        for name, value in least.items():
            if value < 1:
                raise errors.Permanent(f"--{name} {value}: must be at least 1")
        if not self.phases:
            raise errors.Permanent(f"--phases: name at least one of {', '.join(ALL_PHASES)}")
        room = slots(self.node_set.gpus(), self.gpus_per_workload)
        if (asked := max(self.workloads, self.warm_up)) > room:
            raise errors.Permanent(
                f"{asked} workloads of {self.gpus_per_workload} GPUs do not fit: {self.nodes} nodes hold {room}.\n"
                f"Next: more --nodes, or fewer --workloads or --warm-up."
            )


def run(options: Options, progress: Progress) -> report.Report:
    """Measure every phase `repeat` times."""
    options.check()
    _sweep()
    found = build.ensure(progress)
    machine = report.examine_machine(kubernetes=_version(found))
    began = time.monotonic()
    rounds = []
    for number in range(1, options.repeat + 1):
        suffix = f", round {number} of {options.repeat}" if options.repeat > 1 else ""
        results = {}
        for phase in options.phases:
            last = number == options.repeat and phase is options.phases[-1]
            with _private_cluster(phase, found, progress, keep=options.keep and last) as cluster:
                results[phase] = _measure(cluster, phase, options, progress, suffix)
        rounds.append(results)
    params = {**dataclasses.asdict(options), "profile": options.profile is not None}
    return report.Report("cluster", params, summarize(rounds, wall_s=time.monotonic() - began), machine)


def _measure(cluster: LocalCluster, phase: Phase, options: Options, progress: Progress, suffix: str) -> PhaseResult:
    work = Load(phase, options.kind, options.gpus_per_workload, options.strategy)
    size = fill.Size(options.node_set, options.workloads, options.warm_up, timeout_s=options.timeout_s)
    title = f"Filling {options.nodes} nodes: {options.workloads} {phase}{suffix}"
    with progress.step(title) as step, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(fill.measure(cluster, work, size, step, seed=options.seed, profile=options.profile))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where it is installed: the submitter shares the machine with what it measures."""
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return None
    return uvloop.new_event_loop


# --- what it comes to ----------------------------------------------------------------------------------

_RATES = {
    Phase.WORKLOADS: "workloads_per_s",
    Phase.JOBS: "kube_scheduler_jobs_per_s",
    Phase.PODS: "kube_scheduler_pods_per_s",
    Phase.NULL: "null_pods_per_s",
}


def summarize(rounds: Sequence[Mapping[Phase, PhaseResult]], *, wall_s: float) -> dict[str, Any]:
    """The metrics of a report: medians over the rounds, what must be zero as sums."""
    medians = {phase: _median([each[phase] for each in rounds]) for phase in rounds[0]}
    metrics: dict[str, Any] = {key: medians[phase]["per_s"] for phase, key in _RATES.items() if phase in medians}
    if mine := medians.get(Phase.WORKLOADS):
        metrics["pods_per_s"] = mine["per_s"]
        metrics |= {key: mine[key] for key in ("bind_p50_s", "bind_p99_s", "api_writes_per_pod")}
        metrics |= {key: mine[key] for key in ("rss_mb", "rss_peak_mb")}
        metrics["cpu_s"] = mine["cpu_s"].get("kgwe-scheduler")
    if baseline := medians.get(Phase.JOBS):
        metrics |= {f"baseline_{key}": baseline[key] for key in ("bind_p50_s", "bind_p99_s", "api_writes_per_pod")}
    if mine and baseline:
        metrics["ratio"] = round(
            statistics.median(each[Phase.WORKLOADS].per_s / each[Phase.JOBS].per_s for each in rounds), 3
        )
    for key in ("unbound", "doubled", "oversubscribed"):
        metrics[key] = sum(getattr(result, key) for each in rounds for result in each.values())
    metrics["wall_s"] = round(wall_s, 1)
    metrics["phases"] = {str(phase): numbers for phase, numbers in medians.items()}
    if len(rounds) > 1:
        metrics["rounds_per_s"] = {str(phase): [each[phase].per_s for each in rounds] for phase in rounds[0]}
    return metrics


def is_correct(metrics: Mapping[str, Any]) -> bool:
    """Whether everything was bound exactly once and nothing was promised twice."""
    return not any(metrics[key] for key in ("unbound", "doubled", "oversubscribed"))


def _median(results: Sequence[PhaseResult]) -> dict[str, Any]:
    return _merge([msgspec.to_builtins(result) for result in results])


def _merge(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each number; a key that only some have counts as zero in the others."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in several for key in each):
        values = [each.get(key, 0) for each in several]
        if any(isinstance(value, dict) for value in values):
            merged[key] = _merge([value or {} for value in values])
        elif isinstance(values[0], bool):
            merged[key] = all(values)
        else:
            merged[key] = round(statistics.median(values), 3) if len(values) > 1 else values[0]
    return merged


# --- clusters ------------------------------------------------------------------------------------------


@contextmanager
def _private_cluster(
    phase: Phase, found: binaries.Binaries, progress: Progress, *, keep: bool
) -> Iterator[LocalCluster]:
    """A fresh cluster that is gone afterwards, whatever happens; one to be kept is named so that no sweep takes it."""
    name = f"{_PREFIX}-{'kept-' if keep else ''}{os.getpid()}-{phase}"
    cluster = LocalCluster(name)
    try:
        yield LocalCluster.start(ClusterOptions(name), binaries=found, progress=progress)
    finally:
        if not keep:
            cluster.stop(grace_s=5.0)
    if keep:
        progress.note(f"Cluster {name!r} is kept. `kgwe local down --name {name}` removes it.")


def _sweep() -> None:
    """Remove what a benchmark left behind that was killed before it could clean up."""
    for name in paths.cluster_names():
        prefix, pid, *_ = (*name.split("-"), "")
        if prefix == _PREFIX and pid.isdigit() and not Path("/proc", pid).exists():
            LocalCluster(name).stop()


def _version(found: binaries.Binaries) -> str:
    return found.found["kube-apiserver"].version

"""`kgwe bench cluster`: GPUWorkloads end to end on private local clusters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from kgwe.bench import cluster as bench
from kgwe.bench.load import Kind, Phase  # noqa: TC001 -- cyclopts reads annotations at run time
from kgwe.cli.bench.command import INTERRUPTED, Json, complain, end_on_sigterm, show
from kgwe.local import progress

app = App(
    name="cluster",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench cluster
  kgwe bench cluster --nodes 1000 --workloads 2000 --json
  kgwe bench cluster --phases jobs workloads --repeat 5
  kgwe bench cluster --phases workloads --profile controller.prof""",
)


@app.default
def run(
    *,
    scenario: Literal["fill"] = "fill",
    nodes: int = 100,
    workloads: int = 200,
    fleet: str = "dgx-h100",
    gpus_per_node: int | None = None,
    gpus_per_workload: int = 1,
    kind: Kind = "kgwe",
    strategy: str = "leastLoaded",
    phases: Annotated[tuple[Phase, ...], Parameter(consume_multiple=True)] = bench.ALL_PHASES,
    warm_up: int = 20,
    repeat: int = 1,
    seed: int = 1,
    timeout_s: float = 600.0,
    keep: bool = False,
    profile: Path | None = None,
    json: Json = False,
) -> int:
    """Run GPUWorkloads end to end against kube-scheduler alone, on private local clusters.

    Every phase fills a fresh cluster of simulated nodes with the same pods. Its time
    runs from the first submission to the last binding, by the API server's clock.
    Exit code 1 when a pod was bound twice, not at all, or where there was no room.

    Parameters
    ----------
    scenario
        fill: submit all at once into an empty cluster.
    nodes
        Simulated nodes.
    workloads
        Pieces of work, one pod each.
    fleet
        Model of the nodes: a name such as dgx-h100 or mixed, or a file.
    gpus_per_node
        Plain nodes with that many GPUs instead of a fleet model.
    gpus_per_workload
        GPUs of every pod.
    kind
        kgwe (kgwe.nvidia.io/v1) or warp (gpu.warp.dev/v1alpha1). Pods of the warp kind end after 10 s.
    strategy
        Node strategy of the workloads.
    phases
        null: pods bound by a loop that does not think; pods, jobs: kube-scheduler alone; workloads: the controller.
    warm_up
        Pieces of work run and removed before each measurement.
    repeat
        Rounds over all phases; numbers are medians.
    seed
        Seed of the controller's random strategy.
    timeout_s
        Longest wait, in seconds, for any step of a phase.
    keep
        Leave the cluster of the last phase running.
    profile
        Write a cProfile of the controller to this file. It slows the controller down.
    """
    options = bench.Options(
        scenario=scenario,
        nodes=nodes,
        workloads=workloads,
        fleet=fleet,
        gpus_per_node=gpus_per_node,
        gpus_per_workload=gpus_per_workload,
        kind=kind,
        strategy=strategy,
        phases=phases,
        warm_up=warm_up,
        repeat=repeat,
        seed=seed,
        timeout_s=timeout_s,
        keep=keep,
        profile=profile,
    )
    end_on_sigterm()
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        sys.stderr.write("kgwe: interrupted; everything the benchmark started has been stopped.\n")
        return INTERRUPTED
    show(measured, as_json=json)
    if bench.is_correct(measured.metrics):
        return 0
    return complain("the run was not correct: see unbound, doubled and oversubscribed.")

"""`kgwe bench cluster`: GPU work end to end on private local clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe.bench.cluster import benchmark as bench
from kgwe.bench.cluster import scenarios
from kgwe.bench.cluster.load import Kind  # noqa: TC001 -- cyclopts reads annotations at run time
from kgwe.bench.cluster.measure import summary
from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show, to_end
from kgwe.local.host import progress

app = App(
    name="cluster",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench cluster                                         1,000 one-GPU pods on 500 nodes
  kgwe bench cluster --scenario gangs --json
  kgwe bench cluster --scenario biggang --phases kube-scheduler gate kgwe --repeat 4
  kgwe bench cluster --scenario workloads --pods 200 --nodes 100
  kgwe bench cluster --phases kgwe --repeat 1 --profile kgwe.prof""",
)


@app.default
def run(
    *,
    scenario: Scenario = Scenario.FILL,
    nodes: int | None = None,
    pods: int | None = None,
    gangs: int | None = None,
    gang_size: int | None = None,
    gpus: int | None = None,
    leaf: int | None = None,
    taken: float | None = None,
    free_nodes: int | None = None,
    gpus_per_node: int = 8,
    fleet: str | None = None,
    kind: Kind = "kgwe",
    strategy: str = "leastLoaded",
    phases: Annotated[tuple[Phase, ...], Parameter(consume_multiple=True)] = bench.USUAL_PHASES,
    warm_up: int = 300,
    repeat: int = 2,
    seed: int = 1,
    timeout_s: float = 600.0,
    keep: bool = False,
    profile: Path | None = None,
    json: Json = False,
) -> int:
    """Run GPU work end to end by KGWE, by kube-scheduler alone and by a null binder, on private local clusters.

    Every phase gets a fresh cluster of simulated nodes and the same pods. Time runs from the first
    submission to the last binding, by the API server's clock. Exit code 1 when a pod was bound twice, not at
    all, or where there was no room, or when KGWE bound a gang in part.

    Parameters
    ----------
    scenario
        fill, queued, gangs, biggang, impossible, fragmented, workloads or restart; sizes left out are its own.
    nodes
        Simulated nodes.
    pods
        Pods that come one by one (fill, workloads) or run already (restart).
    gangs
        Gangs, where there are any.
    gang_size
        Pods of each gang; in fragmented every other gang is half as large.
    gpus
        GPUs of every pod; in fragmented half as many in every other gang.
    leaf
        Nodes per leaf of the network.
    taken
        Share of all GPUs taken beforehand, at random (fragmented).
    free_nodes
        Nodes that are left free (impossible).
    gpus_per_node
        GPUs of every node.
    fleet
        Nodes of a fleet model instead: a name such as dgx-h100 or mixed, or a file.
    kind
        Workloads of kgwe (kgwe.nvidia.io/v1) or warp (gpu.warp.dev/v1alpha1); pods of the latter end after 10 s.
    strategy
        Node strategy of the workloads.
    phases
        null: bound by a loop that does not think; kube-scheduler: that alone; kgwe. Of gangs also gate: kube-scheduler,
        with a loop that takes each pod's gate away and puts its node in.
    warm_up
        Pods run and removed before each measurement, as far as they fit.
    repeat
        Rounds over all phases, every other one backwards; numbers are medians.
    seed
        Seed of what is taken at random.
    timeout_s
        Longest wait, in seconds, for any step of a phase.
    keep
        Leave the cluster of the last phase running.
    profile
        Write a cProfile of KGWE to this file. It slows KGWE down.
    """
    size = scenarios.size_of(
        scenario,
        nodes=nodes,
        pods=pods,
        gangs=gangs,
        gang_size=gang_size,
        gpus=gpus,
        leaf=leaf,
        taken=taken,
        free_nodes=free_nodes,
    )
    options = bench.Options(
        scenario=scenario,
        size=size,
        gpus_per_node=gpus_per_node,
        fleet=fleet,
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
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    if summary.is_correct(measured.metrics, fits_all=scenarios.fits_all(scenario)):
        return 0
    return complain("the run was not correct: see unbound, doubled, oversubscribed and partial_gangs.")

"""`kgwe bench`: reproducible benchmarks, one JSON shape."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from kgwe.bench import cluster as cluster_bench
from kgwe.bench import informer as informer_bench
from kgwe.bench import report
from kgwe.bench.load import Kind, Phase  # noqa: TC001 -- cyclopts reads annotations at run time
from kgwe.local import progress

if TYPE_CHECKING:
    from types import FrameType

app = App(
    name="bench",
    help="""Measure KGWE on this machine.

Progress goes to stderr. With --json the last line of stdout is one JSON object
{"name", "params", "metrics", "machine"}; otherwise a table is printed.
Close other programs first: the machine is part of every number.""",
    help_format="plaintext",
)

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one line of JSON instead of a table.")]


@app.command(
    help_epilogue="""Examples:
  kgwe bench cluster
  kgwe bench cluster --nodes 1000 --workloads 2000 --json
  kgwe bench cluster --phases jobs workloads --repeat 5
  kgwe bench cluster --phases workloads --profile controller.prof"""
)
def cluster(
    *,
    scenario: Literal["fill"] = "fill",
    nodes: int = 100,
    workloads: int = 200,
    fleet: str = "dgx-h100",
    gpus_per_node: int | None = None,
    gpus_per_workload: int = 1,
    kind: Kind = "kgwe",
    strategy: str = "leastLoaded",
    phases: Annotated[tuple[Phase, ...], Parameter(consume_multiple=True)] = cluster_bench.ALL_PHASES,
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
    options = cluster_bench.Options(
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
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        measured = cluster_bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        sys.stderr.write("kgwe: interrupted; everything the benchmark started has been stopped.\n")
        return 128 + signal.SIGINT
    _print(measured, as_json=json)
    if cluster_bench.is_correct(measured.metrics):
        return 0
    sys.stderr.write("kgwe: the run was not correct: see unbound, doubled and oversubscribed.\n")
    return 1


@app.command(
    help_epilogue="""Examples:
  kgwe bench packing
  kgwe bench packing --traces default --policies FGD,MixFit
  kgwe bench packing --trace my_pods.csv --nodes my_nodes.csv --seeds 3 --json"""
)
def packing(
    *,
    traces: str = "all",
    trace: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    nodes: Path | None = None,
    policies: str = "all",
    seeds: int = 10,
    jobs: int | None = None,
    json: Json = False,
) -> int:
    """Replay the published FGD packing experiment on openb traces, our policy beside the published ones.

    GPU pods arrive one by one at a fleet of 6,212 GPUs until they ask for 130 % of it; nothing leaves, nothing moves,
    nothing that fits is refused. Numbers are percent of GPU capacity, means over the seeds. All of it takes about
    ten minutes on two cores; one trace one minute.

    Parameters
    ----------
    traces
        Traces of the data folder, joined by commas, or all. The folder is $KGWE_DATA, or shared/data near here.
    trace
        A pod list of your own in the openb format instead; may be repeated.
    nodes
        A node list of your own in the openb format.
    policies
        Policies, joined by commas, or all: Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, MixFit.
    seeds
        Runs of each trace and policy; the first seed is 42, as published.
    jobs
        Processes to run in; the CPUs of this machine unless given.
    """
    # NumPy is part of the engine extra only, and costs every other benchmark's start.
    from kgwe.bench import packing as packing_bench  # noqa: PLC0415

    options = packing_bench.Options(
        traces=() if traces == "all" else tuple(traces.split(",")),
        trace_files=trace,
        node_file=nodes,
        policies=packing_bench.ALL_POLICIES if policies == "all" else tuple(policies.split(",")),
        seeds=seeds,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    try:
        measured = packing_bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _print(measured, as_json=json)
    return 0


@app.command(
    help_epilogue="""Examples:
  kgwe bench engine
  kgwe bench engine --nodes 1000 10000 --decisions 20000 --json"""
)
def engine(
    *,
    nodes: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1_000, 10_000),
    decisions: int = 5_000,
    naive: int = 40,
    fleet: str = "mixed",
    seed: int = 1,
    json: Json = False,
) -> int:
    """Decide where single pods go in a half-full fleet of nodes with eight GPUs, beside a plain loop over the rules.

    Pods arrive and leave so that the fleet stays half full; the time is that of deciding and booking. Exit code 1
    when the engine and the loop ever chose different nodes.

    Parameters
    ----------
    nodes
        Sizes of the fleet; the numbers at the top are those of the first.
    decisions
        Decisions measured at each size.
    naive
        Decisions the plain loop takes too.
    fleet
        Model of the nodes: a name such as mixed or dgx-h100, or a file. Only machines with eight GPUs are taken.
    seed
        Seed of arrivals and departures.
    """
    from kgwe.bench import engine as engine_bench  # noqa: PLC0415 - NumPy: see packing

    options = engine_bench.Options(nodes=nodes, decisions=decisions, naive=naive, fleet=fleet, seed=seed)
    try:
        measured = engine_bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _print(measured, as_json=json)
    if engine_bench.is_correct(measured.metrics):
        return 0
    sys.stderr.write("kgwe: the engine and the loop chose different nodes: see naive_agreed.\n")
    return 1


@app.command(
    help_epilogue="""Examples:
  kgwe bench informer
  kgwe bench informer --pods 10000 --json"""
)
def informer(
    *,
    pods: int = 10_000,
    page_size: int = 500,
    lists: int = 3,
    repeat: int = 3,
    json: Json = False,
) -> int:
    """List every pod of a big cluster with our informer, with lightkube's typed client, and into dictionaries.

    Wall and CPU time per pod and memory, on a private local cluster, each way in processes of its own.
    With 10,000 pods it takes a few minutes, most of them to create the pods.

    Parameters
    ----------
    pods
        Pods to create; nobody schedules them.
    page_size
        Pods per page of a list.
    lists
        Lists per process, after one to warm up.
    repeat
        Processes per way of listing, taken in turns; numbers are medians over all lists.
    """
    options = informer_bench.Options(pods=pods, page_size=page_size, lists=lists, repeat=repeat)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        measured = informer_bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        sys.stderr.write("kgwe: interrupted; everything the benchmark started has been stopped.\n")
        return 128 + signal.SIGINT
    _print(measured, as_json=json)
    return 0


@app.command(
    help_epilogue="""Examples:
  kgwe bench mig
  kgwe bench mig --models A30-24GB --cards 64 --loads 0.9 --json
  kgwe bench mig --mixes inference training --seeds 10 --short 0"""
)
def mig(
    *,
    models: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("A100-80GB", "H100-80GB"),
    cards: int = 16,
    requests: int = 2_500,
    mixes: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    loads: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (0.7, 0.85, 1.0),
    seeds: int = 3,
    short: int = 12,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Serve random streams of MIG requests with our choice of slots, and with those of other systems.

    Requests come and go; one that finds no place is lost. Every policy gets the same streams. Short streams on one and
    two cards are compared with the exact optimum of one who knows the future. Takes about two minutes.

    Parameters
    ----------
    models
        GPU models, each a fleet of its own.
    cards
        Cards of a fleet.
    requests
        Requests of a stream; those that first fill the fleet are not counted.
    mixes
        What is asked for: even, inference, mixed, training, halves, memory, poles; all unless given.
    loads
        Compute slices offered, as a part of those of the fleet.
    seeds
        Streams of each model, mix and load.
    short
        Short streams of each model, mix and size of fleet; 0 leaves the optimum out.
    seed
        Seed of all streams.
    """
    from kgwe.bench import mig as mig_bench  # noqa: PLC0415 - NumPy: see packing

    options = mig_bench.Options(
        models=models,
        cards=cards,
        requests=requests,
        mixes=mixes or mig_bench.ALL_MIXES,
        loads=loads,
        seeds=seeds,
        short=short,
        seed=seed,
    )
    try:
        measured = mig_bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _print(measured, as_json=json)
    return 0


@app.command(
    help_epilogue="""Examples:
  kgwe bench gang
  kgwe bench gang --repeat 20 --json"""
)
def gang(*, repeat: int = 7, seed: int = 1, json: Json = False) -> int:
    """Place gangs on simulated DGX H100 nodes, and refuse an impossible one with reasons.

    512 pods of 2 GPUs with a preferred rack, 50 gangs of 8 nodes, a gang of 20 nodes with 10 free, 1,000 pods on
    5,000 nodes, beside a scheduler that looks at one pod and one node at a time. Takes a few seconds.
    Exit code 1 when a gang that fits a leaf did not get one.

    Parameters
    ----------
    repeat
        Times every plan is made; numbers are medians.
    seed
        Seed of what is taken on the nodes beforehand.
    """
    from kgwe.bench import gang as gang_bench  # noqa: PLC0415 - NumPy: see packing

    try:
        measured = gang_bench.run(gang_bench.Options(repeat=repeat, seed=seed), progress.for_stream())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if json:
        _print(measured, as_json=True)
    else:
        certificate = measured.metrics.pop("certificate")
        _print(measured, as_json=False)
        sys.stdout.write(f"\ncertificate:\n{certificate}\n")
    if gang_bench.is_correct(measured.metrics):
        return 0
    sys.stderr.write("kgwe: a gang did not get the place it could have: see one_leaf_share and unplaced.\n")
    return 1


@app.command
def plans(*, nodes: int = 500, repeat: int = 5, seed: int = 1, json: Json = False) -> int:
    """Time plans of preemption, recovery and defragmentation on simulated nodes; exit code 1 when one is not found.

    Parameters
    ----------
    nodes
        Simulated nodes, with a pod on every card.
    repeat
        Times every plan is made; numbers are medians.
    seed
        Seed of the work on the nodes.
    """
    from kgwe.bench import plans as plans_bench  # noqa: PLC0415 - NumPy: see packing

    measured = plans_bench.run(plans_bench.Options(nodes=nodes, repeat=repeat, seed=seed))
    _print(measured, as_json=json)
    return 0 if plans_bench.is_correct(measured.metrics) else 1


def _print(measured: report.Report, *, as_json: bool) -> None:
    sys.stdout.write((report.to_json(measured) if as_json else report.to_table(measured)) + "\n")
    sys.stdout.flush()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    # As Ctrl-C: the clusters of the benchmark must not outlive it.
    del number, frame
    raise KeyboardInterrupt

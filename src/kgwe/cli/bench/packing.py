"""`kgwe bench packing`: repeats the published packing experiment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="packing",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench packing
  kgwe bench packing --traces default --policies FGD,MixFit
  kgwe bench packing --trace my_pods.csv --nodes my_nodes.csv --seeds 3 --json""",
)


@app.default
def run(
    *,
    traces: str = "all",
    trace: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    nodes: Path | None = None,
    policies: str = "all",
    seeds: int = 10,
    jobs: int | None = None,
    json: Json = False,
) -> int:
    """Repeat the published FGD packing experiment on openb traces, with KGWE's policy and the published ones.

    GPU pods arrive one by one at a fleet of 6,212 GPUs until they request 130 % of it. No pod leaves or moves, and no
    pod that fits is refused. Results are percent of GPU capacity, averaged over the seeds. All traces take about ten
    minutes on two cores, one trace one minute.

    Parameters
    ----------
    traces
        Traces of the data directory, separated by commas, or all. The directory is $KGWE_DATA, or shared/data nearby.
    trace
        Your own pod list in the openb format. May be repeated.
    nodes
        Your own node list in the openb format.
    policies
        Policies, separated by commas, or all: Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, MixFit.
    seeds
        Runs per trace and policy. The first seed is 42, as published.
    jobs
        Parallel processes. Default: one per CPU.
    """
    from kgwe.bench.placement import packing as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        traces=() if traces == "all" else tuple(traces.split(",")),
        trace_files=trace,
        node_file=nodes,
        policies=bench.ALL_POLICIES if policies == "all" else tuple(policies.split(",")),
        seeds=seeds,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

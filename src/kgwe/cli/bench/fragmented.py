"""`kgwe bench fragmented`: leaves per gang on a cluster that is taken in part."""

from __future__ import annotations

import os

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show
from kgwe.local import progress

app = App(
    name="fragmented",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench fragmented
  kgwe bench fragmented --seeds 5 --loads 45 --mixes scenario --json""",
)


@app.default
def run(
    *,
    seeds: int = 60,
    loads: str = "30,45,60,75",
    mixes: str = "scenario,large,small",
    jobs: int | None = None,
    json: Json = False,
) -> int:
    """Place gangs that would rather be in one leaf on 500 nodes that are taken in part, beside other rules.

    Ours beside Kueue's best-fit rule, an even split and first fit, in the same states, with a bound below which no
    arrangement goes. The first numbers are those of the scenario (45 %, gangs of 12 x 8 and 6 x 4 GPUs); the table has
    every mix and load. Takes about two minutes on two cores.
    Exit code 1 when best fit spans fewer leaves on average, or places more gangs and GPUs, with any mix and load.

    Parameters
    ----------
    seeds
        States of the cluster for each mix and load.
    loads
        Percent of all GPUs that are taken, joined by commas.
    mixes
        Mixes of gangs, joined by commas: scenario, large, small.
    jobs
        Processes to run in; the CPUs of this machine unless given.
    """
    from kgwe.bench import fragmented as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        seeds=seeds,
        loads=tuple(int(load) / 100 for load in loads.split(",")),
        mixes=tuple(mixes.split(",")),
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    if not measured.metrics["mixes_worse_than_best_fit"]:
        return 0
    return complain("best fit does better with some mix and load: see by_mix_and_load.")

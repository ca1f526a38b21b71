"""`kgwe bench fragmented`: leaves per gang on a cluster that is taken in part."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show
from kgwe.local.host import progress

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_BAD_USAGE = 2
_MOST_TAKEN = 95

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
    first_seed: int = 1,
    loads: str = "30,45,60,75",
    mixes: str = "scenario,large,whole,small",
    jobs: int | None = None,
    json: Json = False,
) -> int:
    """Place gangs that would rather be in one leaf on 500 nodes that are taken in part, beside other rules.

    Ours beside Kueue's best-fit rule, an even split and first fit, in the same states, with a bound below which no
    arrangement goes. The first numbers are those of the scenario (45 %, gangs of 12 x 8 and 6 x 4 GPUs), which is
    measured whatever mixes and loads are given; the table has every mix and load. Takes minutes on two cores.
    Exit code 1 when, with any mix and load, best fit spans fewer leaves or places more gangs on average, or when the
    scenario has more than 1.52 leaves per gang or is worse than best fit on more than a tenth of the seeds.

    Parameters
    ----------
    seeds
        States of the cluster for each mix and load, at least 1.
    first_seed
        Seed of the first state; those after it follow.
    loads
        Percent of all GPUs that are taken, whole numbers from 0 to 95, joined by commas.
    mixes
        Mixes of gangs, joined by commas: scenario, large, whole, small.
    jobs
        Processes to run in, at least 1; the CPUs of this machine unless given.
    """
    from kgwe.bench.placement import fragmented as bench  # noqa: PLC0415 -- NumPy

    percents, names = _parts(loads), _parts(mixes)
    if problem := _problem(seeds, jobs, percents, names, bench.MIXES):
        sys.stderr.write(f"kgwe: {problem}\n")
        return _BAD_USAGE
    options = bench.Options(
        seeds=seeds,
        first_seed=first_seed,
        loads=tuple(int(load) / 100 for load in percents),
        mixes=names,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    missed = measured.metrics["missed"]
    return complain(f"not reached: {'; '.join(missed)}") if missed else 0


def _parts(text: str) -> tuple[str, ...]:
    """What the commas separate, each value once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _problem(
    seeds: int, jobs: int | None, loads: Sequence[str], mixes: Sequence[str], known_mixes: Collection[str]
) -> str:
    """What is wrong with the options, and what is allowed; empty if nothing is wrong."""
    for option, number in (("--seeds", seeds), ("--jobs", jobs)):
        if number is not None and number < 1:
            return f"{option} {number}: give at least 1"
    for load in loads:
        if not (load.isascii() and load.isdigit() and int(load) <= _MOST_TAKEN):
            return f"--loads {load!r}: give whole percents from 0 to {_MOST_TAKEN}, joined by commas"
    for mix in mixes:
        if mix not in known_mixes:
            return f"--mixes {mix!r}: known mixes are {', '.join(known_mixes)}"
    return ""

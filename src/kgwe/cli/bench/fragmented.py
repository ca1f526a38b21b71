"""`kgwe bench fragmented`: leaves per gang on a partly occupied cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cyclopts import App

from kgwe import terminal
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
    """Place gangs that prefer one leaf on a partly occupied cluster of 500 nodes, and compare with other rules.

    The other rules are Kueue's best fit, an even split and first fit. All rules get the same clusters, and a lower
    bound is shown. The first numbers are those of the scenario (45 % of the GPUs in use, gangs of 12 x 8 and 6 x 4
    GPUs). It is always measured; the table has all mixes and loads. Takes minutes on two cores.

    Exit code 1 if best fit spans fewer leaves or places more gangs on average with any mix and load. Also if the
    scenario has more than 1.52 leaves per gang, or is worse than best fit on more than a tenth of the seeds.

    Parameters
    ----------
    seeds
        Number of clusters for each mix and load, at least 1.
    first_seed
        Seed of the first cluster; the next clusters use the next seeds.
    loads
        Percent of the GPUs that are in use, whole numbers from 0 to 95, separated by commas.
    mixes
        Mixes of gangs, separated by commas: scenario, large, whole, small.
    jobs
        Number of processes, at least 1. Default: the number of CPUs.
    """
    from kgwe.bench.placement import fragmented as bench  # noqa: PLC0415 -- NumPy

    percents, names = _parts(loads), _parts(mixes)
    if problem := _problem(seeds, jobs, percents, names, bench.MIXES):
        terminal.write_error(f"kgwe: {problem}\n")
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

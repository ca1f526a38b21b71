"""`kgwe bench hints`: run times with and without placement hints."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors, terminal
from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="hints",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench hints
  kgwe bench hints --nodes 32 --load 0.9 --json""",
)


@app.default
def run(
    *,
    data: Path | None = None,
    nodes: int = 16,
    jobs: int = 400,
    load: float = 0.5,
    seeds: int = 10,
    json: Json = False,
) -> int:
    """Replay jobs on measured step times and compare their mean run time with and without placement hints.

    Parameters
    ----------
    data
        Folder with the step times of placements, one CSV file per family. Default: placement-sensitivity in $KGWE_DATA,
        or in shared/data nearby.
    nodes
        Nodes with four GPUs each.
    jobs
        Jobs of each replay.
    load
        Share of the GPUs that the jobs need if none is spread.
    seeds
        Replays; each is run with and without hints.
    """
    from kgwe.bench.workloads import hints as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(bench.Options(data, nodes, jobs, load, seeds), progress.for_stream())
    except errors.NotFound as problem:
        terminal.write_error(f"kgwe: {problem}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

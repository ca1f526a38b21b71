"""`kgwe bench interference`: the speed of two jobs on one GPU."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors, terminal
from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="interference",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench interference
  kgwe bench interference --data ../shared/data/sharing --json""",
)


@app.default
def run(*, data: Path | None = None, json: Json = False) -> int:
    """Predict the speeds of jobs that share a GPU, for models that were left out of the fit.

    Results are mean absolute errors of the speed as a share of the speed alone, beside a constant, the sum of both
    activities, gradient boosting, and the coefficients that KGWE ships. Takes about a minute.

    Parameters
    ----------
    data
        Folder with lucid_colocated_pairs.csv and lucid_single_runs.csv. Default: sharing in $KGWE_DATA, or in
        shared/data nearby.
    """
    from kgwe.bench.workloads import interference as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(data, progress.for_stream())
    except errors.NotFound as problem:
        terminal.write_error(f"kgwe: {problem}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

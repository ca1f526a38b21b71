"""`kgwe bench budgets`: jobs under team budgets."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="budgets",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench budgets
  kgwe bench budgets --data ../shared/data/jobs --jobs 5000 --json""",
)


@app.default
def run(*, data: Path | None = None, jobs: int | None = None, json: Json = False) -> int:
    """Replay recorded jobs under monthly budgets of 20 teams and report how far any budget was exceeded.

    Budgets encumber the cost of a job when they admit it. Beside them is a cut-off that looks only at what is spent.

    Parameters
    ----------
    data
        Folder with philly_jobs.csv.gz. Default: jobs in $KGWE_DATA, or in shared/data nearby.
    jobs
        Replay only the first jobs.
    """
    from kgwe.bench.cost import budgets as bench  # noqa: PLC0415 -- starts at once without it

    try:
        measured = bench.run(data, progress.for_stream(), jobs)
    except errors.NotFound as problem:
        return refuse(problem)
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

"""`kgwe bench scaledown`: nodes kept powered for recorded demand."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="scaledown",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench scaledown
  kgwe bench scaledown --data nodes.csv --json
  kgwe bench scaledown --plot scaledown.svg""",
)


@app.default
def run(*, data: Path | None = None, later: float = 0.3, plot: Path | None = None, json: Json = False) -> int:
    """Decide every minute how many nodes stay powered, beside reactive rules.

    The policy reads recorded demand in order and sees only the past. The last part of the file is measured.

    Parameters
    ----------
    data
        Nodes per minute with the columns active and total. Default: demand/philly_active_nodes_1min.csv.gz in
        $KGWE_DATA, or in shared/data nearby.
    later
        Part of the file, at its end, that is measured.
    plot
        Write a chart of nodes in use and powered to this SVG file.
    """
    from kgwe.bench.scaling import scaledown as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(bench.Options(data=data, later=later), progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    if plot is not None:
        bench.write_chart(measured, plot)
    del measured.metrics["series"]
    show(measured, as_json=json)
    return 0

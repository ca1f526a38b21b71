"""`kgwe bench rightsize`: GPU memory limits from history."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="rightsize",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench rightsize
  kgwe bench rightsize --plot frontier.svg
  kgwe bench rightsize --data ../shared/data/history --json""",
)


@app.default
def run(*, data: Path | None = None, plot: Path | None = None, json: Json = False) -> int:
    """Set memory limits from the first half of each history and judge them on the second half.

    Results are the share of containers that exceed their limit, and the mean share of the limit that is not used,
    beside the rules of the Vertical Pod Autoscaler and of KRR.

    Parameters
    ----------
    data
        Folder with pod_gpu_memory_used_bytes.csv.gz. Default: history in $KGWE_DATA, or in shared/data nearby.
    plot
        SVG file for the frontier of each rule.
    """
    from kgwe.bench.workloads import rightsize as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(data, progress.for_stream())
    except errors.NotFound as problem:
        return refuse(problem)
    except KeyboardInterrupt:
        return INTERRUPTED
    if plot is not None:
        bench.write_chart(measured, plot)
    show(measured, as_json=json)
    return 0

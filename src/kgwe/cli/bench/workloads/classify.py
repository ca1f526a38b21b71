"""`kgwe bench classify`: the class of simulated workloads."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="classify",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench classify
  kgwe bench classify --seeds 20 --json""",
)


@app.default
def run(*, seeds: int = 100, json: Json = False) -> int:
    """Classify simulated workloads by usage, by spec, and by both, and print a confusion table for each.

    Each row `usage_Training` and so on counts the answers for workloads of one class.

    Parameters
    ----------
    seeds
        Workloads of each class.
    """
    from kgwe.bench.workloads import classify as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(seeds, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

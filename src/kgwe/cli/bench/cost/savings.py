"""`kgwe bench savings`: measures the savings report on a simulated week."""

from __future__ import annotations

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show

app = App(
    name="savings",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench savings
  kgwe bench savings --pods 2000 --seed 2 --json""",
)


@app.default
def run(*, pods: int = 8000, seed: int = 1, weeks: int = 20, replays: int = 30, json: Json = False) -> int:
    """Simulate a week with and without sharing, packing and spot, and compare it with the report. Takes a minute.

    Parameters
    ----------
    pods
        Pods of the week.
    seed
        Seed of the pods.
    weeks
        Simulated baseline weeks, with other boot times of nodes; their mean is the truth.
    replays
        Replays of each scenario of the report, at most.
    """
    from kgwe.bench.cost import savings as bench  # noqa: PLC0415 -- NumPy and SQLAlchemy

    if min(pods, weeks, replays) < 1:
        return refuse(ValueError("--pods, --weeks and --replays must be at least 1"))
    try:
        measured = bench.run(bench.Options(pods, seed, weeks, replays))
    except errors.KgweError as exc:
        return refuse(exc)
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

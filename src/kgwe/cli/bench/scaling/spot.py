"""`kgwe bench spot`: jobs with a deadline on recorded spot availability."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="spot",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench spot
  kgwe bench spot --start-every-hours 24
  kgwe bench spot --data traces --json""",
)


@app.default
def run(
    *,
    data: Path | None = None,
    work_hours: float = 48.0,
    start_every_hours: float = 6.0,
    replan_hours: float = 48.0,
    all_zones: bool = False,
    plot: Path | None = None,
    json: Json = False,
) -> int:
    """Run jobs with a deadline on recorded spot availability, and predict the breaks of gangs.

    One policy runs in eight settings, beside greedy, uniform progress, spot else on-demand, and a bound that knows the
    future. The policy sees only the past of a trace.

    Parameters
    ----------
    data
        Folder with availability_*.json and preemption_*.json. Default: spot in $KGWE_DATA, or in shared/data nearby.
    work_hours
        Work of each job.
    start_every_hours
        Time between the starts of jobs.
    replan_hours
        Hours after which the policy plans again with what it has learned.
    all_zones
        Report also the zones that the policy was tuned on.
    plot
        Write a chart of the costs to this SVG file, and one of services beside it (NAME-serving.svg).
    """
    from kgwe.bench.scaling import spot as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        data=data,
        work_hours=work_hours,
        start_every_hours=start_every_hours,
        replan_hours=replan_hours,
        all_zones=all_zones,
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    if plot is not None:
        bench.write_chart(measured, plot)
        bench.write_serving_chart(measured, plot.with_stem(f"{plot.stem}-serving"))
    show(measured, as_json=json)
    return 0

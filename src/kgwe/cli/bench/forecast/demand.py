"""`kgwe bench demand`: forecasts of GPU demand on recorded series."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="demand",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench demand
  kgwe bench demand --hourly demand.csv --venus submissions.csv --json""",
)


@app.default
def run(
    *,
    hourly: Path | None = None,
    venus: Path | None = None,
    refit_days: int = 3,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Forecast GPU demand 1, 6 and 24 hours ahead, and GPUs submitted per 10 minutes one hour ahead.

    The last 20 % of the hourly series and the last month of the other one are forecast in the order of time, beside
    persistence, seasonal forecasts and plain LightGBM. Intervals should contain 90 % of the steps.

    Parameters
    ----------
    hourly
        Hourly demand. Default: history/hourly_gpu_demand.csv in $KGWE_DATA, or in shared/data nearby.
    venus
        Submissions per 10 minutes. Default: demand/helios_venus_10min.csv in the same folder.
    refit_days
        Days of the hourly series after which the models are fitted again. The other series: one week.
    seed
        Seed of the training.
    """
    from kgwe.bench.forecast import demand as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(hourly=hourly, venus=venus, refit_days=refit_days, seed=seed)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    show(measured, as_json=json)
    return 0

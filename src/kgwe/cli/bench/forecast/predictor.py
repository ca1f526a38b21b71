"""`kgwe bench predictor`: run-time forecasts on recorded requests."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="predictor",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench predictor
  kgwe bench predictor --train requests.csv --json
  kgwe bench predictor --train january.csv --test february.csv""",
)


@app.default
def run(*, train: Path | None = None, test: Path | None = None, seed: int = 1, json: Json = False) -> int:
    """Predict the run times of recorded requests, each from the requests that had ended before it.

    A model is trained on the earlier requests. The later ones are predicted in the order of time, with an interval
    that should contain 80 % of them. Medians per key are measured beside it.

    Parameters
    ----------
    train
        Requests to train on. Default: history/genai_requests.csv in $KGWE_DATA, or in shared/data nearby.
    test
        Later requests of the same stream. Default: the last 25 % of --train.
    seed
        Seed of the training.
    """
    from kgwe.bench.forecast import predictor as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(bench.Options(train=train, test=test, seed=seed), progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    show(measured, as_json=json)
    return 0

"""`kgwe bench mig`: streams of MIG requests."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="mig",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench mig
  kgwe bench mig --models A30-24GB --cards 64 --loads 0.9 --json
  kgwe bench mig --mixes inference training --seeds 10 --short 0""",
)


@app.default
def run(
    *,
    models: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("A100-80GB", "H100-80GB"),
    cards: int = 16,
    requests: int = 2_500,
    mixes: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    loads: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (0.7, 0.85, 1.0),
    seeds: int = 3,
    short: int = 12,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Serve random streams of MIG requests with our choice of slots, and with those of other systems.

    Requests come and go; one that finds no place is lost. Every policy gets the same streams. Short streams on one and
    two cards are compared with the exact optimum of one who knows the future. Takes about two minutes.

    Parameters
    ----------
    models
        GPU models, each a fleet of its own.
    cards
        Cards of a fleet.
    requests
        Requests of a stream; those that first fill the fleet are not counted.
    mixes
        What is asked for: even, inference, mixed, training, halves, memory, poles; all unless given.
    loads
        Compute slices offered, as a part of those of the fleet.
    seeds
        Streams of each model, mix and load.
    short
        Short streams of each model, mix and size of fleet; 0 leaves the optimum out.
    seed
        Seed of all streams.
    """
    from kgwe.bench.mig import benchmark as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        models=models,
        cards=cards,
        requests=requests,
        mixes=mixes or bench.ALL_MIXES,
        loads=loads,
        seeds=seeds,
        short=short,
        seed=seed,
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

"""`kgwe bench mig`: measures MIG policies on streams of requests."""

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
    """Serve random streams of MIG requests with KGWE's policy and with those of other systems.

    A request that finds no free slot is rejected. All policies get the same streams. Short streams on one and two
    GPUs are compared with the exact offline optimum. Takes about two minutes.

    Parameters
    ----------
    models
        GPU models; each has a separate fleet.
    cards
        GPUs per fleet.
    requests
        Requests per stream, without those that first fill the fleet.
    mixes
        Request mixes: even, inference, mixed, training, halves, memory, poles. Default: all.
    loads
        Requested compute slices divided by those of the fleet.
    seeds
        Streams per model, mix and load.
    short
        Short streams per model, mix and fleet size; 0 skips the comparison with the optimum.
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

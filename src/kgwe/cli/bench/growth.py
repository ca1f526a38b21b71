"""`kgwe bench growth`: measures how the cost of a decision grows with the size of the problem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="growth",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench growth
  kgwe bench growth --png growth.png
  kgwe bench growth --nodes 1000 10000 --repeat 20 --json""",
)


@app.default
def run(
    *,
    nodes: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (250, 1_000, 4_000, 16_000),
    decisions: int = 2_000,
    repeat: int = 7,
    seed: int = 1,
    png: Path | None = None,
    json: Json = False,
) -> int:
    """Time decisions by nodes per fleet, GPUs per node and pods per gang, compared with plain loops.

    Results are CPU seconds. Takes about half a minute.

    Parameters
    ----------
    nodes
        Fleet sizes in nodes, for decisions about single pods.
    decisions
        Decisions per fleet size.
    repeat
        Repetitions of each plan. Results are medians.
    seed
        Random seed of running, arriving and leaving pods.
    png
        Write a chart to this file; needs matplotlib (pip install 'kgwe[plot]').
    """
    from kgwe.bench.placement import growth as bench  # noqa: PLC0415 -- NumPy
    from kgwe.bench.placement import plot  # noqa: PLC0415

    if png is not None:
        plot.require_matplotlib()
    options = bench.Options(nodes=nodes, decisions=decisions, repeat=repeat, seed=seed)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    if png is not None:
        plot.draw(bench.build_panels(measured), png)
    return 0

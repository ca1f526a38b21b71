"""`kgwe bench growth`: the cost of a decision by the size of everything."""

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
    """Time decisions against nodes of the fleet, GPUs of a node and pods of a gang, beside plain loops.

    Numbers are seconds of CPU. Takes about half a minute.

    Parameters
    ----------
    nodes
        Sizes of the fleet for decisions about single pods.
    decisions
        Decisions measured at each size.
    repeat
        Times every gang is planned; numbers are medians.
    seed
        Seed of what runs, comes and goes.
    png
        Draw it into this file; needs matplotlib (pip install 'kgwe[plot]').
    """
    from kgwe.bench.placement import growth as bench  # noqa: PLC0415 -- NumPy
    from kgwe.bench.placement import plot  # noqa: PLC0415

    if png is not None:
        plot.require()
    options = bench.Options(nodes=nodes, decisions=decisions, repeat=repeat, seed=seed)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    if png is not None:
        plot.draw(bench.panels(measured), png)
    return 0

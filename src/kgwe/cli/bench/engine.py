"""`kgwe bench engine`: decisions for single pods."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show
from kgwe.local.host import progress

app = App(
    name="engine",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench engine
  kgwe bench engine --nodes 1000 10000 --decisions 20000 --json""",
)


@app.default
def run(
    *,
    nodes: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1_000, 10_000),
    decisions: int = 5_000,
    naive: int = 40,
    fleet: str = "mixed",
    seed: int = 1,
    json: Json = False,
) -> int:
    """Decide where single pods go in a half-full fleet of nodes with eight GPUs, beside a plain loop over the rules.

    Pods arrive and leave so that the fleet stays half full; the time is that of deciding and booking. Exit code 1
    when the engine and the loop ever chose different nodes.

    Parameters
    ----------
    nodes
        Sizes of the fleet; the numbers at the top are those of the first.
    decisions
        Decisions measured at each size.
    naive
        Decisions the plain loop takes too.
    fleet
        Model of the nodes: a name such as mixed or dgx-h100, or a file. Only machines with eight GPUs are taken.
    seed
        Seed of arrivals and departures.
    """
    from kgwe.bench.placement import engine as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(nodes=nodes, decisions=decisions, naive=naive, fleet=fleet, seed=seed)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    if bench.is_correct(measured.metrics):
        return 0
    return complain("the engine and the loop chose different nodes: see naive_agreed.")

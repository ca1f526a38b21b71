"""`kgwe bench engine`: measures decisions for single pods."""

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
    """Place single pods on a half-full fleet of eight-GPU nodes, and compare with a plain loop over the rules.

    Pods arrive and leave so that the fleet stays half full. The time covers the decision and its booking. Exit code 1
    if the engine and the loop chose different nodes.

    Parameters
    ----------
    nodes
        Fleet sizes in nodes. The headline results are those of the first size.
    decisions
        Decisions per fleet size.
    naive
        Decisions that the plain loop repeats.
    fleet
        Fleet model: a name such as mixed or dgx-h100, or a file. Only nodes with eight GPUs are used.
    seed
        Random seed of arrivals and departures.
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

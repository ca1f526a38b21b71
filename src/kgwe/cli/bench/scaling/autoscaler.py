"""`kgwe bench autoscaler`: purchases and removals of nodes."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="autoscaler",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench autoscaler
  kgwe bench autoscaler --types 100 --pods 1000 --small-cases 50
  kgwe bench autoscaler --data prices.csv --json""",
)


@app.default
def run(
    *,
    data: Path | None = None,
    types: int = 400,
    pods: tuple[int, ...] = (100, 1_000, 5_000, 20_000),
    classes: int = 40,
    small_cases: int = 200,
    nodes: int = 1_000,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Plan the purchase of nodes for waiting pods, and the removal of nodes, without a cloud.

    Pods are planned on instance types of a file of prices. Six scenarios have 1,000 nodes each. Small random cases are
    compared with exact plans where HiGHS is installed (extra autoscaler).

    Parameters
    ----------
    data
        Prices of GPU instances. Default: prices/gpu_prices_2026-08-22.csv in $KGWE_DATA, or in shared/data nearby.
    types
        Instance types, from the beginning of the file.
    pods
        Numbers of waiting pods; pods per second are those of the largest.
    classes
        Different requests among the pods.
    small_cases
        Random cases that are also planned exactly.
    nodes
        Nodes of each scenario.
    seed
        Draws the pods.
    """
    from kgwe.bench.scaling import autoscaler as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        data=data, types=types, pods=pods, classes=classes, small_cases=small_cases, nodes=nodes, seed=seed
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    show(measured, as_json=json)
    return 0

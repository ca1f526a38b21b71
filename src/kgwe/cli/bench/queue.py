"""`kgwe bench queue`: measures the cost of the queue and compares its rules."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(
    name="queue",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench queue
  kgwe bench queue --nodes 1000 --seeds 1 --json""",
)


@app.default
def run(
    *,
    nodes: int = 500,
    repeat: int = 5,
    seed: int = 1,
    small: int = 32,
    jobs: int = 1500,
    heroes: int = 12,
    seeds: int = 3,
    json: Json = False,
) -> int:
    """Time planning cycles, reservations and estimates, and simulate one day under each queue rule.

    Parameters
    ----------
    nodes
        Nodes of the fleet used for timing, with a pod on each GPU.
    repeat
        Repetitions of each timing. Results are medians.
    seed
        First random seed of the jobs.
    small
        Nodes of the simulated fleet.
    jobs
        Research jobs per simulation.
    heroes
        Jobs per simulation that need half of the fleet.
    seeds
        Simulations per rule. Results are means.
    """
    from kgwe.bench.placement import queue as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(nodes, repeat, seed, small, jobs, heroes, seeds)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

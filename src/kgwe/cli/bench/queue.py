"""`kgwe bench queue`: what the queue costs and what it is worth."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show
from kgwe.local.host import progress

app = App(name="queue", help_format="plaintext")


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
    """Time the queue's passes, holds and estimates, and replay a day under each rule for who waits.

    Parameters
    ----------
    nodes
        Simulated nodes of the fleet that is timed, with a pod on every card.
    repeat
        Times everything is timed; numbers are medians.
    seed
        First seed of the work.
    small
        Nodes of the fleet that is replayed.
    jobs
        Research jobs of a replay.
    heroes
        Jobs of a replay that need half of the fleet at once.
    seeds
        Replays of each rule; numbers are means.
    """
    from kgwe.bench.placement import queue as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(nodes, repeat, seed, small, jobs, heroes, seeds)
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

"""`kgwe bench optimizer-outage`: measures the extender while the optimizer is killed and started again."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="optimizer-outage",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench optimizer-outage
  kgwe bench optimizer-outage --nodes 1000 --rounds 10 --json""",
)


@app.default
def run(
    *,
    nodes: int = 200,
    pods: int = 100,
    calls: int = 200,
    rounds: int = 5,
    waiting: int = 50,
    timeout_s: float = 300.0,
    json: Json = False,
) -> int:
    """Replay calls of kube-scheduler to a scheduler whose optimizer is killed and started again.

    A round has four parts: the optimizer responds (up), an unrelated optimizer starts on the machine (neighbour), the
    optimizer is killed (down), and it starts again (back). down_p99_ratio compares down with up, and back_p99_ratio
    compares back with neighbour.

    Parameters
    ----------
    nodes
        Simulated nodes of 8 GPUs.
    pods
        Pods whose calls are recorded, with 1, 2, 4 and 8 GPUs.
    calls
        Call pairs (filter, then prioritize) per part of a round.
    rounds
        Number of times that the optimizer is killed.
    waiting
        Workloads that wait, about which the scheduler asks the optimizer every second.
    timeout_s
        Timeout of each step, in seconds.
    """
    from kgwe.bench.extender import outage as bench  # noqa: PLC0415 -- what it starts costs other benchmarks time

    options = bench.Options(nodes=nodes, pods=pods, calls=calls, rounds=rounds, waiting=waiting, timeout_s=timeout_s)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

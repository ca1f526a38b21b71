"""`kgwe bench extender`: measures how long kube-scheduler waits for the extender."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe.bench.extender import benchmark as bench
from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="extender",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench extender
  kgwe bench extender --nodes 5000 --json
  kgwe bench extender --no-tls            plain HTTP, to measure the cost of TLS
  kgwe bench extender --percentage 0      kube-scheduler chooses the number of nodes per call""",
)


@app.default
def run(
    *,
    nodes: int = 1000,
    pods: int = 400,
    calls: int = 1000,
    gang_size: int = 1000,
    taken: float = 0.45,
    percentage: int = 100,
    tls: bool = True,
    seed: int = 1,
    timeout_s: float = 600.0,
    profile: Path | None = None,
    json: Json = False,
) -> int:
    """Replay the calls of a real kube-scheduler to KGWE, and measure the response times.

    The calls are recorded on a private local cluster of simulated nodes, then sent to KGWE over HTTP one by one: on
    an idle process, while a large gang is planned repeatedly, and while a gang is bound. The echo result is the same
    server without a decision.

    Parameters
    ----------
    nodes
        Simulated nodes of 8 GPUs.
    pods
        Pods whose calls are recorded, with 1, 2, 4 and 8 GPUs.
    calls
        Call pairs (filter, then prioritize) per measurement.
    gang_size
        Pods of the gangs that keep the planner busy; 0 skips these measurements.
    taken
        Fraction of all GPUs in use, chosen at random.
    percentage
        kube-scheduler's percentageOfNodesToScore: the number of nodes per call; 0 lets kube-scheduler choose.
    tls
        Use mutual TLS, which is required unless both sides run on one machine.
    seed
        Random seed of the GPUs in use.
    timeout_s
        Timeout of each step, in seconds.
    profile
        Write a cProfile of KGWE to this file. It slows KGWE down.
    """
    options = bench.Options(
        nodes=nodes,
        pods=pods,
        calls=calls,
        gang_size=gang_size,
        taken=taken,
        percentage=percentage,
        tls=tls,
        seed=seed,
        timeout_s=timeout_s,
        profile=profile,
    )
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

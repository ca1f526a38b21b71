"""`kgwe bench extender`: how long kube-scheduler waits for an answer."""

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
  kgwe bench extender --no-tls            plain HTTP, to see what the certificates cost
  kgwe bench extender --percentage 0      as many nodes per call as kube-scheduler sends by itself""",
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
    """Ask KGWE what a real kube-scheduler asked, and measure how long the answers take.

    On a private local cluster of simulated nodes a real kube-scheduler is made to ask about pods; its calls
    are taken down and sent to KGWE over HTTP, one after the other: when nothing else happens, while a large gang
    is planned again and again, and while one lands. Beside it the same server without deciding (echo).

    Parameters
    ----------
    nodes
        Simulated nodes of 8 GPUs.
    pods
        Pods kube-scheduler is made to ask about, of 1, 2, 4 and 8 GPUs.
    calls
        Pairs of calls (filter, then prioritize) to measure in each part.
    gang_size
        Pods of the gangs that keep the planner busy; 0 leaves those parts out.
    taken
        Share of all GPUs that is taken, at random.
    percentage
        kube-scheduler's percentageOfNodesToScore: how many nodes each call names; 0 is its own choice.
    tls
        Whether both sides show certificates, as they must unless they are on one machine.
    seed
        Seed of what is taken.
    timeout_s
        Longest wait, in seconds, for any step.
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

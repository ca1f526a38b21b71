"""`kgwe bench shares`: compares strategies on a fleet of shared GPUs."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="shares",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench shares
  kgwe bench shares --nodes 24 --strategies pack,mixfit --json""",
)


@app.default
def run(
    *,
    nodes: int = 16,
    strategies: str = "score,pack,mixfit",
    seed: int = 1,
    timeout_s: float = 300.0,
    json: Json = False,
) -> int:
    """Place the same pods on a fleet of shared GPUs with one strategy after the other, on a private local cluster.

    Nodes have half, quarter or whole GPUs and much or little CPU. Pods request 115 % of the GPUs. The report counts
    placed pods, GPUs in use, free GPUs that a pod can still use, and free GPUs without enough CPU.

    Parameters
    ----------
    nodes
        Simulated nodes with four GPUs each.
    strategies
        Strategies of the SchedulerConfig, separated by commas.
    seed
        Random seed of the pods and their order.
    timeout_s
        Timeout of each step, in seconds.
    """
    from kgwe.bench.cluster import shared_gpus as bench  # noqa: PLC0415 -- what it starts costs other benchmarks time

    options = bench.Options(
        nodes=nodes,
        strategies=tuple(each.strip() for each in strategies.split(",")),
        seed=seed,
        timeout_s=timeout_s,
    )
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

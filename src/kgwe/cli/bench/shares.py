"""`kgwe bench shares`: strategies on a fleet of shared GPUs."""

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
    """Pack the same pods on a fleet of shared GPUs by one strategy after the other, on a private local cluster.

    Nodes with halves, quarters and whole GPUs, with much CPU or little; pods that ask for 115 % of the GPUs. Reports
    the pods placed, the GPUs in use, the free GPUs a pod can still use, and those without the CPU that any pod needs.

    Parameters
    ----------
    nodes
        Simulated nodes with four GPUs each.
    strategies
        Strategies of the SchedulerConfig, joined by commas.
    seed
        Of the pods and their order.
    timeout_s
        The most to wait for one step.
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

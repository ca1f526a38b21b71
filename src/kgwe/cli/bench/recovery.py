"""`kgwe bench recovery`: measures recovery from node failures and killed leaders."""

from __future__ import annotations

from cyclopts import App

from kgwe.bench.cluster import recovery as bench
from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress
from kgwe.telemetry import logs

app = App(
    name="recovery",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench recovery
  kgwe bench recovery --faults 20 --kills 0 --json
  kgwe bench recovery --nodes 256 --gangs 16 --faults 20""",
)


@app.default
def run(
    *,
    nodes: int = 60,
    leaf: int = 12,
    gangs: int = 4,
    gang_size: int = 8,
    faults: int = 6,
    kills: int = 4,
    seed: int = 1,
    timeout_s: float = 120.0,
    json: Json = False,
) -> int:
    """Fail nodes under running gangs and kill leaders, and measure the time until all gangs run again.

    Each gang uses whole nodes inside one leaf of a private local cluster. KGWE with two replicas is compared with
    Jobs under plain Kubernetes.

    Parameters
    ----------
    nodes
        Simulated nodes of 8 GPUs.
    leaf
        Nodes per leaf of the network.
    gangs
        Running gangs.
    gang_size
        Pods per gang, each with a whole node.
    faults
        Node failures, one after the other.
    kills
        Leaders to kill with SIGKILL, one after the other.
    seed
        Random seed of the failing nodes.
    timeout_s
        Timeout of each step, in seconds.
    """
    options = bench.Options(
        nodes=nodes,
        leaf=leaf,
        gangs=gangs,
        gang_size=gang_size,
        faults=faults,
        kills=kills,
        seed=seed,
        timeout_s=timeout_s,
    )
    logs.configure(level="error")
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0

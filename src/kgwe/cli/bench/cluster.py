"""`kgwe bench cluster`: runs GPU pods and workloads end to end on private local clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe.bench.cluster import benchmark as bench
from kgwe.bench.cluster import scenarios
from kgwe.bench.cluster.load import Kind  # noqa: TC001 -- cyclopts reads annotations at run time
from kgwe.bench.cluster.measure import summary
from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show, to_end
from kgwe.local.host import progress

app = App(
    name="cluster",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench cluster                                         1,000 one-GPU pods on 500 nodes
  kgwe bench cluster --scenario gangs --json
  kgwe bench cluster --scenario biggang --phases kube-scheduler gate kgwe --repeat 4
  kgwe bench cluster --scenario workloads --pods 200 --nodes 100
  kgwe bench cluster --phases kgwe --repeat 1 --profile kgwe.prof""",
)


@app.default
def run(
    *,
    scenario: Scenario = Scenario.FILL,
    nodes: int | None = None,
    pods: int | None = None,
    gangs: int | None = None,
    gang_size: int | None = None,
    gpus: int | None = None,
    leaf: int | None = None,
    taken: float | None = None,
    free_nodes: int | None = None,
    gpus_per_node: int = 8,
    fleet: str | None = None,
    kind: Kind = "kgwe",
    strategy: str = "leastLoaded",
    phases: Annotated[tuple[Phase, ...], Parameter(consume_multiple=True)] = bench.USUAL_PHASES,
    warm_up: int = 300,
    repeat: int = 2,
    seed: int = 1,
    timeout_s: float = 600.0,
    offers: bool = False,
    keep: bool = False,
    profile: Path | None = None,
    json: Json = False,
) -> int:
    """Schedule GPU pods end to end with KGWE, with kube-scheduler alone and with a null scheduler, on local clusters.

    Each phase gets a new cluster of simulated nodes and the same pods. The time is from the first submission to the
    last binding, by the API server's clock. Exit code 1 if a pod was not bound, was bound twice or oversubscribed its
    node, or if KGWE bound only part of a gang.

    Parameters
    ----------
    scenario
        fill, queued, gangs, biggang, impossible, fragmented, workloads, jobgangs or restart. It sets the default
        sizes.
    nodes
        Simulated nodes.
    pods
        Single pods to submit (fill, workloads) or already running (restart).
    gangs
        Number of gangs, in scenarios with gangs.
    gang_size
        Pods per gang. In fragmented, every second gang has half as many.
    gpus
        GPUs per pod. In fragmented, half as many in every second gang.
    leaf
        Nodes per leaf of the network.
    taken
        Fraction of all GPUs in use beforehand, chosen at random (fragmented).
    free_nodes
        Nodes left free (impossible).
    gpus_per_node
        GPUs per node.
    fleet
        Fleet model of the nodes: a name such as dgx-h100 or mixed, or a file.
    kind
        API group of workloads: kgwe (kgwe.nvidia.io/v1) or warp (gpu.warp.dev/v1alpha1). Pods of warp end after 10 s.
    strategy
        Node strategy of the workloads.
    phases
        null (binds each pod to the next node without checks), kube-scheduler (alone) and kgwe. For gangs also gate:
        kube-scheduler, with a loop that sets each pod's node and removes its scheduling gate.
    warm_up
        Pods to run and delete before each measurement; limited to the capacity of the fleet.
    repeat
        Rounds over all phases, every second one in reverse order. Results are medians.
    offers
        Give pods of gangs their seats while they are created, by the webhook of deploy/gang-seats.yaml.
    seed
        Random seed of the GPUs in use.
    timeout_s
        Timeout of each step, in seconds.
    keep
        Keep the cluster of the last phase running.
    profile
        Write a cProfile of KGWE to this file. It slows KGWE down.
    """
    size = scenarios.size_of(
        scenario,
        nodes=nodes,
        pods=pods,
        gangs=gangs,
        gang_size=gang_size,
        gpus=gpus,
        leaf=leaf,
        taken=taken,
        free_nodes=free_nodes,
    )
    options = bench.Options(
        scenario=scenario,
        size=size,
        gpus_per_node=gpus_per_node,
        fleet=fleet,
        kind=kind,
        strategy=strategy,
        phases=phases,
        warm_up=warm_up,
        repeat=repeat,
        seed=seed,
        timeout_s=timeout_s,
        offers=offers,
        keep=keep,
        profile=profile,
    )
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    if summary.is_correct(measured.metrics, fits_all=scenarios.fits_all(scenario)):
        return 0
    return complain("the run failed its checks: see unbound, doubled, oversubscribed and partial_gangs.")

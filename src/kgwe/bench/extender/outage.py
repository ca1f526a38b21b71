"""`kgwe bench optimizer-outage`: the response time of the extender while the optimizer is killed and started again.

    half-full nodes and waiting workloads → record kube-scheduler's calls → replay them to a scheduler that asks an
    optimizer about the workloads every second

    up          the optimizer responds
    neighbour   another optimizer starts, with which the scheduler has nothing to do: the cost for the machine
    down        the optimizer was killed
    back        it starts again

The parts take turns, so that all of them see the same machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import bed, clusters, scheduler
from kgwe.bench.cluster.bed import Bed
from kgwe.bench.cluster.load import Load
from kgwe.bench.cluster.measure.timeline import percentile
from kgwe.bench.cluster.nodes import NodeSet
from kgwe.bench.cluster.scenarios import Phase, Scenario, Size
from kgwe.bench.extender import caller, capture
from kgwe.bench.extender.benchmark import record_calls
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster import components, extender
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.host import assets, ports, processes
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.bench.extender.capture import Payload
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.host.progress import Progress, Step

_GPUS_PER_NODE: Final = 8
_NAME: Final = "kgwe-optimizer"
_NEIGHBOUR: Final = "kgwe-neighbour"
_UP, _NEIGHBOUR_STARTS, _DOWN, _BACK = "up", "neighbour", "down", "back"
_KIND: Final = {"apiVersion": resources.GPU_WORKLOAD.api_version, "kind": "GPUWorkload"}
_WORKLOAD: Final = {
    "gpuRequirements": {"count": 8, "gpuModel": "NVIDIA-H200"},  # no node has them: it waits
    "workloadType": "Training",
    "podTemplate": {"spec": {"containers": [{"name": "main", "image": "registry.example/train:1"}]}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: int = 200
    # Pods whose calls are recorded.
    pods: int = 100
    # Pairs of calls in each part of a round.
    calls: int = 200
    rounds: int = 5
    # Workloads that wait, about which the optimizer is asked.
    waiting: int = 50
    taken: float = 0.45
    seed: int = 1
    timeout_s: float = 300.0

    def check(self) -> None:
        """Raise Permanent for a size that makes no sense."""
        for name, least in {"nodes": 2, "pods": 5, "calls": 10, "rounds": 1, "waiting": 0}.items():
            if getattr(self, name) < least:
                raise errors.Permanent(f"--{name} {getattr(self, name)}: must be at least {least}")


def run(options: Options, progress: Progress) -> report.Report:
    """Record the calls, then measure."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    name = clusters.name_of("outage")
    port = scheduler.free_port(name)
    files = extender.client_files(LocalCluster(name).layout.certificates)
    config = capture.build_configuration(extender.url(port, tls=True), 100, files)
    with (
        clusters.private_cluster(name, found, progress, scheduler_config=config) as cluster,
        progress.step(f"Replaying calls about pods on {options.nodes} nodes") as step,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        metrics = runner.run(_measure(cluster, port, options, step))
    return report.Report("optimizer-outage", dataclasses.asdict(options), metrics, machine)


async def _measure(cluster: LocalCluster, port: int, options: Options, step: Step) -> dict[str, Any]:
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        work = Load(Scenario.FRAGMENTED, Phase.KGWE)
        ground = Bed(cluster, client, work, step, port=port, timeout_s=options.timeout_s, profile=None, tls=True)
        size = Size(nodes=options.nodes, taken=options.taken)
        await ground.prepare(NodeSet(options.nodes, _GPUS_PER_NODE), size, options.seed)
        await manifests.apply_manifest(client, manifests.load_manifests(assets.find_asset("deploy/optimizer.yaml")))
        payloads = await record_calls(ground, port, options.pods, is_tls=True)
        # Stop kube-scheduler, so that it sends no further calls.
        cluster.kill(components.SCHEDULER)
        for number in range(options.waiting):
            body = {**_KIND, "metadata": {"name": f"waiting-{number:03}"}, "spec": _WORKLOAD}
            await client.create(resources.GPU_WORKLOAD, body, bed.NAMESPACE)
        return await Outage(ground, port, payloads, options).run()


class Outage:
    """The scheduler, the optimizer and the calls."""

    def __init__(self, ground: Bed, port: int, payloads: Sequence[Payload], options: Options) -> None:
        self._bed = ground
        self._port = port
        self._payloads = payloads
        self._options = options
        self._tls = extender.client_context(ground.cluster.layout.certificates)
        self._ports = ports.allocate(("grpc", "metrics", "other_grpc", "other_metrics"))
        self._spent = {part: caller.Spent() for part in (_UP, _NEIGHBOUR_STARTS, _DOWN, _BACK)}

    async def run(self) -> dict[str, Any]:
        """Measure all rounds; return the percentiles of each part, and the others relative to `up`."""
        ground = self._bed
        optimizer = await self._start_optimizer()
        env = {
            "KGWE_SCHEDULER_OPTIMIZER_ADDRESS": f"{ports.LOOPBACK}:{self._ports['grpc']}",
            "KGWE_SCHEDULER_ENABLE_PREDICTIONS": "true",
            "KGWE_SCHEDULER_OPTIMIZER_REFRESH_SECONDS": "1",
        }
        ground.kgwe = scheduler.start(ground.cluster, self._port, env=env)
        await ground.wait_until("KGWE to become the leader", lambda: scheduler.is_listening(self._port))
        await self._send(caller.Spent(), range(len(self._payloads)))
        for number in range(self._options.rounds):
            ground.step.update(f"round {number + 1} of {self._options.rounds}")
            await self._send(self._spent[_UP], range(self._options.calls))
            await self._send_while_starting(_NEIGHBOUR_STARTS, "other_")
            ground.cluster.stop_sidecar(_NEIGHBOUR)
            processes.kill(optimizer)
            await self._send(self._spent[_DOWN], range(self._options.calls))
            optimizer = await self._send_while_starting(_BACK, "")
        return self._summarize()

    def _summarize(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part, spent in self._spent.items():
            both = sorted(spent.both_ms())
            found |= {f"{part}_p{each}_ms": round(percentile(both, each), 2) for each in (50, 99)}
            found |= {f"{part}_max_ms": round(both[-1], 2), f"{part}_calls": len(both)}
        found["down_p99_ratio"] = round(found["down_p99_ms"] / found["up_p99_ms"], 3)
        found["back_p99_ratio"] = round(found["back_p99_ms"] / found["neighbour_p99_ms"], 3)
        return found

    async def _send_while_starting(self, part: str, prefix: str) -> ProcessRecord:
        """Send calls until an optimizer serves, and at least as many as in the other parts."""
        stop = threading.Event()
        least = self._options.calls
        turns = itertools.takewhile(lambda turn: turn < least or not stop.is_set(), itertools.count())
        sending = asyncio.create_task(self._send(self._spent[part], turns))
        try:
            return await self._start_optimizer(prefix)
        finally:
            stop.set()
            await sending

    async def _start_optimizer(self, prefix: str = "") -> ProcessRecord:
        """Start an optimizer and wait until it serves."""
        cluster, name = self._bed.cluster, _NEIGHBOUR if prefix else _NAME
        account = service_account_kubeconfig(cluster, "kgwe-system", _NAME, cluster.directory / f"{_NAME}.kubeconfig")
        port, metrics = self._ports[f"{prefix}grpc"], self._ports[f"{prefix}metrics"]
        argv = [sys.executable, "-m", "kgwe.cli", "optimizer", "--kubeconfig", str(account), "--no-leader-elect"]
        argv += ["--store", str(cluster.directory / f"{name}.db"), "--grpc-bind-address", f"{ports.LOOPBACK}:{port}"]
        argv += ["--metrics-bind-address", f"{ports.LOOPBACK}:{metrics}"]
        process = await asyncio.to_thread(cluster.start_sidecar, name, argv)
        await self._bed.wait_until(f"{name} to listen", lambda: scheduler.is_listening(port))
        return process

    async def _send(self, spent: caller.Spent, turns: Any) -> None:
        """Send the calls in a thread, so that processes can be started meanwhile."""
        await asyncio.to_thread(caller.call, self._port, self._payloads, spent, turns, self._tls)

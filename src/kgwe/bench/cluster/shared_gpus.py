"""`kgwe bench shares`: the same pods on a fleet of shared GPUs, placed with one strategy after the other.

Nodes divide their GPUs into halves or quarters or not at all, and have much or little CPU. Pods request a share or
whole GPUs, with much or little CPU. They arrive in one order until they request more than the fleet has; no pod
leaves. The results are the number of running pods, and how much free GPU capacity has enough CPU for a pod.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import clusters, scheduler
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.schedulerconfig import STRATEGIES
from kgwe.kube.client.client import KubeClient
from kgwe.kube.translate import podspec
from kgwe.local.toolchain import build
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.kube.api import core
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress, Step

NAMESPACE: Final = "bench"
_GPUS: Final = 4
_RICH_CPU_MILLI: Final = 64_000
_LEAN_CPU_MILLI: Final = 14_000
# Fraction of all GPUs that the pods request.
_ASKED: Final = 1.15
_POLL_S: Final = 0.2
# Seconds without a change after which all pods that fit count as placed.
_QUIET_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class SharedNode:
    name: str
    gpus: int
    cpu_milli: int
    #: shares per GPU; 0 for whole GPUs
    pieces: int


@dataclass(frozen=True, slots=True)
class SharingPod:
    name: str
    cpu_milli: int
    #: the pod requests one of this many shares of a GPU; 0 for whole GPUs
    pieces: int
    gpus: int = 0

    @property
    def gpu(self) -> float:
        return 1 / self.pieces if self.pieces else self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: int = 12
    strategies: tuple[str, ...] = ("score", "pack", "mixfit")
    seed: int = 1
    timeout_s: float = 300.0

    def check(self) -> None:
        if self.nodes < 1:
            raise errors.Permanent(f"--nodes {self.nodes}: must be at least 1")
        unknown = [name for name in self.strategies if name not in STRATEGIES]
        if unknown or not self.strategies:
            raise errors.Permanent(f"--strategies: expected some of {', '.join(STRATEGIES)}, separated by commas")


def make_nodes(count: int) -> list[SharedNode]:
    """Return nodes with quarter, half and whole GPUs; every second node of each kind has little CPU."""
    kinds = (4, 4, 2, 0)
    return [
        SharedNode(
            f"shared-{number:03}",
            _GPUS,
            _LEAN_CPU_MILLI if number // len(kinds) % 2 else _RICH_CPU_MILLI,
            kinds[number % len(kinds)],
        )
        for number in range(count)
    ]


def make_pods(nodes: Sequence[SharedNode], seed: int) -> list[SharingPod]:
    """Return pods of all kinds in random order, in proportion to the GPUs of that kind."""
    rng = random.Random(seed)  # noqa: S311 -- the same every time
    drawn: list[tuple[int, int, int]] = []
    for pieces in sorted({node.pieces for node in nodes}):
        wanted = _ASKED * sum(node.gpus for node in nodes if node.pieces == pieces)
        asked = 0.0
        while asked < wanted:
            # A third of the pods requests several times the CPU of the others.
            is_hungry = rng.random() < 1 / 3
            per_gpu = 12_000 if is_hungry else 2_000
            gpus = rng.choice((1, 1, 2)) if not pieces else 0
            gpu = 1 / pieces if pieces else gpus
            drawn.append((round(per_gpu * gpu), pieces, gpus))
            asked += gpu
    rng.shuffle(drawn)
    return [SharingPod(f"pod-{number:05}", *each) for number, each in enumerate(drawn)]


class Usage:
    """The free capacity of the nodes."""

    def __init__(self, nodes: Sequence[SharedNode], pods: Sequence[SharingPod] = ()) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._gpu = {node.name: float(node.gpus) for node in nodes}
        self._cpu = {node.name: node.cpu_milli for node in nodes}
        self._pods = list(pods)
        self.placed = 0

    def add(self, pod: SharingPod, node: str) -> None:
        self._gpu[node] -= pod.gpu
        self._cpu[node] -= pod.cpu_milli
        self._pods.append(pod)
        self.placed += 1

    def used_gpus(self) -> float:
        return sum(node.gpus for node in self._nodes.values()) - sum(self._gpu.values())

    def usable_gpus(self) -> float:
        """Return the free GPUs that the smallest pods of the node's kind can still use."""
        return sum(self._usable_gpus(node) for node in self._nodes.values())

    def stranded_gpus(self) -> float:
        """Return the free GPUs without enough CPU for any pod."""
        return sum(self._gpu.values()) - self.usable_gpus()

    def _usable_gpus(self, node: SharedNode) -> float:
        kind = [pod for pod in self._pods if pod.pieces == node.pieces]
        if not kind:
            return 0.0
        least = min(kind, key=lambda pod: pod.cpu_milli / pod.gpu)
        pods = int(min(self._gpu[node.name] / least.gpu + 1e-9, self._cpu[node.name] // max(least.cpu_milli, 1)))
        return pods * least.gpu


# --- on a local cluster ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of one strategy."""

    placed: int
    used_gpus: float
    usable_gpus: float
    stranded_gpus: float
    #: free GPUs that pods can still use after the first part of the pods
    usable_halfway: float


@dataclass
class _Bench:
    client: KubeClient
    step: Step
    options: Options
    nodes: list[SharedNode] = field(default_factory=list)
    pods: list[SharingPod] = field(default_factory=list)

    async def prepare(self) -> None:
        self.nodes = make_nodes(self.options.nodes)
        self.pods = make_pods(self.nodes, self.options.seed)
        await scheduler.install(self.client)
        await self.client.apply(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        for node in self.nodes:
            await self.client.create(resources.NODE, _node_body(node))
        await self.wait_until("all nodes ready", self._nodes_ready)
        await self.wait_until("the service account", self._account_exists)

    async def _nodes_ready(self) -> bool:
        nodes = await self.client.list(resources.NODE)
        return sum(podspec.is_ready(node) for node in nodes) == len(self.nodes)

    async def _account_exists(self) -> bool:
        try:
            await self.client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        except errors.NotFound:
            return False
        return True

    async def pack(self, strategy: str) -> Packed:
        """Place all pods with this strategy on empty nodes, and delete the pods afterwards."""
        config = {"metadata": {"name": "default"}, "spec": {"strategy": strategy}}
        await self.client.apply(resources.SCHEDULER_CONFIG, config)
        await self.wait_until(f"strategy {strategy} to be in use", self._config_is_used)
        half = len(self.pods) // 2
        await self._submit(self.pods[:half])
        halfway = await self._await_settled(half, strategy)
        await self._submit(self.pods[half:])
        usage = await self._await_settled(len(self.pods), strategy)
        await self.client.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods", body={"gracePeriodSeconds": 0})
        await self.wait_until("the pods to be deleted", self._is_empty)
        return Packed(
            usage.placed,
            round(usage.used_gpus(), 2),
            round(usage.usable_gpus(), 2),
            round(usage.stranded_gpus(), 2),
            round(halfway.usable_gpus(), 2),
        )

    async def _submit(self, pods: Sequence[SharingPod]) -> None:
        for pod in pods:
            await self.client.create(resources.POD, _pod_body(pod), NAMESPACE)

    async def _config_is_used(self) -> bool:
        config = await self.client.get(resources.SCHEDULER_CONFIG, "default")
        return config.status.observedGeneration == config.metadata.generation

    async def _is_empty(self) -> bool:
        return not await self.client.list(resources.POD, NAMESPACE)

    async def _await_settled(self, count: int, strategy: str) -> Usage:
        """Wait until each pod has a node or a refusal and nothing changes, and return the usage."""
        seen, since, pods = -1, time.monotonic(), []

        async def is_settled() -> bool:
            nonlocal seen, since, pods
            pods = await self.client.list(resources.POD, NAMESPACE)
            bound = sum(bool(pod.spec.nodeName) for pod in pods)
            if bound != seen:
                seen, since = bound, time.monotonic()
            self.step.update(f"{strategy}: {bound} of {count} pods placed")
            answered = all(pod.spec.nodeName or _is_refused(pod) for pod in pods)
            return answered and len(pods) == count and time.monotonic() - since > _QUIET_S

        await self.wait_until("all pods to be placed or refused", is_settled)
        usage = Usage(self.nodes, self.pods)
        of_name = {pod.name: pod for pod in self.pods}
        for pod in pods:
            if pod.spec.nodeName:
                usage.add(of_name[pod.metadata.name], pod.spec.nodeName)
        return usage

    async def wait_until(self, what: str, done: Callable[[], Any]) -> None:
        deadline = time.monotonic() + self.options.timeout_s
        while not await done():
            if time.monotonic() > deadline:
                raise errors.Transient(
                    f"timed out after {self.options.timeout_s:g} s waiting for {what}.\n"
                    "Use fewer --nodes or a larger --timeout-s."
                )
            await asyncio.sleep(_POLL_S)


def run(options: Options, progress: Progress) -> report.Report:
    """Place the same pods with each strategy on one private cluster."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    name = clusters.name_of("shares")
    port = scheduler.free_port(name)
    with (
        clusters.private_cluster(
            name, found, progress, scheduler_config=scheduler.build_configuration(name, port)
        ) as cluster,
        progress.step(f"Shared GPUs on {options.nodes} nodes") as step,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        metrics = runner.run(_measure(cluster, port, options, step))
    params = {"nodes": options.nodes, "seed": options.seed, "strategies": list(options.strategies)}
    return report.Report("shares", params, metrics, machine)


async def _measure(cluster: LocalCluster, port: int, options: Options, step: Step) -> dict[str, Any]:
    async with KubeClient.connect(cluster.kubeconfig) as client:
        bench = _Bench(client, step, options)
        await bench.prepare()
        scheduler.start(cluster, port)
        await bench.wait_until("KGWE to become the leader", lambda: scheduler.is_listening(port))
        packed = {strategy: await bench.pack(strategy) for strategy in options.strategies}
    return {
        "pods": len(bench.pods),
        "gpus": sum(node.gpus for node in bench.nodes),
        "gpus_asked_for": round(sum(pod.gpu for pod in bench.pods), 2),
        **{
            name: {strategy: getattr(each, name) for strategy, each in packed.items()}
            for name in ("placed", "used_gpus", "usable_gpus", "stranded_gpus", "usable_halfway")
        },
    }


def _is_refused(pod: core.Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)


def _node_body(node: SharedNode) -> dict[str, Any]:
    room = {"cpu": f"{node.cpu_milli}m", "memory": "1024Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": node.name, "type": "kwok"}
    if node.pieces:
        room[amounts.SHARED] = str(node.gpus * node.pieces)
        labels |= {"nvidia.com/gpu.replicas": str(node.pieces), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    else:
        room[amounts.GPU] = str(node.gpus)
    meta = {"name": node.name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def _pod_body(pod: SharingPod) -> dict[str, Any]:
    gpu = {amounts.SHARED: "1"} if pod.pieces else {amounts.GPU: str(pod.gpus)}
    wants = {"requests": {"cpu": f"{pod.cpu_milli}m"}, "limits": gpu}
    annotations = {"kgwe.nvidia.io/simulated-duration": "1h"}
    if pod.pieces:
        annotations["kgwe.nvidia.io/gpu-share"] = f"{1 / pod.pieces:g}"
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": wants}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "annotations": annotations},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }

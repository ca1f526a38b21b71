"""`kgwe bench recovery`: downtime of gangs after node failures, and of the scheduler after its leader is killed.

    gangs run → [ a node dies ... a new plan is written ... all pods run again ] → ... → [ the leader is killed ...
    another replica leads ... a pod created meanwhile is bound ] → ...

The first part is also run with plain Kubernetes: the same gangs as Jobs whose pods tolerate a dead node for 0 seconds.
That is its fastest recovery (the default is five minutes), and it ignores leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import bed, clusters, load, scheduler
from kgwe.bench.cluster.bed import Bed
from kgwe.bench.cluster.load import Load
from kgwe.bench.cluster.measure.audit import AuditTail
from kgwe.bench.cluster.measure.sightings import Sightings
from kgwe.bench.cluster.measure.timeline import percentile
from kgwe.bench.cluster.nodes import NodeSet
from kgwe.bench.cluster.scenarios import Phase, Scenario, Size
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.crd import definitions
from kgwe.local.fleet import faults
from kgwe.local.host import ports, processes
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress, Step

_PHASES = (Phase.KUBE_SCHEDULER, Phase.KGWE)
_PREFIX = {Phase.KUBE_SCHEDULER: "kubernetes_", Phase.KGWE: ""}
_GPUS = 8
_POLL_S = 0.02
_DEAD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: int = 60
    leaf: int = 12
    gangs: int = 4
    # Pods per gang, each with a whole node.
    gang_size: int = 8
    # Node failures, one after the other, and leaders to kill.
    faults: int = 6
    kills: int = 4
    seed: int = 1
    timeout_s: float = 120.0

    def check(self) -> None:
        for name, least in {"nodes": 2, "leaf": 2, "gangs": 1, "gang_size": 1, "faults": 1, "kills": 0}.items():
            if getattr(self, name) < least:
                raise errors.Permanent(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least {least}")
        # Each leaf keeps a spare node for the one that fails.
        room = self.nodes // self.leaf * ((self.leaf - 1) // self.gang_size)
        if self.gangs > room:
            raise errors.Permanent(f"--gangs {self.gangs}: with a spare node in each leaf there is room for {room}")


def run(options: Options, progress: Progress) -> report.Report:
    """Measure KGWE and plain Kubernetes, each on its own cluster."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    metrics: dict[str, Any] = {}
    for phase in _PHASES:
        name = clusters.name_of(phase)
        port = scheduler.free_port(name)
        config = scheduler.build_configuration(name, port) if phase is Phase.KGWE else None
        with (
            clusters.private_cluster(name, found, progress, scheduler_config=config) as cluster,
            progress.step(f"Recovery on {options.nodes} nodes: {phase}") as step,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            numbers = runner.run(_measure((cluster, port), phase, options, step))
        metrics |= {f"{_PREFIX[phase]}{key}": value for key, value in numbers.items()}
    metrics["ratio"] = round(metrics["kubernetes_recovered_p50_s"] / metrics["recovered_p50_s"], 2)
    return report.Report("recovery", dataclasses.asdict(options), metrics, machine)


async def _measure(place: tuple[LocalCluster, int], phase: Phase, options: Options, step: Step) -> dict[str, Any]:
    cluster, port = place
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        ground = Bed(cluster, client, Load(Scenario.GANGS, phase), step, port=port, timeout_s=options.timeout_s)
        # Faults of a node and of its GPUNode are cleared together.
        await definitions.install(client)
        await ground.prepare(NodeSet(options.nodes, _GPUS, options.leaf), Size(nodes=options.nodes), options.seed)
        replicas = Replicas(ground, port) if phase is Phase.KGWE else None
        if replicas is not None:
            await replicas.start()
        async with Sightings(client, bed.NAMESPACE) as seen:
            dying = Dying(ground, seen, options)
            numbers = await dying.run()
            if replicas is not None and options.kills:
                numbers |= await _fail_over(ground, seen, replicas, options.kills)
        return numbers


class Dying:
    """Fails nodes under running gangs."""

    def __init__(self, ground: Bed, seen: Sightings, options: Options) -> None:
        self._bed = ground
        self._seen = seen
        self._options = options
        self._gangs = [f"gang-{number:02d}" for number in range(options.gangs)]
        self._rng = random.Random(options.seed)  # noqa: S311 - chooses who dies, guards nothing

    async def run(self) -> dict[str, Any]:
        ground, size = self._bed, self._options.gang_size
        for name in self._gangs:
            await self._submit(name)
        for name in self._gangs:
            await ground.wait_until(f"{name} to run", functools.partial(self._is_running, name, ""))
        plans, recovered, moved, leaves = [], [], [], []
        for number in range(self._options.faults):
            name = self._rng.choice(self._gangs)
            ground.step.update(f"failing node {number + 1} of {self._options.faults}, under {name}")
            before = self._seen.pods_of(name)
            lost = self._rng.choice(sorted(before.values()))
            plan_s, recovered_s = await self._fail_node(name, lost)
            after = self._seen.pods_of(name)
            moved.append(len(after.keys() - before.keys()))
            leaves.append(len({ground.leaf_of[node] for node in after.values()}))
            recovered.append(recovered_s)
            plans += [plan_s] if plan_s is not None else []
            await faults.clear(ground.client, lost)
            await ground.wait_until(f"{lost} to be ready", functools.partial(self._is_ready, lost))
        return {
            **_spread("plan", plans),
            **_spread("recovered", recovered),
            "moved_pods": sum(moved) / len(moved),
            "leaves": sum(leaves) / len(leaves),
            "pods_per_gang": size,
        }

    async def _submit(self, name: str) -> None:
        ground, options = self._bed, self._options
        if ground.load.phase is Phase.KGWE:
            await ground.client.create(resources.GPU_WORKLOAD, _build_workload(name, options.gang_size), bed.NAMESPACE)
        else:
            await ground.client.create(resources.JOB, _build_job(name, options.gang_size), bed.NAMESPACE)

    async def _fail_node(self, name: str, lost: str) -> tuple[float | None, float]:
        """Fail a node. Return the seconds from its NotReady condition to the new plan, and to all pods running."""
        ground = self._bed
        tail = AuditTail(ground.cluster.audit_log, bed.NAMESPACE, "patch")
        tail.read()
        await faults.node_down(ground.client, lost)
        await ground.wait_until(f"{lost} to be lost", functools.partial(self._is_lost, lost), poll_s=_POLL_S)
        known = self._seen.lost_at(lost)
        await ground.wait_until(f"{name} to run again", lambda: self._is_running(name, lost), poll_s=_POLL_S)
        recovered_s = self._seen.running_at(name) - known
        plans = [
            entry.answered.timestamp()
            for entry in tail.read()
            if entry.object.resource == "jobs"
            and not entry.object.subresource
            and entry.user.username == scheduler.USER
        ]
        return (min(plans) - known if plans else None), recovered_s

    async def _is_running(self, name: str, without: str) -> bool:
        nodes = self._seen.pods_of(name).values()
        return len(nodes) == self._options.gang_size and without not in nodes

    async def _is_ready(self, node: str) -> bool:
        return self._seen.is_ready(node)

    async def _is_lost(self, node: str) -> bool:
        return not self._seen.is_ready(node)


def _build_workload(name: str, pods: int) -> dict[str, Any]:
    kind = resources.GPU_WORKLOAD
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": {
            "gpuRequirements": {"count": pods * _GPUS, "topology": {"requiredLevel": "leaf"}},
            "gpusPerPod": _GPUS,
            "workloadType": "Training",
            "recoveryPolicy": "ReplaceFailed",
            "podTemplate": {"metadata": {"annotations": load.RUNS_ON}, "spec": load.pod_spec(_GPUS)},
        },
    }


def _build_job(name: str, pods: int) -> dict[str, Any]:
    at_once = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0} for key in _DEAD]
    return {
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 1000,
            "template": {
                "metadata": {"annotations": load.RUNS_ON},
                "spec": load.pod_spec(_GPUS, tolerations=at_once),
            },
        },
    }


# --- fail-over ------------------------------------------------------------------------------------------


class Replicas:
    """Two schedulers with one address; the leader listens on it."""

    def __init__(self, ground: Bed, port: int) -> None:
        self._bed = ground
        self._port = port
        self._names = (scheduler.NAME, f"{scheduler.NAME}-2")
        self._probes = ports.allocate(self._names)
        self._leader = ""

    async def start(self) -> None:
        for name in self._names:
            await self.start_replica(name)
        await self._bed.wait_until("a replica to become the leader", lambda: scheduler.is_listening(self._port))

    async def start_replica(self, name: str) -> None:
        """Start a replica, and wait until it is the leader or on standby."""
        probe = self._probes[name]
        await asyncio.to_thread(scheduler.start, self._bed.cluster, self._port, name=name, probe_port=probe)
        await self._bed.wait_until(f"{name} to be ready", lambda: self._is_leader_ready(name, ("200", "standby")))

    async def kill_leader(self) -> str:
        """Kill the leader and return its name. A busy leader may not be ready at once."""
        await self._bed.wait_until("a replica to lead", self._find_leader)
        name = self._leader
        processes.kill(self._bed.cluster.state().everyone[name])
        return name

    async def _find_leader(self) -> bool:
        for name in self._names:
            if await self._is_leader_ready(name, ("200",)):
                self._leader = name
                return True
        return False

    async def leads_again(self) -> float:
        """Wait until another replica is the leader, and return the time."""
        await self._bed.wait_until(
            "the other replica to become the leader", lambda: scheduler.is_listening(self._port), poll_s=_POLL_S
        )
        return time.time()

    async def _is_leader_ready(self, name: str, words: Sequence[str]) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(ports.LOOPBACK, self._probes[name])
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
                said = (await reader.read()).decode()
                writer.close()
                status = said.split(" ", 2)[1]
                return status in words or any(word in said for word in words if not word.isdigit())
        return False


async def _fail_over(ground: Bed, seen: Sightings, replicas: Replicas, kills: int) -> dict[str, Any]:
    acting, bound = [], []
    for number in range(kills):
        ground.step.update(f"killing leader {number + 1} of {kills}")
        dead = await replicas.kill_leader()
        name, began = f"after-{number}", time.time()
        await ground.client.create(resources.POD, _build_pod(name), bed.NAMESPACE)
        acting.append(await replicas.leads_again() - began)
        await ground.wait_until(f"{name} to be bound", functools.partial(_is_bound, seen, name), poll_s=_POLL_S)
        bound.append(seen.bound_at(name) - began)
        await replicas.start_replica(dead)
    return {**_spread("failover", acting), **_spread("bound_after_kill", bound)}


async def _is_bound(seen: Sightings, name: str) -> bool:
    return seen.bound_at(name) > 0


def _build_pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": load.RUNS_ON}, "spec": load.pod_spec(1)}


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {
        f"{name}_p50_s": round(percentile(sorted(seconds), 50), 3),
        f"{name}_max_s": round(max(seconds), 3),
    }

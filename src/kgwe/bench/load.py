"""The work a cluster benchmark submits: the same pod as a bare pod, as a Job, and as a GPUWorkload of either kind.

Every phase submits through the same client with the same number of requests in flight, as fast as the API server
takes them.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kgwe.bench.timeline import work_name
from kgwe.kube import resources
from kgwe.model import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.kube.client import KubeClient
    from kgwe.kube.resources import Resource

Kind = Literal["kgwe", "warp"]

IN_FLIGHT = 16
# No kube-scheduler answers to this name, so the null binder has these pods to itself.
NULL_SCHEDULER = "kgwe-bench-null"
_IMAGE = "registry.k8s.io/pause:3.10"
# The pods run on, so that nothing completes (and frees its GPU) while the rest is still being placed.
_RUNS_ON = {"kgwe.nvidia.io/simulated-duration": "1h"}


class Phase(enum.StrEnum):
    """Who is measured."""

    NULL = "null"  # bare pods bound by a loop that does not think: what the API server can take
    PODS = "pods"  # bare pods, kube-scheduler alone
    JOBS = "jobs"  # Jobs of one pod, kube-scheduler alone: the baseline of GPUWorkloads
    WORKLOADS = "workloads"  # GPUWorkloads, the controller beside kube-scheduler


@dataclass(frozen=True, slots=True)
class Load:
    """What one phase submits, one object per piece of work."""

    phase: Phase
    kind: Kind
    gpus: int
    strategy: str

    @property
    def resource(self) -> Resource[Any]:
        if self.phase is Phase.JOBS:
            return resources.JOB
        if self.phase is Phase.WORKLOADS:
            return resources.GPU_WORKLOAD if self.kind == "kgwe" else resources.WARP_GPU_WORKLOAD
        return resources.POD

    def body(self, index: int) -> dict[str, Any]:
        spec = _SPECS[self.phase](self)
        metadata: dict[str, Any] = {"name": work_name(index)}
        if self.resource is resources.POD:
            metadata["annotations"] = _RUNS_ON
        named = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return {**named, "metadata": metadata, "spec": spec}

    def pod_spec(self, **more: Any) -> dict[str, Any]:
        limits = {amounts.GPU: str(self.gpus)}
        container = {"name": "main", "image": _IMAGE, "resources": {"limits": limits}}
        return {"containers": [container], "restartPolicy": "Never", **more}


def _job_spec(load: Load) -> dict[str, Any]:
    return {"backoffLimit": 0, "template": {"metadata": {"annotations": _RUNS_ON}, "spec": load.pod_spec()}}


def _workload_spec(load: Load) -> dict[str, Any]:
    if load.kind == "warp":
        return {"modelName": "bench", "gpuCount": load.gpus, "schedulingStrategy": load.strategy}
    return {
        "gpuRequirements": {"count": load.gpus},
        "workloadType": "Training",
        "schedulingStrategy": load.strategy,
        "podTemplate": {"metadata": {"annotations": _RUNS_ON}, "spec": load.pod_spec()},
    }


_SPECS: dict[Phase, Callable[[Load], dict[str, Any]]] = {
    Phase.NULL: lambda load: load.pod_spec(schedulerName=NULL_SCHEDULER),
    Phase.PODS: lambda load: load.pod_spec(),
    Phase.JOBS: _job_spec,
    Phase.WORKLOADS: _workload_spec,
}


async def submit(client: KubeClient, load: Load, count: int, namespace: str, nodes: list[str]) -> None:
    """Create `count` pieces of work; in the null phase each is bound at once to its own of `nodes`."""
    await spread(range(count), lambda index: _submit_one(client, load, index, namespace, nodes))


async def _submit_one(client: KubeClient, load: Load, index: int, namespace: str, nodes: list[str]) -> None:
    await client.create(load.resource, load.body(index), namespace)
    if load.phase is Phase.NULL:
        name = work_name(index)
        target = {"apiVersion": "v1", "kind": "Node", "name": nodes[index]}
        path = resources.POD.path(namespace=namespace, name=name, subresource="binding")
        await client.request("POST", path, body={"metadata": {"name": name}, "target": target})


async def spread(indices: range, act: Callable[[int], Any]) -> None:
    """Act on every index, IN_FLIGHT at a time; the first error ends it."""
    queue: Iterator[int] = iter(indices)

    async def work() -> None:
        for index in queue:
            await act(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())

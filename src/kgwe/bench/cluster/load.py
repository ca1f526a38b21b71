"""The objects that a cluster benchmark submits: one pod as such, as a member of a gang, as a Job and as a GPUWorkload.

All phases submit with the same client and the same number of concurrent requests, as fast as the API server allows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from kgwe.bench.cluster.scenarios import Gang, Piece, Standing
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

Kind = Literal["kgwe", "warp"]
T = TypeVar("T")

IN_FLIGHT = 16
# No kube-scheduler has this scheduler name, so only the null phase binds these pods.
NULL_SCHEDULER = "kgwe-bench-null"
_IMAGE = "registry.k8s.io/pause:3.10"
# The pods keep running, so that no GPU becomes free while pods are still being placed.
RUNS_ON = {"kgwe.nvidia.io/simulated-duration": "1h"}


# Scenarios whose pods are created by Jobs.
_AS_OBJECTS = frozenset({Scenario.WORKLOADS, Scenario.JOBGANGS})


@dataclass(frozen=True, slots=True)
class Load:
    """The objects of a scenario, as one phase submits them."""

    scenario: Scenario
    phase: Phase
    # Namespace of GPUWorkloads.
    kind: Kind = "kgwe"
    strategy: str = "leastLoaded"

    @property
    def resource(self) -> Resource[Any]:
        if self.scenario not in _AS_OBJECTS or self.phase is Phase.NULL:
            return resources.POD
        if self.phase is Phase.KUBE_SCHEDULER:
            return resources.JOB
        return resources.GPU_WORKLOAD if self.kind == "kgwe" else resources.WARP_GPU_WORKLOAD

    def body(self, piece: Piece) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": piece.name}
        if self.resource is resources.POD:
            metadata["annotations"] = RUNS_ON | self._membership(piece)
        named = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return {**named, "metadata": metadata, "spec": self._spec(piece)}

    def _membership(self, piece: Piece) -> dict[str, str]:
        return gang_annotations(piece.gang) if piece.gang and self.phase is Phase.KGWE else {}

    def _spec(self, piece: Piece) -> dict[str, Any]:
        if self.resource is resources.POD:
            return self._pod_spec(piece)
        if self.resource is resources.JOB:
            template = {"metadata": {"annotations": RUNS_ON}, "spec": pod_spec(piece.gpus)}
            indexed = {"completions": piece.pods, "parallelism": piece.pods, "completionMode": "Indexed"}
            return {"backoffLimit": 0, "template": template, **(indexed if piece.pods > 1 else {})}
        if self.resource is resources.WARP_GPU_WORKLOAD:
            return {"modelName": "bench", "gpuCount": piece.gpus, "schedulingStrategy": self.strategy}
        gang: dict[str, Any] = {}
        requirements: dict[str, Any] = {"count": piece.gpus * piece.pods}
        if piece.pods > 1:
            gang = {"gpusPerPod": piece.gpus}
            requirements["topology"] = {"requiredLevel": "leaf"}
        return {
            "gpuRequirements": requirements,
            "workloadType": "Training",
            "schedulingStrategy": self.strategy,
            "podTemplate": {"metadata": {"annotations": RUNS_ON}, "spec": pod_spec(piece.gpus)},
            **gang,
        }

    def _pod_spec(self, piece: Piece) -> dict[str, Any]:
        if self.phase is Phase.NULL:
            return pod_spec(piece.gpus, schedulerName=NULL_SCHEDULER)
        waits = piece.gang is not None or self.scenario is Scenario.QUEUED
        gated = self.phase in {Phase.KGWE, Phase.GATE} and waits
        return pod_spec(piece.gpus, **({"schedulingGates": [{"name": PLAN_GATE}]} if gated else {}))


def gang_annotations(gang: Gang) -> dict[str, str]:
    """Return the annotations of a gang member."""
    said = {
        "gang": gang.name,
        "gang-size": str(gang.pods),
        "topology-required": gang.required,
        "topology-preferred": gang.preferred,
    }
    return {f"kgwe.nvidia.io/{name}": value for name, value in said.items() if value}


def pod_spec(gpus: int, **more: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": _IMAGE}
    if gpus:
        container["resources"] = {"limits": {amounts.GPU: str(gpus)}}
    return {"containers": [container], "restartPolicy": "Never", **more}


# --- submitting -----------------------------------------------------------------------------------------


async def submit(
    client: KubeClient, load: Load, pieces: Iterable[Piece], namespace: str, targets: Mapping[str, str]
) -> None:
    """Create all objects. The null phase binds each pod to its target at once; the gate phase pins it to the target."""

    async def submit_piece(piece: Piece) -> None:
        await client.create(load.resource, load.body(piece), namespace)
        if load.phase is Phase.NULL and piece.name in targets:
            await bind(client, piece.name, namespace, targets[piece.name])
        elif load.phase is Phase.GATE:
            await open_gate(client, piece.name, namespace, targets[piece.name])

    # Do not wait for the binding before the next create.
    await run_concurrently(pieces, submit_piece, IN_FLIGHT if load.phase is not Phase.GATE else 2 * IN_FLIGHT)


async def bind(client: KubeClient, pod: str, namespace: str, node: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"metadata": {"name": pod}, "target": target}
    await client.create(resources.BINDING, body, namespace, name=pod, subresource="binding")


async def open_gate(client: KubeClient, pod: str, namespace: str, node: str) -> None:
    """Pin a pod to its node and remove its scheduling gate, in one write."""
    spec: dict[str, Any] = {"schedulingGates": []}
    placement_annotations.pin_to_node(spec, node)
    await client.patch(resources.POD, pod, {"spec": spec}, namespace)


async def create_bound_pods(
    client: KubeClient, pods: Iterable[Standing], namespace: str, progress: Callable[[int], None]
) -> None:
    """Create pods with a node name, which no scheduler handles."""
    done = 0

    async def create_pod(numbered: tuple[int, Standing]) -> None:
        nonlocal done
        number, pod = numbered
        metadata = {"name": f"standing-{number:06d}", "annotations": RUNS_ON}
        body = {"metadata": metadata, "spec": pod_spec(pod.gpus, nodeName=pod.node)}
        await client.create(resources.POD, body, namespace)
        done += 1
        progress(done)

    await run_concurrently(enumerate(pods), create_pod)


async def run_concurrently(items: Iterable[T], act: Callable[[T], Awaitable[Any]], in_flight: int = IN_FLIGHT) -> None:
    """Run an action on each item with limited concurrency; the first error stops it."""
    queue: Iterator[T] = iter(items)

    async def work() -> None:
        for item in queue:
            await act(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())

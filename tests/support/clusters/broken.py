"""Nodes that can be broken, gangs on them, and where their pods are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import kgwe
from tests.support.patience import PATIENCE_S

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.local.fleet import apply, faults
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"


async def racks(bed: Bed, leaves: dict[str, int], gpus: int = 8) -> None:
    """So many nodes per leaf, named after it, that can be broken."""
    for leaf, count in leaves.items():
        labels = {LEAF: leaf, SPINE: "s", inventory.FLEET_LABEL: "test"}
        for number in range(count):
            await bed.node(f"{leaf}{number}", gpus, labels=labels)


def gang(name: str, pods: int, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    body = kgwe(name, pods * gpus, gpusPerPod=gpus, **spec)
    if level := spec.pop("level", ""):
        del body["spec"]["level"]
        body["spec"]["gpuRequirements"]["topology"] = {"requiredLevel": level}
    return body


def pods_of(bed: Bed, workload: Any) -> dict[int, Any]:
    """Rank -> pod that is not on its way out."""
    job = bed.jobs_of(workload)
    return {
        int(pod.metadata.annotations.get(placement_annotations.INDEX_ANNOTATION, "0")): pod
        for pod in bed.pods.store.values()
        if job
        and pod.metadata.controller is not None
        and pod.metadata.controller.uid == job[0].metadata.uid
        and pod.metadata.deletionTimestamp is None
    }


def where(bed: Bed, workload: Any) -> dict[int, str]:
    """Rank -> node, of pods that run."""
    return {
        rank: pod.spec.nodeName
        for rank, pod in sorted(pods_of(bed, workload).items())
        if pod.status.phase == "Running" and apply.NODE_FAULT_ANNOTATION not in pod.metadata.annotations
    }


async def running(bed: Bed, body: dict[str, Any], pods: int) -> tuple[Any, dict[int, Any]]:
    """The workload once all its pods run, and those pods."""
    workload = await bed.submit(body)
    await bed.until_phase(workload, "Running")
    await bed.until(lambda: len(where(bed, workload)) == pods)
    return workload, pods_of(bed, workload)


async def break_nodes(bed: Bed, *names: str) -> None:
    await asyncio.gather(*(faults.node_down(bed.client, name) for name in names))


def where_of(pods: dict[int, Any]) -> list[str]:
    return [pod.spec.nodeName for _, pod in sorted(pods.items())]


async def until_metric(replica: Any, name: str, value: float, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while await replica.metric(name) != value:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.2)


def uids(pods: dict[int, Any]) -> dict[int, str]:
    return {rank: pod.metadata.uid for rank, pod in pods.items()}


async def until_event(bed: Bed, workload: Any, reason: str, timeout_s: float = PATIENCE_S) -> str:
    """The note of an Event about the workload, once there is one."""
    async with asyncio.timeout(timeout_s):
        while True:
            for event in await bed.client.list(resources.EVENT, "default"):
                text = bytes(event).decode()
                if workload.metadata.uid in text and f'"reason":"{reason}"' in text:
                    return text
            await asyncio.sleep(0.2)


# --- gangs of others


def foreign(name: str, pods: int, gpus: int = 8, **said: str) -> dict[str, Any]:
    """A Job of somebody else whose pods are a gang inside one leaf; `said` are further annotations of ours."""
    annotations = {
        "kgwe.nvidia.io/gang": "true",
        "kgwe.nvidia.io/topology-required": "leaf",
        "kgwe.nvidia.io/simulated-duration": "1h",
        **{f"kgwe.nvidia.io/{key}": value for key, value in said.items()},
    }
    container = {"name": "c", "image": "x", "resources": {"limits": {amounts.GPU: str(gpus)}}}
    template = {
        "metadata": {"annotations": annotations, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "schedulingGates": [{"name": placement_annotations.GATE}],
        },
    }
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignore]},
            "template": template,
        },
    }


def members(bed: Bed, name: str) -> dict[int, Any]:
    """Rank -> pod of a Job of others that runs."""
    return {
        int(pod.metadata.annotations[placement_annotations.INDEX_ANNOTATION]): pod
        for pod in bed.pods.store.values()
        if pod.metadata.labels.get("app") == name
        and pod.status.phase == "Running"
        and pod.metadata.deletionTimestamp is None
        and apply.NODE_FAULT_ANNOTATION not in pod.metadata.annotations
    }

"""Replicas of inference on a real control plane: kubectl scale, updates, a killed leader, and deletes.

tests/unit/scheduler/test_replicas.py has the same on a cluster in memory, with every moment of an update.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.local.toolchain import binaries

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


def template(version: str) -> dict[str, Any]:
    container = {"name": "main", "image": "img", "env": [{"name": "VERSION", "value": version}]}
    return {"metadata": {"labels": {"version": version}}, "spec": {"containers": [container]}}


def service(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    body = kgwe(name, gpus, workloadType="Inference", **spec)
    body["spec"]["podTemplate"] = template("v1")
    return body


async def kubectl(bed: Bed, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        str(binaries.find().found["kubectl"].path), *arguments, "--kubeconfig", str(bed.cluster.kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode or 0, out.decode()


def pods_of(bed: Bed, name: str) -> list[Any]:
    """Pods of the service that are not being deleted."""
    return [
        pod
        for pod in bed.pods.store.values()
        if pod.metadata.labels.get("kgwe.nvidia.io/workload") == name and pod.metadata.deletionTimestamp is None
    ]


def counts(bed: Bed, workload: Any) -> tuple[int, int, int]:
    found = bed.now(workload)
    if found is None:
        return -1, -1, -1  # the informer is behind
    status = found.status
    return status.replicas, status.readyReplicas, status.updatedReplicas


async def until_ready(bed: Bed, workload: Any, count: int) -> None:
    name = workload.metadata.name
    await bed.until(lambda: counts(bed, workload) == (count,) * 3 and len(pods_of(bed, name)) == count)


def versions(bed: Bed, name: str) -> Counter[str]:
    return Counter(pod.metadata.labels["version"] for pod in pods_of(bed, name))


async def test_kubectl_scales_updates_go_on_after_a_kill_and_a_delete_leaves_nothing(bed: Bed):
    for name, leaf in (("a0", "a"), ("a1", "a"), ("b0", "b")):
        await bed.node(name, 8, labels={"network.topology.nvidia.com/leaf": leaf})
    leader = await bed.controller()
    workload = await bed.submit(service("api", 4))
    await until_ready(bed, workload, 1)
    before = {pod.metadata.uid: pod.spec.nodeName for pod in pods_of(bed, "api")}

    assert (await kubectl(bed, "scale", "gpuworkloads.kgwe.nvidia.io/api", "--replicas=4"))[0] == 0
    await until_ready(bed, workload, 4)
    now = {pod.metadata.uid: pod.spec.nodeName for pod in pods_of(bed, "api")}
    assert before.items() <= now.items(), "a replica that runs stays where it is"
    assert Counter(node[0] for node in now.values()) == {"a": 2, "b": 2}, "spread over the leaves"
    scale = await bed.client.request("GET", f"{resources.GPU_WORKLOAD.path(namespace='default', name='api')}/scale")
    assert b"kgwe.nvidia.io/workload=api" in scale, "an autoscaler finds the pods"

    refused = await bed.submit(kgwe("training", 1))
    code, said = await kubectl(bed, "scale", f"gpuworkloads.kgwe.nvidia.io/{refused.metadata.name}", "--replicas=2")
    assert code
    assert "only inference has replicas" in said

    # An update with room for one more, and a leader that dies in the middle.
    await bed.edit(workload, {"podTemplate": template("v2")})
    await bed.until(lambda: versions(bed, "api")["v2"] >= 1)
    leader.kill()
    await bed.controller()
    await bed.until(lambda: versions(bed, "api") == {"v2": 4})
    await until_ready(bed, workload, 4)
    assert max(bed.gpus_bound().values()) <= 8

    # One without room: each old replica stops before its successor starts.
    filler = await bed.submit(kgwe("filler", 7))
    await bed.until_phase(filler, "Running")
    await bed.edit(workload, {"replicas": 4, "podTemplate": template("v3")})
    said_modes: set[str] = set()

    def is_updated() -> bool:
        found = [each for each in bed.now(workload).status.conditions if each.type == "Updating"]
        said_modes.update(each.reason for each in found)
        return versions(bed, "api") == {"v3": 4} and not found

    await bed.until(is_updated)
    assert "OneByOne" in said_modes
    await until_ready(bed, workload, 4)

    assert (await kubectl(bed, "scale", "gpuworkloads.kgwe.nvidia.io/api", "--replicas=1"))[0] == 0
    await until_ready(bed, workload, 1)
    assert condition(bed.now(workload), "Running").status == "True"
    await bed.edit(workload, {"replicas": 5})
    await bed.delete(workload)
    await bed.until(lambda: not pods_of(bed, "api"))
    await bed.until(lambda: sum(bed.gpus_bound().values()) == 8)


async def test_services_with_many_replicas_do_not_keep_another_workload_waiting(bed: Bed):
    await bed.node("n1", 8)
    await bed.node("n2", 1)
    await bed.controller()
    for number in range(8):
        await bed.submit(service(f"greedy-{number}", 8, replicas=64))

    victim = await bed.submit(kgwe("victim", 1))

    await bed.until_phase(victim, "Running")

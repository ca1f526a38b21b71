"""Workloads of many pods on a real control plane: planned whole, seated by rank, found by name, told in full."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.clusters import seat_policy
from tests.support.clusters.bed import condition, kgwe
from tests.support.clusters.distributed import nodes_of, pods_of

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.local.fleet import apply, models
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

LEAF, SPINE = "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"


async def racks(bed: Bed, **leaves: int) -> None:
    """So many nodes of eight GPUs per leaf, named after it."""
    for leaf, count in leaves.items():
        for number in range(count):
            await bed.node(f"{leaf}{number}", 8, labels={LEAF: leaf, SPINE: "spine"})


async def read(bed: Bed, resource: Any, name: str) -> dict[str, Any]:
    path = resource.path(namespace="default", name=name)
    found: dict[str, Any] = json.loads(await bed.client.request("GET", path))
    return found


class TestGangs:
    async def test_sixteen_gpus_on_nodes_of_eight_are_two_pods_on_one_leaf(self, bed: Bed):
        """On nodes of the fleet model, so that cards have names and wiring is known."""
        await apply.apply_fleet(bed.client, models.load("dgx-h100"), 8)
        await bed.controller()
        workload = await bed.submit(kgwe("big", 16, distributedConfig={"strategy": "FSDP", "worldSize": 16}))
        running = await bed.until_phase(workload, "Running")
        status = running.status

        first, second = pods_of(bed, workload)
        assert [each.node for each in status.placements] == [first.spec.nodeName, second.spec.nodeName]
        leaf_of = {name: node.metadata.labels[LEAF] for name, node in bed.nodes.store.items()}
        assert len({leaf_of[name] for name in nodes_of(bed, workload)}) == 1
        assert len(set(nodes_of(bed, workload))) == 2
        assert status.domain == f"leaf/{leaf_of[first.spec.nodeName]}"
        assert first.spec.schedulingGates == second.spec.schedulingGates == ()

        for each in status.placements:
            described = await bed.client.get(resources.GPU_NODE, each.node)
            assert list(each.gpus) == [device.uuid for device in described.status.gpus]
        assert len(set(status.allocatedGPUs)) == 16
        parts = {part.name: part.points for part in status.scoreParts}
        assert set(parts) == {"availability", "alignment", "utilisation", "history"}
        assert status.schedulingScore == round(sum(parts.values()))
        assert status.estimatedBandwidth > 0
        assert "2 pods on 2 nodes" in status.reasons

        (job,) = bed.jobs_of(workload)
        body = await read(bed, resources.JOB, job.metadata.name)
        assert body["spec"]["completionMode"] == "Indexed"
        assert (body["spec"]["completions"], body["spec"]["parallelism"]) == (2, 2)
        service = await read(bed, resources.SERVICE, job.metadata.name)
        assert service["spec"]["clusterIP"] == "None"
        assert service["metadata"]["ownerReferences"][0]["uid"] == workload.metadata.uid
        made = await read(bed, resources.POD, second.metadata.name)
        assert made["spec"]["subdomain"] == job.metadata.name
        assert made["spec"]["hostname"] == f"{job.metadata.name}-1"
        env = {each["name"]: each.get("value") for each in made["spec"]["containers"][0]["env"]}
        assert env["MASTER_ADDR"] == f"{job.metadata.name}-0.{job.metadata.name}"
        assert (env["WORLD_SIZE"], env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("16", "2", "8")
        assert made["spec"]["containers"][0]["resources"]["limits"][amounts.GPU] == "8"

        await bed.delete(workload)
        await bed.until(lambda: not bed.jobs_of(workload) and not bed.gpus_bound())
        await apply.apply_fleet(bed.client, models.load("dgx-h100"), 0)

    async def test_a_whole_nvl72_rack_is_one_workload(self, bed: Bed):
        await apply.apply_fleet(bed.client, models.load("gb200-nvl72"), 18)
        await bed.controller()
        workload = await bed.submit(kgwe("rack", 72))
        running = await bed.until_phase(workload, "Running")
        assert (running.status.nodeCount, running.status.allocatedGPUCount) == (18, 72)
        assert len(set(running.status.allocatedGPUs)) == 72
        assert sorted(bed.gpus_bound().values()) == [4] * 18
        await bed.delete(workload)
        await bed.until(lambda: not bed.jobs_of(workload) and not bed.gpus_bound())
        await apply.apply_fleet(bed.client, models.load("gb200-nvl72"), 0)

    async def test_gpus_per_pod_are_as_given_and_ranks_are_neighbours(self, bed: Bed):
        await racks(bed, a=1, b=2)
        await bed.controller()
        workload = await bed.submit(kgwe("w", 16, gpusPerPod=4))
        running = await bed.until_phase(workload, "Running")
        found = nodes_of(bed, workload)
        assert found == sorted(found)
        assert {name: found.count(name) for name in found} == {"b0": 2, "b1": 2}
        assert [(each.node, each.pods) for each in running.status.placements] == [("b0", 2), ("b1", 2)]

    async def test_a_level_that_is_too_small_keeps_it_waiting_with_what_would_help(self, bed: Bed):
        await racks(bed, a=1, b=1)
        await bed.controller()
        body = kgwe("w", 16)
        body["spec"]["gpuRequirements"]["topology"] = {"requiredLevel": "leaf"}
        workload = await bed.submit(body)
        waiting = await bed.until_phase(workload, "Pending")
        assert condition(waiting, "Scheduled").reason in ("TopologyNotMet", "TooLarge")
        assert "require spine instead of leaf" in waiting.status.reasons
        assert bed.jobs_of(workload) == []

        await bed.edit(workload, {"gpuRequirements": {"topology": {"requiredLevel": "spine"}}})

        running = await bed.until_phase(workload, "Running")
        assert running.status.domain == "spine/spine"
        assert running.status.observedGeneration == 2

    async def test_a_world_that_cannot_be_shared_out_is_refused_when_it_is_created(self, bed: Bed):
        for spec in (
            {"distributedConfig": {"worldSize": 12}},
            {"distributedConfig": {"worldSize": 32}},
            {"gpusPerPod": 4, "distributedConfig": {"worldSize": 2}},
        ):
            with pytest.raises(errors.Permanent, match="worldSize"):
                await bed.submit(kgwe("w", 16, **spec))

    async def test_a_gang_ends_when_all_its_pods_have(self, bed: Bed):
        await racks(bed, a=2)
        await bed.controller()
        workload = await bed.submit(kgwe("w", 16, duration="2s"))
        done = await bed.until_phase(workload, "Succeeded")
        assert done.status.completionTime
        await bed.until(lambda: not bed.gpus_bound())

    async def test_a_scheduler_killed_between_job_and_seats_leaves_nothing_undone(self, bed: Bed):
        """Without the right to patch pods the first can create the Job and no more."""
        await racks(bed, a=2)
        role = await read_role(bed)
        await set_pod_verbs(bed, role, ["get", "list", "watch"])
        async with seat_policy.removed(bed):
            first = await bed.controller()
            workload = await bed.submit(kgwe("w", 16))
            await bed.until(lambda: len(pods_of(bed, workload)) == 2)
        (job,) = bed.jobs_of(workload)
        first.kill()
        assert all(placement_annotations.is_gated(pod) for pod in pods_of(bed, workload))
        await set_pod_verbs(bed, role, role["verbs"])

        await bed.controller()

        await bed.until_phase(workload, "Running")
        assert nodes_of(bed, workload) == ["a0", "a1"]
        assert [each.metadata.uid for each in bed.jobs_of(workload)] == [job.metadata.uid]

    async def test_a_node_that_vanishes_before_its_pod_is_bound_is_replaced(self, bed: Bed):
        await racks(bed, a=2, b=2)
        await bed.controller()
        # No scheduler of that name: the pods are seated and never bound.
        workload = await bed.submit(kgwe("w", 16, pod={"schedulerName": "nobody"}))
        await bed.until(
            lambda: pods_of(bed, workload) and not any(map(placement_annotations.is_gated, pods_of(bed, workload)))
        )
        planned = {placement_annotations.pinned_node(pod.spec) for pod in pods_of(bed, workload)}
        (job,) = bed.jobs_of(workload)

        await bed.client.delete(resources.NODE, min(planned))

        await bed.until(lambda: [j.metadata.uid for j in bed.jobs_of(workload)] not in ([], [job.metadata.uid]))
        await bed.until(lambda: len(pods_of(bed, workload)) == 2)
        await bed.until(lambda: not any(map(placement_annotations.is_gated, pods_of(bed, workload))))
        again = {placement_annotations.pinned_node(pod.spec) for pod in pods_of(bed, workload)}
        assert len(again) == 2
        assert min(planned) not in again

    async def test_an_edit_before_anything_runs_counts(self, bed: Bed):
        await racks(bed, a=2)
        await bed.controller()
        workload = await bed.submit(kgwe("w", 16, pod={"schedulerName": "nobody"}))
        await bed.until(lambda: len(pods_of(bed, workload)) == 2)

        await bed.edit(workload, {"gpuRequirements": {"count": 8}, "podTemplate": {"spec": {"schedulerName": None}}})

        running = await bed.until_phase(workload, "Running")
        assert running.status.observedGeneration == 2
        assert len(pods_of(bed, workload)) == 1

    async def test_a_plan_that_somebody_takes_away_is_made_again_or_remembered(self, bed: Bed):
        await racks(bed, a=2)
        await bed.controller()
        workload = await bed.submit(kgwe("w", 16))
        await bed.until_phase(workload, "Running")
        (job,) = bed.jobs_of(workload)
        gone = {
            "metadata": {
                "annotations": {placement_annotations.PLAN_ANNOTATION: None, metadata_keys.DETAILS_ANNOTATION: None}
            }
        }
        await bed.client.patch(resources.JOB, job.metadata.name, gone, "default")

        victim = pods_of(bed, workload)[1]
        await evict(bed, victim)

        await bed.until(lambda: victim.metadata.uid not in {pod.metadata.uid for pod in pods_of(bed, workload)})
        await bed.until(lambda: nodes_of(bed, workload) == ["a0", "a1"])
        assert bed.phase(workload) == "Running"


async def evict(bed: Bed, pod: Any) -> None:
    meta = {"name": pod.metadata.name, "namespace": "default"}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    await bed.client.request("POST", f"/api/v1/namespaces/default/pods/{meta['name']}/eviction", body=body)


_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kgwe-scheduler"


async def read_role(bed: Bed) -> dict[str, Any]:
    """Where in the scheduler's role pods stand, and with which verbs."""
    rules = json.loads(await bed.client.request("GET", _ROLE))["rules"]
    index = next(i for i, rule in enumerate(rules) if rule["resources"] == ["pods"])
    return {"index": index, "verbs": rules[index]["verbs"]}


async def set_pod_verbs(bed: Bed, role: dict[str, Any], verbs: list[str]) -> None:
    patch = [{"op": "replace", "path": f"/rules/{role['index']}/verbs", "value": verbs}]
    kind = "application/json-patch+json"
    await bed.client.request("PATCH", _ROLE, body=patch, content_type=kind)


class TestInference:
    async def test_it_serves_until_it_is_deleted_and_keeps_its_seat(self, bed: Bed):
        await bed.node("n1", 8)
        await bed.node("n2", 8)
        await bed.controller()
        workload = await bed.submit(kgwe("chat", 2, workloadType="Inference"))
        running = await bed.until_phase(workload, "Running")
        (made,) = bed.deployments.store.values()
        assert running.status.jobName == made.metadata.name
        assert bed.jobs_of(workload) == []
        node = running.status.scheduledNode
        filler = await bed.submit(kgwe("filler", 8 - 2, pod={"nodeSelector": {"kubernetes.io/hostname": node}}))
        await bed.until_phase(filler, "Running")

        (pod,) = pods_of(bed, workload)
        greedy = await bed.submit(kgwe("greedy", 1, pod={"nodeSelector": {"kubernetes.io/hostname": node}}))
        await bed.until_phase(greedy, "Pending")
        await evict(bed, pod)

        await bed.until(lambda: pod.metadata.uid not in {each.metadata.uid for each in pods_of(bed, workload)})
        await bed.until(lambda: nodes_of(bed, workload) == [node])
        await bed.until_phase(workload, "Running")
        assert bed.phase(greedy) == "Pending", "nobody gets the seat in between"
        assert "Succeeded" not in [phase for uid, phase in bed.phases if uid == workload.metadata.uid]

        await bed.delete(workload)
        await bed.until(lambda: not bed.deployments.store)
        await bed.until_phase(greedy, "Running")

    async def test_replicas_are_spread_and_each_that_is_lost_comes_back_to_its_seat(self, bed: Bed):
        await racks(bed, a=2, b=2)
        await bed.controller()
        workload = await bed.submit(kgwe("chat", 4, gpusPerPod=1, workloadType="Inference"))
        await bed.until_phase(workload, "Running")
        await bed.until(lambda: len([name for name in nodes_of(bed, workload) if name]) == 4)
        before = sorted(nodes_of(bed, workload))
        assert before == ["a0", "a1", "b0", "b1"]

        gone = {pod.metadata.uid for pod in pods_of(bed, workload)[:2]}
        for pod in pods_of(bed, workload)[:2]:
            await evict(bed, pod)
        await bed.until(lambda: not gone & {pod.metadata.uid for pod in pods_of(bed, workload)})

        await bed.until(lambda: sorted(nodes_of(bed, workload)) == before)
        seats = [pod.metadata.annotations[placement_annotations.SEAT_ANNOTATION] for pod in pods_of(bed, workload)]
        assert len(set(seats)) == 4


# As the first of KGWE's documents shows it to its users.
LLM_TRAINING = """
apiVersion: kgwe.nvidia.io/v1
kind: GPUWorkload
metadata:
  name: llm-training
  namespace: ml-team
spec:
  gpuRequirements:
    count: 8
    minMemoryGB: 40
    topology:
      preference: NVLinkOptimal
      minBandwidthGBps: 600
  workloadType: Training
  framework: PyTorch
  distributedConfig:
    strategy: FSDP
    worldSize: 8
    backend: NCCL
  podTemplate:
    spec:
      containers:
        - name: training
          image: nvcr.io/nvidia/pytorch:24.01-py3
          command: ["torchrun", "--nproc_per_node=8", "train.py"]
"""


async def test_the_documented_training_job_runs_as_it_is_written(bed: Bed):
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 2)
    # Looks better to anybody who does not ask how its GPUs are wired.
    await bed.node("unknown", 8, labels={"nvidia.com/gpu.memory": "81559"})
    await bed.client.apply(resources.NAMESPACE, {"metadata": {"name": "ml-team"}})
    await bed.controller()

    workload = await bed.submit(yaml.safe_load(LLM_TRAINING), "ml-team")
    running = await bed.until_phase(workload, "Running")

    assert running.status.scheduledNode != "unknown", "600 GB/s are not known there"
    assert running.status.estimatedBandwidth >= 600
    assert len(running.status.allocatedGPUs) == 8
    assert {part.name for part in running.status.scoreParts} == {"topology", "resource", "balance"}
    assert running.status.domain == f"node/{running.status.scheduledNode}"
    await bed.delete(workload)
    await bed.until(lambda: bed.now(workload) is None)
    await apply.apply_fleet(bed.client, models.load("dgx-h100"), 0)

"""The autoscaler on a real control plane, with the simulated cloud: end to end, and killed at bad moments."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.clusters import go_modules
from tests.support.clusters.autoscaler import H100, ScalingCluster
from tests.support.clusters.bed import kgwe
from tests.support.patience import PATIENCE_S

from kgwe.kube import dialects
from kgwe.kube.api import autoscaling, resources
from kgwe.kube.api.timestamp import epoch_seconds
from kgwe.local.fleet import exporter
from kgwe.local.fleet.cloud import CloudRules
from kgwe.local.fleet.simulator import Simulator
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.support.clusters.bed import Bed

pytestmark = pytest.mark.cluster

LEAF = "fabric.topograph.run/tier-0"
L40S = {
    **H100, "name": "l40s", "gpuType": "L40S", "instanceTypes": ["g6e.48xlarge"], "cpu": "180", "memory": "1400Gi",
}  # fmt: skip
SHARED = {**L40S, "name": "l40s-shared", "sharesPerGPU": 2}
MIG = {
    **H100, "name": "a100-mig", "gpuType": "A100-SXM4-80GB", "instanceTypes": ["p4de.24xlarge"], "cpu": "90",
    "memory": "1000Gi", "migLayout": ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"],
}  # fmt: skip


@contextlib.asynccontextmanager
async def scaling(bed: Bed, folder: Path, **rules: Any) -> AsyncIterator[ScalingCluster]:
    async with ScalingCluster(bed, folder, CloudRules(launch_delay_s=0.5, **rules)).running() as found:
        yield found


async def test_pods_shares_and_slices_get_nodes_once_although_gpus_come_late(bed: Bed, tmp_path: Path) -> None:
    async with scaling(bed, tmp_path, gpu_delay_s=3.0) as scale:
        await scale.add_policy(L40S, SHARED, MIG)
        await scale.add_pod("a", 3)
        await scale.add_pod("b", 4)
        for number in range(9):
            await scale.add_pod(f"mig{number}", resource="nvidia.com/mig-3g.40gb")
        for number in range(3):
            await scale.add_pod(
                f"share{number}", resource="nvidia.com/gpu.shared", annotations={"kgwe.nvidia.io/gpu-share": "0.5"}
            )
        wanted = {"a", "b", *(f"mig{n}" for n in range(9)), *(f"share{n}" for n in range(3))}
        await scale.until(lambda: scale.list_running() >= wanted)
        assert scale.count_bought() == 4, "one for 7 GPUs, two for 9 slices, one for shares"
        await scale.until(lambda: {each.stage for each in scale.status.stages} == {"InUse"})
        assert scale.count_bought() == 4
        assert scale.status.launches == ()
        events = await scale.client.list(resources.EVENT, "default")
        assert any(b"ScaleUp" in bytes(each) for each in events)


async def test_a_gang_of_16_nodes_is_bought_whole_in_one_leaf_or_not_at_all(bed: Bed, tmp_path: Path) -> None:
    await bed.controller()
    async with scaling(bed, tmp_path) as scale:
        await scale.add_policy({**H100, "maxSize": 15})
        body = kgwe("big", 128, gpusPerPod=8)
        body["spec"]["gpuRequirements"]["topology"] = {"requiredLevel": "leaf"}
        workload = await bed.submit(body)
        await scale.until(lambda: scale.status.unmet)
        assert scale.status.unmet[0].reason == "PoolLimitReached"
        assert scale.count_bought() == 0

        scale.rules.stock = {"p5.48xlarge/us-east-1a/*": 12}
        zones = {"availabilityZones": ["us-east-1a", "us-east-1b"]}
        await scale.edit_policy(nodePools=[{**H100, "maxSize": 16, **zones}])
        await bed.until_phase(workload, "Running")
        assert {each.kind for each in scale.status.blocked} == {"no-capacity"}, "zone a has only 12"
        assert (scale.count_bought(), len(bed.nodes.store)) == (16, 16)
        assert len({node.metadata.labels[LEAF] for node in bed.nodes.store.values()}) == 1


async def test_a_quota_leads_to_another_pool(bed: Bed, tmp_path: Path) -> None:
    async with scaling(bed, tmp_path, quota={"g6e.48xlarge/*": 0}) as scale:
        await scale.add_policy(L40S, H100)
        await scale.add_pod("a", 8)
        await scale.until(lambda: "a" in scale.list_running())
        assert [each.kind for each in scale.status.blocked] == ["quota"]
        assert {node.metadata.labels["gpu-autoscaler.io/node-pool"] for node in bed.nodes.store.values()} == {"h100"}


async def test_killed_in_mid_launch_and_mid_drain_it_buys_once_and_removes_the_node(bed: Bed, tmp_path: Path) -> None:
    async with scaling(bed, tmp_path) as scale:
        scale.rules.launch_delay_s = 2.0
        await scale.add_policy(H100, scaleDown={"idleSeconds": 1, "gracePeriodSeconds": 3})
        await scale.add_pod("a", 8)
        await scale.until(lambda: scale.status.launches)
        scale.kill()
        scale.start()
        await scale.until(lambda: "a" in scale.list_running())
        assert scale.count_bought() == 1

        await bed.client.delete(resources.POD, "a", "default", grace_s=0)
        await scale.until(lambda: any(node.spec.unschedulable for node in bed.nodes.store.values()))
        scale.kill()
        assert scale.count_alive() == 1
        scale.start()
        await scale.until(lambda: not bed.nodes.store)
        await scale.until(lambda: scale.count_alive() == 0)
        assert scale.count_bought() == 1
        status = scale.status
        assert status.lastScaleUpTime is not None
        assert epoch_seconds(status.lastScaleUpTime) > 0


@pytest.mark.slow
async def test_a_node_that_does_little_goes_within_the_disruption_budget(bed: Bed, tmp_path: Path) -> None:
    simulator = Simulator(bed.client)
    rules = CloudRules(launch_delay_s=0.2)
    async with (
        simulator.run_in_background(),
        http.serving(exporter.ExporterApp(simulator), http.Address("127.0.0.1", 0)) as port,
    ):
        env = {
            "KGWE_AUTOSCALER_EXPORTERS_FROM": f"http://127.0.0.1:{port}/targets",
            "KGWE_AUTOSCALER_SCRAPE_SECONDS": "0.5",
            "KGWE_AUTOSCALER_USE_WINDOW_SECONDS": "5",
        }
        async with ScalingCluster(bed, tmp_path, rules, env).running() as scale:
            await scale.add_policy(
                H100,
                scaleDown={"idleSeconds": 3600, "gracePeriodSeconds": 1, "autoConsolidate": True, "minRunSeconds": 0},
            )
            container = {"name": "c", "image": "example.com/i:1", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
            idle = {"kgwe.nvidia.io/use-profile": "idle"}
            for name in ("filler-a", "filler-b"):
                await scale.add_pod(name, 5, annotations=idle)
            await scale.until(lambda: len(scale.list_running()) == 2)
            template = {
                "metadata": {"labels": {"app": "web"}, "annotations": idle},
                "spec": {"containers": [container]},
            }
            selector = {"matchLabels": {"app": "web"}}
            web = {"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": selector, "template": template}}
            await bed.client.create(resources.DEPLOYMENT, web, "default")
            budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 2, "selector": selector}}
            await bed.client.create(resources.POD_DISRUPTION_BUDGET, budget, "default")
            await scale.until(lambda: len(scale.list_running()) == 4)
            assert scale.count_bought() == 2
            for name in ("filler-a", "filler-b"):
                await bed.client.delete(resources.POD, name, "default", grace_s=0)
            await scale.until(lambda: "DisruptionBudget" in {each.reason for each in scale.status.kept})
            assert not any(node.spec.unschedulable for node in bed.nodes.store.values())

            change = {"spec": {"minAvailable": 1}}
            await bed.client.patch(resources.POD_DISRUPTION_BUDGET, "web", change, "default")
            await scale.until(lambda: len(bed.nodes.store) == 1)
            await scale.until(lambda: len(scale.list_running()) == 2)
            await scale.until(lambda: scale.count_alive() == 1)
            assert scale.count_bought() == 2
            await bed.client.delete(resources.DEPLOYMENT, "web", "default")
            await bed.client.delete(resources.POD_DISRUPTION_BUDGET, "web", "default")


@pytest.mark.slow
async def test_provisioning_requests_and_buffers_of_the_real_kinds_are_served(bed: Bed, tmp_path: Path) -> None:
    requests, buffers = autoscaling.PROVISIONING_REQUESTS[0], autoscaling.CAPACITY_BUFFERS[0]
    files = (
        (go_modules.AUTOSCALER_APIS, "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml"),
        (go_modules.KARPENTER, "pkg/apis/crds/autoscaling.x-k8s.io_capacitybuffers.yaml"),
    )
    kinds = [yaml.safe_load(go_modules.read_file(*each)) for each in files]
    for kind in kinds:
        # The group belongs to Kubernetes; without its word of approval the API server refuses the kind.
        kind["metadata"].setdefault("annotations", {})["api-approved.kubernetes.io"] = "https://github.com/kubernetes"
        await bed.client.create(resources.CRD, kind)
    try:
        await _until_served(bed, requests, buffers)
        async with scaling(bed, tmp_path) as scale:
            await scale.add_policy({**H100, "maxSize": 3})
            container = {"name": "c", "image": "example.com/i:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
            template = {"metadata": {"name": "t"}, "template": {"spec": {"containers": [container]}}}
            await bed.client.create(autoscaling.POD_TEMPLATE, template, "default")
            for name, count in (("small", 2), ("large", 9)):
                sets = [{"count": count, "podTemplateRef": {"name": "t"}}]
                spec = {"provisioningClassName": "atomic.kgwe.nvidia.io", "podSets": sets}
                await bed.client.create(requests, _make(requests, name, spec), "default")
            warm = {"podTemplateRef": {"name": "t"}, "replicas": 1}
            await bed.client.create(buffers, _make(buffers, "warm", warm), "default")
            assert await _poll(lambda: _find(bed, requests, "small", "Provisioned", "True"))
            assert await _poll(lambda: _find(bed, buffers, "warm", "Provisioning", "True"))
            refused = await _poll(lambda: _find(bed, requests, "large", "Provisioned", "False"))
            assert refused.reason == "NotBought"
            assert scale.count_bought() == 3, (
                "two for the request, one for the buffer, none for what cannot be complete"
            )
            await bed.client.delete(autoscaling.POD_TEMPLATE, "t", "default")
    finally:
        for kind in kinds:
            await bed.client.delete(resources.CRD, kind["metadata"]["name"])


def _make(kind: Any, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}


async def _poll(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the first true answer. For what no watch of the bed shows."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await ask()):  # noqa: ASYNC110 -- nothing sets an event
            await asyncio.sleep(0.1)
    return answer


async def _until_served(bed: Bed, *kinds: Any) -> None:
    async def is_served() -> bool:
        return len(await dialects.find_served(bed.client, kinds)) == len(kinds)

    assert await _poll(is_served)


async def _find(bed: Bed, kind: Any, name: str, type_: str, status: str) -> Any:
    found = await bed.client.get(kind, name, "default")
    return next((each for each in found.status.conditions if (each.type, each.status) == (type_, status)), None)

"""Scale-down on an API server in memory: what goes, what stays and why, and what survives a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.kube.api import resources
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

QUICK = {"idleSeconds": 600, "gracePeriodSeconds": 30}


def run(test: Callable[[ScalingBed], Awaitable[None]], rules: CloudRules | None = None) -> None:
    async def main() -> None:
        async with ScalingBed(rules or CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


async def _fill(bed: ScalingBed, *gpus: int, **pod: Any) -> list[str]:
    """Buy nodes for pods of these sizes, and let them run there."""
    names = [await bed.add_pod(each, **pod) for each in gpus]
    await bed.round(121)
    for _ in range(3):
        await bed.round(2)
    assert await bed.schedule() == len(gpus)
    await bed.round(2)
    return names


def test_an_idle_node_is_drained_and_removed_after_its_time_and_grace() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        await bed.round(1)
        status = await bed.round(500)
        assert [each.reason for each in status.kept] == ["IdleForTooShortATime"]
        status = await bed.round(101)
        (node,) = bed.cluster.nodes.values()
        assert node.spec.unschedulable
        assert next(each.action for each in status.actions) == "Drain"
        await bed.round(10)
        assert len(bed.nodes()) == 1, "within the grace period"
        bed.controller = bed.make_controller()
        await bed.round(21)
        status = await bed.round(1)
        assert bed.nodes() == []
        assert status.currentNodes == 0
        assert status.lastScaleDownTime

    run(test)


def test_a_drain_is_undone_when_demand_returns() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK, pendingPodTimeoutSeconds=0)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        await bed.round(1)
        await bed.round(601)
        await bed.add_pod(8)
        status = await bed.round(1)
        (node,) = bed.cluster.nodes.values()
        assert not node.spec.unschedulable
        assert status.actions[0].action == "UndoDrain"
        assert await bed.schedule() == 1
        await bed.round(601)
        assert await bed.count_bought() == 1

    run(test)


def test_a_pod_that_fits_on_no_node_keeps_no_node() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK, pendingPodTimeoutSeconds=0)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        await bed.add_pod(16)
        await bed.round(1)
        status = await bed.round(601)
        assert [each.reason for each in status.unmet] == ["NoPoolFits"]
        await bed.round(31)
        await bed.round(1)
        assert bed.nodes() == []

    run(test)


def test_the_least_size_of_a_pool_stays() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "minSize": 2}, scaleDown=QUICK)
        for _ in range(3):
            await bed.round(2)
        assert len(bed.nodes()) == 2
        status = await bed.round(1000)
        assert {each.reason for each in status.kept} == {"LeastNodes"}
        assert len(bed.nodes()) == 2

    run(test)


@pytest.mark.parametrize(
    ("pod", "use", "reason"),
    [
        ({}, None, "UseNotKnown"),
        ({}, 0.5, "InUse"),
        ({"owner": "Job"}, 0.05, "DoNotDisrupt"),
        ({"owner": ""}, 0.05, "DoNotDisrupt"),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, 0.05, "DoNotDisrupt"),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, 0.05, "DoNotDisrupt"),
        ({"annotations": {"kgwe.nvidia.io/do-not-disrupt": "true"}}, 0.05, "DoNotDisrupt"),
    ],
)
def test_a_node_with_pods_stays_unless_all_of_them_may_move(
    pod: dict[str, Any], use: float | None, reason: str
) -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK | {"autoConsolidate": True, "minRunSeconds": 0})
        first, *_ = await _fill(bed, 7, 7, **pod)
        await bed.delete_pod(first)
        bed.uses = dict.fromkeys(bed.nodes(), use) if use is not None else {}
        status = await bed.round(1)
        assert reason in {each.reason for each in status.kept}
        assert not any(node.spec.unschedulable for node in bed.cluster.nodes.values())

    run(test)


def test_a_node_that_does_little_is_emptied_if_every_pod_fits_elsewhere() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK | {"autoConsolidate": True, "minRunSeconds": 0})
        pods = await _fill(bed, 5, 5, 2)
        await bed.delete_pod(pods[0])
        bed.uses = dict.fromkeys(bed.nodes(), 0.05)
        await bed.round(1)
        draining = [name for name, node in bed.cluster.nodes.items() if node.spec.unschedulable]
        assert len(draining) == 1
        for _ in range(4):
            await bed.round(31)
        left = [pod.metadata.name for pod in await bed.client.list(resources.POD, "default")]
        assert len(bed.nodes()) == 1
        assert set(left) < set(pods), "a pod of the drained node was evicted"

    run(test)


def test_nodes_of_others_are_never_touched() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        ready = {"allocatable": offers, "capacity": offers, "conditions": [{"type": "Ready", "status": "True"}]}
        for name, labels in (
            ("karpenter", {"karpenter.sh/nodepool": "default", "gpu-autoscaler.io/node-pool": "h100"}),
            ("forged", {"kgwe.nvidia.io/autoscaling-policy": "fleet", "gpu-autoscaler.io/node-pool": "h100"}),
        ):
            body = {"metadata": {"name": name, "labels": labels}, "status": ready}
            await bed.client.create(resources.NODE, body)
        await bed.round(1)
        await bed.round(2000)
        await bed.round(2000)
        assert bed.nodes() == ["forged", "karpenter"]
        assert not any(node.spec.unschedulable for node in bed.cluster.nodes.values())

    run(test)


def test_an_instance_that_nothing_explains_is_reported_and_returned_when_it_never_joins() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(launch={"joinTimeoutSeconds": 60})
        request = {
            "requestId": "lost-1", "pool": "h100", "instanceType": "p5.48xlarge", "zone": "us-east-1a",
            "capacityType": "on-demand", "count": 1,
        }  # fmt: skip
        import json  # noqa: PLC0415

        meta = {"name": "lost-1", "labels": {"kgwe.nvidia.io/simulated-cloud": "local"}}
        body = {"metadata": meta, "data": {"order": json.dumps(request)}}
        await bed.client.request("POST", "/api/v1/namespaces/kgwe-system/configmaps", body=body)
        await bed.settle()
        status = await bed.round(1)
        assert status.orphans == ("kwok://us-east-1a/lost-1-0",)
        await bed.round(61)
        status = await bed.round(1)
        assert status.orphans == ()

    run(test, CloudRules(never_join=1))


def test_a_gang_that_can_never_start_keeps_no_idle_node_though_its_pods_would_fit() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "maxSize": 1})
        name = await bed.add_pod(8)
        await bed.round(121)
        await bed.round(2)
        await bed.delete_pod(name)
        await bed.add_gang(3)
        await bed.round(300)
        status = await bed.round(400)
        assert [each.reason for each in status.unmet] == ["PoolLimitReached"]
        assert "Drain" in {each.action for each in status.actions}
        status = await bed.round(1)
        assert "UndoDrain" not in {each.action for each in status.actions}

    run(test)

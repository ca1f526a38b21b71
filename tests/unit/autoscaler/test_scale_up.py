"""Scale-up on an API server in memory: what is bought for what waits, and what is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.kube.api.resources import AUTOSCALING_POLICY, GPU_WORKLOAD
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SMALL = {**H100, "name": "l40s", "gpuType": "L40S", "gpusPerNode": 8, "instanceTypes": ["g6e.48xlarge"]}


def run(test: Callable[[ScalingBed], Awaitable[None]], rules: CloudRules | None = None) -> None:
    async def main() -> None:
        async with ScalingBed(rules or CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


def test_a_pod_that_has_waited_gets_one_node_and_only_one() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_pod(3)
        assert (await bed.round(60)).launches == (), "it has not waited long enough"
        status = await bed.round(61)
        assert [each.count for each in status.launches] == [1]
        for _ in range(3):
            await bed.round(0.1)
        assert await bed.schedule() == 0
        await bed.round(5)
        status = await bed.round(1)
        assert await bed.schedule() == 1
        status = await bed.round(200)
        assert (status.currentNodes, await bed.count_bought()) == (1, 1)
        assert status.launches == ()

    run(test)


def test_gpus_that_arrive_late_buy_nothing_twice() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_pod(8)
        await bed.round(121)
        for _ in range(12):
            status = await bed.round(10)
        assert await bed.count_bought() == 1
        assert {each.stage: each.nodes for each in status.stages} == {"GPUReady": 1}
        assert await bed.schedule() == 1

    run(test, CloudRules(gpu_delay_s=90, startup_taint="nvidia.com/gpu-not-ready"))


@pytest.mark.parametrize("rules", [CloudRules(never_join=1), CloudRules(missing_gpus=1)])
def test_a_node_that_never_becomes_ready_is_returned_and_replaced_from_another_zone(rules: CloudRules) -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(
            {**H100, "availabilityZones": ["us-east-1a", "us-east-1b"]},
            launch={"joinTimeoutSeconds": 30, "gpuReadyTimeoutSeconds": 60},
        )
        await bed.add_pod(8)
        await bed.round(121)
        for _ in range(4):
            await bed.round(7)
        assert await bed.count_bought() == 1
        bed.rules.missing_gpus = 0
        status = await bed.round(91)
        assert {each.kind for each in status.blocked} == {"never-ready"}
        assert [each.zone for each in status.launches] == ["us-east-1b"]
        for _ in range(3):
            status = await bed.round(2)
        assert {each.stage: each.nodes for each in status.stages} == {"GPUReady": 1}
        assert (len(bed.nodes()), await bed.schedule()) == (1, 1), "the bad one is gone"
        assert "Replace" in {each.action for each in status.actions}

    run(test, rules)


def test_no_capacity_falls_back_and_a_quota_leads_to_another_pool() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "availabilityZones": ["us-east-1a", "us-east-1b"]}, SMALL)
        await bed.add_pod(8)
        status = await bed.round(121)
        assert [(each.pool, each.zone) for each in status.launches] == [("l40s", "us-east-1a")], "the cheapest"

        bed.rules.stock = {"g6e.48xlarge/us-east-1a/*": 1}
        bed.rules.quota = {"p5.48xlarge/*": 0}
        await bed.add_pod(8)
        await bed.add_pod(8, annotations={"kgwe.nvidia.io/gpu-model": "H100"})
        status = await bed.round(121)
        assert {(each.instanceType, each.kind) for each in status.blocked} == {
            ("g6e.48xlarge", "no-capacity"),
            ("p5.48xlarge", "quota"),
        }
        assert len(status.unmet) == 2
        bed.rules.quota = {}
        status = await bed.round(601)
        assert {each.pool for each in status.launches} >= {"h100"}

    run(test)


def test_a_gang_is_bought_whole_in_one_group_or_not_at_all() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "maxSize": 15})
        await bed.add_gang(16)
        status = await bed.round(121)
        assert (status.launches, status.unmet[0].reason) == ((), "PoolLimitReached")
        assert await bed.count_bought() == 0
        await bed.client.delete(AUTOSCALING_POLICY, "fleet")
        await bed.add_policy({**H100, "maxSize": 16})
        status = await bed.round(1)
        assert [(each.count, each.atomic) for each in status.launches] == [(16, True)]
        for _ in range(3):
            await bed.round(2)
        assert await bed.count_bought() == 16
        leaves = {node.metadata.labels["fabric.topograph.run/tier-0"] for node in bed.cluster.nodes.values()}
        assert len(leaves) == 1

    run(test)


def test_a_gang_that_the_cloud_cannot_hold_buys_nothing() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_gang(4)
        status = await bed.round(121)
        assert await bed.count_bought() == 0
        assert status.launches == ()
        assert [each.kind for each in status.blocked] == ["no-capacity"]
        assert status.unmet[0].reason

    run(test, CloudRules(stock={"*": 3}))


def test_a_process_killed_before_the_cloud_answered_buys_once() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_pod(8)
        bed.provider._answer_s = 0.0
        await bed.round(121)
        status = await bed.status()
        assert [each.sent for each in status.launches] == [False]
        bed.provider._answer_s = 2.0
        bed.controller = bed.make_controller()
        await bed.wait(5)
        status = await bed.round(11)
        await bed.round(11)
        assert await bed.count_bought() == 1
        assert len(bed.nodes()) == 1

    run(test)


def test_a_dry_run_shows_the_plan_and_buys_nothing() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(dryRun=True)
        await bed.add_pod(3)
        status = await bed.round(121)
        assert [(each.pool, each.count) for each in status.plan] == [("h100", 1)]
        assert await bed.count_bought() == 0

    run(test)


def test_two_policies_for_one_pool_are_reported_and_only_the_older_acts() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        bed.api.now = "2026-02-01T00:00:00Z"
        await bed.add_policy(name="second")
        await bed.add_pod(8)
        await bed.round(121)
        (ready,) = [each for each in (await bed.status("second")).conditions if each.type == "Ready"]
        assert (ready.status, ready.reason) == ("False", "CannotAct")
        assert "fleet" in ready.message
        assert await bed.count_bought() == 1

    run(test)


def test_mig_slices_and_shares_are_bought_as_the_node_will_be_after_configuration() -> None:
    async def test(bed: ScalingBed) -> None:
        mig = {
            **H100, "name": "a100-mig", "gpuType": "A100-SXM4-80GB", "instanceTypes": ["p4de.24xlarge"],
            "migLayout": ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"], "cpu": "90", "memory": "1000Gi",
        }  # fmt: skip
        await bed.add_policy(mig)
        for _ in range(9):
            await bed.add_pod(1, resource="nvidia.com/mig-3g.40gb")
        status = await bed.round(121)
        assert [each.count for each in status.launches] == [2], "8 slices of this profile per node"
        assert status.launches[0].promised["nvidia.com/mig-3g.40gb"] == 8
        for _ in range(3):
            await bed.round(2)
        assert await bed.schedule() == 9
        assert await bed.count_bought() == 2

    run(test)


def test_nothing_is_bought_for_a_workload_that_waits_for_its_budget() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        name = await bed.add_gang(2)
        held = {"type": "Scheduled", "status": "False", "reason": "BudgetExceeded", "message": "Budget b is used up."}
        body = {"status": {"phase": "Pending", "conditions": [held]}}
        await bed.client.patch(GPU_WORKLOAD, name, body, "default", subresource="status")
        assert (await bed.round(121)).launches == ()
        body = {"status": {"conditions": [held | {"reason": "InsufficientGPU"}]}}
        await bed.client.patch(GPU_WORKLOAD, name, body, "default", subresource="status")
        assert [each.count for each in (await bed.round(1)).launches] == [2]


def test_a_node_that_joins_under_another_name_and_without_labels_is_found_by_its_instance() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "labels": {"team": "a"}})
        await bed.add_pod(8)
        await bed.round(121)
        for _ in range(3):
            status = await bed.round(2)
        assert {each.stage: each.nodes for each in status.stages} == {"GPUReady": 1}
        (node,) = bed.cluster.nodes.values()
        assert node.metadata.name.startswith("ip-")
        assert node.metadata.labels["kgwe.nvidia.io/autoscaling-policy"] == "fleet"
        assert node.metadata.labels["team"] == "a"
        assert (await bed.schedule(), await bed.count_bought()) == (1, 1)

    run(test, CloudRules(bare_names=True))


def test_a_spot_node_that_its_cloud_takes_back_is_counted_and_bought_again() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "capacityType": "spot"})
        await bed.add_pod(8)
        await bed.round(121)
        for _ in range(3):
            await bed.round(2)
        await bed.take_back(bed.nodes()[0])
        status = await bed.round(1)
        assert (bed.metrics.interruptions, status.spotInterruptions) == (1, 1)
        assert [each.count for each in status.launches] == [1], "the pod still waits"
        for _ in range(3):
            await bed.round(2)
        assert await bed.schedule() == 1

    run(test)


def test_prices_that_are_not_known_and_bad_pools_are_said() -> None:
    async def test(bed: ScalingBed) -> None:
        odd = {**H100, "name": "odd", "instanceTypes": ["made-up"], "gpuType": "Nonsense"}
        await bed.add_policy(odd, {**H100, "cpu": "many"})
        await bed.add_pod(8)
        status = await bed.round(121)
        (ready,) = [each for each in status.conditions if each.type == "Ready"]
        assert (ready.status, ready.reason) == ("False", "InvalidPolicy")
        assert "Nonsense" in ready.message
        assert "many" in ready.message
        assert await bed.count_bought() == 0

    run(test)


def test_a_mixed_pool_keeps_its_spot_share_and_limits_hold_over_all_its_offers() -> None:
    async def test(bed: ScalingBed) -> None:
        mixed = {key: value for key, value in H100.items() if key != "capacityType"}
        zones = ["us-east-1a", "us-east-1b"]
        await bed.add_policy({**mixed, "spotPercentage": 0.5, "maxSize": 10, "availabilityZones": zones}, maxNodes=8)
        for _ in range(12):
            await bed.add_pod(8, annotations={"gpu-autoscaler.io/spot-ok": "true"})
        status = await bed.round(121)
        bought = {"spot": 0, "on-demand": 0}
        for each in status.launches:
            bought[each.capacityType] += each.count
        assert bought == {"spot": 4, "on-demand": 4}
        assert len(status.unmet) == 4

    run(test)


def test_a_pool_of_higher_priority_grows_first_although_it_costs_more() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "priority": 10, "maxSize": 1}, SMALL)
        for _ in range(2):
            await bed.add_pod(8)
        status = await bed.round(121)
        assert sorted((each.pool, each.count) for each in status.launches) == [("h100", 1), ("l40s", 1)]

    run(test)

"""Faults of the autoscaler's world: limits that several pools share, clouds that fail, marks that make no sense."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.apps.autoscaler import marks
from kgwe.cloud.kwok import CONFIG_MAP, ORDER_LABEL
from kgwe.cloud.provider import LaunchError, LaunchErrorKind
from kgwe.kube.api import resources
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

QUICK = {"idleSeconds": 600, "gracePeriodSeconds": 30}


def run(test: Callable[[ScalingBed], Awaitable[None]], rules: CloudRules | None = None) -> None:
    async def main() -> None:
        async with ScalingBed(rules or CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


async def _fill(bed: ScalingBed, *gpus: int) -> list[str]:
    """Buy nodes for pods of these sizes, and let them run there."""
    names = [await bed.add_pod(each) for each in gpus]
    await bed.round(121)
    for _ in range(3):
        await bed.round(2)
    assert await bed.schedule() == len(gpus)
    await bed.round(2)
    return names


def test_pools_of_several_priorities_stay_within_the_limit_of_the_policy() -> None:
    async def test(bed: ScalingBed) -> None:
        pools = [{**H100, "name": f"p{each}", "priority": each, "maxSize": 2} for each in (3, 2, 1)]
        await bed.add_policy(*pools, maxNodes=3)
        for _ in range(6):
            await bed.add_pod(8)
        status = await bed.round(121)
        assert sum(each.count for each in status.launches) == 3
        assert {each.reason for each in status.unmet} == {"PoolLimitReached"}
        assert await bed.count_bought() == 3

    run(test)


def test_least_sizes_stay_within_the_limit_of_the_policy() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "minSize": 2}, {**H100, "name": "other", "minSize": 2}, maxNodes=3)
        for _ in range(2):
            await bed.add_pod(8)
        for _ in range(4):
            await bed.round(121)
        assert await bed.count_bought() == 3

    run(test)


def test_nodes_that_are_drained_do_not_count_for_the_least_number_of_nodes() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(minNodes=2, scaleDown=QUICK)
        for pod in await _fill(bed, 8, 8, 8):
            await bed.delete_pod(pod)
        await bed.round(1)
        await bed.round(601)
        for _ in range(5):
            await bed.round(1)
        drained = [each for each in bed.cluster.nodes.values() if marks.DRAIN in each.metadata.annotations]
        assert len(drained) == 1
        for _ in range(5):
            await bed.round(31)
        assert len(bed.nodes()) == 2
        assert await bed.count_bought() == 3

    run(test)


def test_a_broken_node_goes_although_scale_down_is_switched_off() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown={**QUICK, "enabled": False}, launch={"repairAfterSeconds": 60})
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        (name,) = bed.nodes()
        await _break(bed, name)
        for _ in range(8):
            await bed.round(61)
        assert name not in bed.nodes()

    run(test)


def test_a_drain_is_undone_when_scale_down_is_switched_off() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        await bed.round(1)
        await bed.round(601)
        (node,) = bed.cluster.nodes.values()
        assert node.spec.unschedulable
        body = {"spec": {"scaleDown": {"enabled": False}}}
        await bed.client.patch(resources.AUTOSCALING_POLICY, "fleet", body)
        await bed.settle()
        await bed.round(31)
        await bed.round(31)
        (node,) = bed.cluster.nodes.values()
        assert not node.spec.unschedulable

    run(test)


async def _break(bed: ScalingBed, name: str) -> None:
    node = bed.cluster.nodes[name]
    less = {**node.status.allocatable, "nvidia.com/gpu": "3"}
    await bed.client.patch(resources.NODE, name, {"status": {"allocatable": less}}, subresource="status")
    await bed.settle()


def test_a_cloud_that_takes_nothing_back_says_so_and_still_sells(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: ScalingBed) -> None:
        async def refuse(_ids: Any) -> None:
            raise LaunchError(LaunchErrorKind.AUTHENTICATION, "not allowed to terminate")

        await bed.add_policy(scaleDown=QUICK)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        await bed.round(1)
        await bed.round(601)
        with monkeypatch.context() as broken:
            broken.setattr(bed.provider, "terminate", refuse)
            await bed.round(31)
            await bed.add_pod(8)
            status = await bed.round(121)
            assert "not allowed to terminate" in str(status.conditions)
            assert await bed.count_bought() == 2
        await bed.round(31)
        status = await bed.round(31)
        assert "not allowed" not in str(status.conditions)
        assert len(bed.nodes()) == 1

    run(test)


def test_an_order_that_is_not_readable_is_reported_and_stops_no_round() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_policy({**H100, "name": "other"}, name="second", provider="nowhere")
        meta = {"name": "kgwe-broken", "labels": {ORDER_LABEL: bed.provider._cluster}}
        await bed.client.create(CONFIG_MAP, {"metadata": meta, "data": {"order": "{", "answer": "x"}}, "kgwe-system")
        await bed.controller.reconcile()
        await bed.settle()
        assert "nowhere" in str((await bed.status("second")).conditions)
        assert "kgwe-broken" in str((await bed.status()).conditions)

    run(test)


def test_a_drain_with_a_mark_that_makes_no_sense_ends() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        (pod,) = await _fill(bed, 8)
        await bed.delete_pod(pod)
        body = {"metadata": {"annotations": {marks.DRAIN: "yesterday Idle"}}}
        await bed.client.patch(resources.NODE, bed.nodes()[0], body)
        await bed.settle()
        for _ in range(4):
            await bed.round(31)
        assert bed.nodes() == []

    run(test)


def test_a_node_that_joined_without_labels_is_known_by_its_instance() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(launch={"joinTimeoutSeconds": 60, "gpuReadyTimeoutSeconds": 60})
        await _fill(bed, 8)
        (name,) = bed.nodes()
        body = {"metadata": {"labels": {marks.OWNER_LABEL: None}}}
        await bed.client.patch(resources.NODE, name, body)
        await bed.settle()
        for _ in range(6):
            await bed.round(61)
        assert bed.nodes() == [name], "its pod still runs there"

    run(test)

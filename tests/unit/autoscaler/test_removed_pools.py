"""Instances whose pool or policy was removed: they are counted, reported and returned when they are idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.apps.autoscaler import marks
from kgwe.apps.autoscaler.census import find_strays
from kgwe.cloud.provider import CapacityType, Instance, InstanceState, LaunchError, LaunchErrorKind, LaunchResult
from kgwe.kube.api import resources
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

QUICK = {"idleSeconds": 600, "gracePeriodSeconds": 30}
OTHER = {**H100, "name": "other"}


def run(test: Callable[[ScalingBed], Awaitable[None]], rules: CloudRules | None = None) -> None:
    async def main() -> None:
        async with ScalingBed(rules or CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


async def _fill(bed: ScalingBed) -> str:
    """Buy a node for a pod, and let it run there."""
    pod = await bed.add_pod(8)
    await bed.round(121)
    for _ in range(3):
        await bed.round(2)
    assert await bed.schedule() == 1
    await bed.round(2)
    return pod


async def _set_pools(bed: ScalingBed, *pools: dict[str, Any]) -> None:
    await bed.client.patch(resources.AUTOSCALING_POLICY, "fleet", {"spec": {"nodePools": list(pools)}})
    await bed.settle()


async def _step(bed: ScalingBed, wait_s: float) -> None:
    await bed.wait(wait_s)
    await bed.controller.reconcile()
    await bed.settle()


def _find(status: Any, kind: str) -> Any:
    return next(each for each in status.conditions if each.type == kind)


def _gauge(bed: ScalingBed, name: str, **labels: str) -> float | None:
    return bed.metrics.registry.get_sample_value(f"gpu_autoscaler_{name}", labels)


async def _count_alive(bed: ScalingBed) -> int:
    return sum(each.state is not InstanceState.GONE for each in await bed.provider.list_instances())


def test_a_node_of_a_removed_pool_is_reported_stays_while_it_is_used_and_is_returned_when_idle() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK, minNodes=1)
        pod = await _fill(bed)
        (name,) = bed.nodes()
        await _set_pools(bed, OTHER)
        for _ in range(4):
            status = await bed.round(601)
        assert (status.currentNodes, len(status.orphans)) == (1, 1)
        said = _find(status, "OrphansFound")
        assert (said.status, said.reason) == ("True", "PoolRemoved")
        assert "nodePools no longer has (h100)" in said.message
        assert [each.reason for each in bed.events].count("PoolRemoved") == 1
        assert _gauge(bed, "orphaned_instances") == 1
        assert bed.nodes() == [name], "its pod still runs there"
        assert not bed.cluster.nodes[name].spec.unschedulable
        await bed.delete_pod(pod)
        await bed.round(1)
        status = await bed.round(601)
        assert bed.cluster.nodes[name].spec.unschedulable
        await bed.round(31)
        status = await bed.round(1)
        assert name not in bed.nodes()
        assert status.orphans == ()
        assert _find(status, "OrphansFound").status == "False"

    run(test)


def test_a_node_of_a_removed_pool_stays_where_scale_down_is_switched_off() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown={**QUICK, "enabled": False})
        await bed.delete_pod(await _fill(bed))
        await _set_pools(bed, OTHER)
        for _ in range(4):
            status = await bed.round(601)
        assert len(bed.nodes()) == 1
        assert "scaleDown.enabled is false" in _find(status, "OrphansFound").message

    run(test)


def test_nodes_of_a_deleted_policy_are_counted_and_returned_when_idle() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        pod = await _fill(bed)
        (name,) = bed.nodes()
        await bed.client.delete(resources.AUTOSCALING_POLICY, "fleet")
        await bed.settle()
        for _ in range(4):
            await _step(bed, 601)
        assert _gauge(bed, "instances_without_policy", provider="kwok") == 1
        assert _gauge(bed, "orphaned_instances") == 1
        assert bed.nodes() == [name], "its pod still runs there"
        assert not bed.cluster.nodes[name].spec.unschedulable
        await bed.delete_pod(pod)
        await _step(bed, 1)
        bed.controller = bed.make_controller()
        for wait_s in (1, 601, 31, 1, 1):
            await _step(bed, wait_s)
        assert bed.nodes() == []
        assert await _count_alive(bed) == 0
        assert _gauge(bed, "instances_without_policy", provider="kwok") == 0

    run(test)


def test_an_instance_of_a_deleted_policy_that_never_joins_is_returned() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_pod(8)
        await bed.round(121)
        await bed.client.delete(resources.AUTOSCALING_POLICY, "fleet")
        await bed.settle()
        await _step(bed, 1)
        assert await _count_alive(bed) == 1
        for wait_s in (601, 1, 1):
            await _step(bed, wait_s)
        assert await _count_alive(bed) == 0

    run(test, CloudRules(never_join=1))


def test_a_policy_that_cannot_be_read_loses_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown=QUICK)
        await bed.delete_pod(await _fill(bed))
        await bed.client.delete(resources.AUTOSCALING_POLICY, "fleet")
        await bed.settle()
        monkeypatch.setattr(bed.cluster._policies, "skipped", 1)
        for wait_s in (1, 601, 31, 1):
            await _step(bed, wait_s)
        assert len(bed.nodes()) == 1
        assert _gauge(bed, "instances_without_policy", provider="kwok") == 1

    run(test)


def test_a_launch_without_an_answer_of_a_removed_pool_ends_and_buys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: ScalingBed) -> None:
        async def fail(_request: Any) -> LaunchResult:
            return LaunchResult(error=LaunchError(LaunchErrorKind.TRANSIENT, "no answer"))

        await bed.add_policy()
        await bed.add_pod(8)
        with monkeypatch.context() as broken:
            broken.setattr(bed.provider, "launch", fail)
            status = await bed.round(121)
        assert [each.sent for each in status.launches] == [False]
        await _set_pools(bed, {**OTHER, "maxSize": 0, "minSize": 0})
        await bed.round(1)
        status = await bed.round(200)
        assert status.launches == ()
        assert status.desiredNodes == 0
        assert await bed.count_bought() == 0

    run(test)


def test_a_launch_that_bought_before_its_pool_was_removed_is_found_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: ScalingBed) -> None:
        launch = bed.provider.launch

        async def lose_answer(request: Any) -> LaunchResult:
            await launch(request)
            return LaunchResult(error=LaunchError(LaunchErrorKind.TRANSIENT, "no answer"))

        await bed.add_policy()
        pod = await bed.add_pod(8)
        with monkeypatch.context() as broken:
            broken.setattr(bed.provider, "launch", lose_answer)
            await bed.round(121)
        await bed.delete_pod(pod)
        await _set_pools(bed, OTHER)
        status = await bed.round(1)
        assert len(status.orphans) == 1
        for wait_s in (2, 2, 601, 31, 1):
            status = await bed.round(wait_s)
        assert (status.launches, status.orphans) == ((), ())
        assert await _count_alive(bed) == 0
        assert await bed.count_bought() == 1

    run(test)


def test_instances_that_no_policy_bought_are_not_taken() -> None:
    found = Instance(
        provider_id="aws://i-1", request_id="", pool="people", instance_type="t", zone="z",
        capacity_type=CapacityType.ON_DEMAND, state=InstanceState.RUNNING,
    )  # fmt: skip
    strays = find_strays("aws", [found], [], {})
    assert (strays.by_policy, strays.ownerless) == ({}, frozenset())


def test_a_removed_node_of_a_deleted_policy_is_deleted_when_every_cloud_says_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(bed: ScalingBed) -> None:
        async def fail() -> tuple[Instance, ...]:
            raise LaunchError(LaunchErrorKind.TRANSIENT, "no answer")

        mark = {marks.REMOVAL: "2026-01-01T00:00:00Z"}
        for name, owner, said in (("removed", "gone", mark), ("kept", "gone", {}), ("foreign", "", mark)):
            labels = {marks.OWNER_LABEL: owner} if owner else {}
            meta = {"name": name, "labels": labels, "annotations": said}
            await bed.client.create(resources.NODE, {"metadata": meta, "spec": {"providerID": f"kwok://{name}"}})
        await bed.settle()
        with monkeypatch.context() as broken:
            broken.setattr(bed.provider, "list_instances", fail)
            await _step(bed, 1)
        assert bed.nodes() == ["foreign", "kept", "removed"], "what is not listed is unknown"
        await _step(bed, 1)
        assert bed.nodes() == ["foreign", "kept"]

    run(test)

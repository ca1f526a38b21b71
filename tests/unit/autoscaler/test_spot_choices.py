"""Spot, wait or on-demand for what waits, on an API server in memory; and what outlives the process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders import objects
from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.apps.autoscaler.preview import preview_round
from kgwe.cluster.workload import replica_uid
from kgwe.cluster.workload.metadata_keys import CONTROLLER_NAME, MANAGED_BY, RUN_LABEL, UID_LABEL
from kgwe.kube.api import timestamp
from kgwe.kube.api.resources import DEPLOYMENT, GPU_WORKLOAD, POD
from kgwe.local.fleet.cloud import CloudRules
from kgwe.placement.planning.plan import Seat
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIXED: dict[str, Any] = {key: value for key, value in H100.items() if key != "capacityType"} | {"spotPercentage": 1.0}
NO_SPOT = {"p5.48xlarge/*/spot": 0}
HOUR = 3600


def run(test: Callable[[ScalingBed], Awaitable[None]], rules: CloudRules | None = None) -> None:
    async def main() -> None:
        async with ScalingBed(rules or CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


async def add_workload(
    bed: ScalingBed, *, hours: float = 6, deadline_h: float | None = None, name: str = "w", **spot: Any
) -> None:
    if deadline_h is not None:
        spot["deadline"] = timestamp.format_time(bed.now_s + deadline_h * HOUR)
    bed.api.now = timestamp.format_time(bed.now_s)
    spec = {"gpuRequirements": {"count": 8}, "expectedDurationSeconds": int(hours * HOUR), "spot": spot}
    await bed.client.create(GPU_WORKLOAD, {"metadata": {"name": name}, "spec": spec}, "default")
    await bed.settle()


def list_choices(status: Any) -> list[tuple[str, str]]:
    return [(each.choice, each.reason) for each in status.choices]


def list_launches(status: Any) -> list[str]:
    return [each.capacityType for each in status.launches]


def preview(bed: ScalingBed) -> list[tuple[str, str]]:
    policies, nodes = list(bed.cluster.policies.values()), bed.cluster.nodes
    (found,) = preview_round(bed.cluster.view, policies, nodes, load_book(()), bed.now_s, at_once=True)
    return list_choices(found.status)


def test_work_with_slack_gets_spot_and_keeps_its_purchase() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, deadline_h=48, checkpointIntervalSeconds=900)
        status = await bed.round(121)
        assert list_choices(status) == [("spot", "SpotCheaper")]
        assert list_launches(status) == ["spot"]
        bed.rules.stock = dict(NO_SPOT)
        status = await bed.round(1)
        assert status.choices == (), "its node is coming"
        assert (await bed.count_bought(), list_launches(status)) == (1, ["spot"])
        assert "SpotCheaper" in {each.reason for each in bed.events}

    run(test, CloudRules(gpu_delay_s=90))


def test_work_waits_for_spot_while_it_has_slack_and_then_gets_on_demand() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, hours=4, deadline_h=24, checkpointIntervalSeconds=900)
        status = await bed.round(121)
        assert list_choices(status) == [("wait", "WaitsForSpot")]
        assert (status.launches, await bed.count_bought()) == ((), 0)
        assert [each.reason for each in status.unmet] == ["WaitsForSpot"]
        assert bed.cluster.view.asks, "it still waits"
        status = await bed.round(19.7 * HOUR)
        assert list_launches(status) == ["on-demand"]
        assert [each[0] for each in list_choices(status)] == ["on-demand"]

    run(test, CloudRules(stock=dict(NO_SPOT)))


@pytest.mark.parametrize(
    ("spot", "hours", "expected"),
    [
        ({"deadline_h": 6.05}, 6, ("on-demand", "NoSlack")),
        ({"deadline_h": -1}, 6, ("spot", "DeadlinePassed")),
        ({"maxWaitSeconds": 600, "checkpointIntervalSeconds": 900}, 2, ("spot", "SpotCheaper")),
        ({}, 400, ("on-demand", "SpotBreaksTooOften")),
    ],
)
def test_the_choice_follows_deadline_and_losses(spot: dict[str, Any], hours: float, expected: tuple[str, str]) -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, hours=hours, **spot)
        status = await bed.round(121)
        assert list_choices(status) == [expected]
        assert list_launches(status) == [expected[0]]

    run(test)


def test_work_without_a_deadline_waits_as_long_as_it_allows() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, maxWaitSeconds=600, checkpointIntervalSeconds=900)
        assert list_choices(await bed.round(121)) == [("wait", "WaitsForSpot")]
        status = await bed.round(500)
        assert list_choices(status) == [("on-demand", "WaitedLongEnough")]
        assert list_launches(status) == ["on-demand"]

    run(test, CloudRules(stock=dict(NO_SPOT)))


def test_a_pod_says_its_terms_in_annotations_and_unreadable_ones_are_named() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        said = {"kgwe.nvidia.io/spot-policy": "Allow", "kgwe.nvidia.io/spot-max-wait": "10m"}
        said["kgwe.nvidia.io/checkpoint-interval"] = "15m"
        await bed.add_pod(8, annotations=said)
        assert list_choices(await bed.round(121)) == [("wait", "WaitsForSpot")]
        await bed.add_pod(8, annotations={**said, "kgwe.nvidia.io/deadline": "tomorrow"})
        status = await bed.round(121)
        assert any("tomorrow" in each.message for each in status.choices)

    run(test, CloudRules(stock=dict(NO_SPOT)))


def test_progress_shortens_the_work_that_is_left() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, hours=20, deadline_h=12, checkpointIntervalSeconds=900)
        assert list_choices(await bed.round(0)) == []
        body = {"metadata": {"annotations": {"kgwe.nvidia.io/progress": "0.9"}}}
        await bed.client.patch(GPU_WORKLOAD, "w", body, "default")
        await bed.settle()
        assert list_choices(await bed.round(121)) == [("spot", "SpotCheaper")]

    run(test)


def test_spot_above_the_share_of_a_pool_counts_as_away() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**MIXED, "spotPercentage": 0.0})
        await add_workload(bed, deadline_h=48, checkpointIntervalSeconds=900)
        assert list_choices(await bed.round(121)) == [("wait", "WaitsForSpot")]

    run(test)


def test_observed_breaks_outlive_the_process_and_change_the_choice() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(MIXED)
        await add_workload(bed, hours=5, checkpointIntervalSeconds=3 * HOUR)
        assert preview(bed) == [("spot", "SpotCheaper")]
        await bed.client.delete(GPU_WORKLOAD, "w", "default")
        await bed.add_pod(8, annotations={"kgwe.nvidia.io/spot-policy": "Allow"})
        for _ in range(8):
            await bed.round(121)
            for _ in range(3):
                await bed.round(10)
            if nodes := bed.nodes():
                await bed.take_back(nodes[0])
        status = await bed.round(1)
        assert (status.spotInterruptions or 0) >= 6
        (seen,) = status.observedSpot
        assert sum(next(each for each in seen.runs if each.nodes == 1).ends) >= 6
        bed.controller = bed.make_controller()
        status = await bed.round(30)
        assert (status.spotInterruptions or 0) >= 6, "a new process counts on"
        assert status.observedSpot
        for name in ("w2", "w3"):
            await add_workload(bed, hours=5, checkpointIntervalSeconds=3 * HOUR, name=name)
        assert set(preview(bed)) == {("on-demand", "SpotBreaksTooOften")}

    run(test)


async def add_service(bed: ScalingBed, *, replicas: int, extra: int) -> None:
    bed.api.now = timestamp.format_time(bed.now_s)
    spec = {
        "gpuRequirements": {"count": 8},
        "workloadType": "Inference",
        "replicas": replicas,
        "spot": {"extraReplicas": extra},
    }
    await bed.client.create(GPU_WORKLOAD, {"metadata": {"name": "chat"}, "spec": spec}, "default")
    await bed.settle()


def test_replicas_of_a_service_are_bought_in_different_zones_with_extra_ones() -> None:
    async def test(bed: ScalingBed) -> None:
        zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
        await bed.add_policy({**MIXED, "availabilityZones": zones})
        await add_service(bed, replicas=2, extra=1)
        status = await bed.round(121)
        assert sorted((each.zone, each.capacityType, each.count) for each in status.launches) == [
            (zone, "spot", 1) for zone in zones
        ]
        assert set(list_choices(status)) == {("spot", "SpreadOverSpot")}
        status = await bed.round(1)
        assert (status.choices, await bed.count_bought()) == ((), 3), "its nodes are coming"

    run(test, CloudRules(gpu_delay_s=90))


def test_without_spot_on_demand_is_bought_for_the_wanted_replicas_only() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**MIXED, "availabilityZones": ["us-east-1a", "us-east-1b"]})
        await add_service(bed, replicas=2, extra=2)
        status = await bed.round(121)
        for _ in range(4):
            status = await bed.round(1)
        assert await bed.count_bought() == 2
        assert sorted(list_choices(status)) == [("wait", "WaitsForSpot")] * 2

    run(test, CloudRules(stock=dict(NO_SPOT), gpu_delay_s=90))


async def start_replica(bed: ScalingBed, number: int, node: str) -> None:
    """Do what the scheduler and the kubelet do for a replica that has its place."""
    workload = await bed.client.get(GPU_WORKLOAD, "chat", "default")
    uid = replica_uid.make_uid(workload.metadata.uid, number)
    name = f"chat-job-{workload.metadata.uid[:8]}" + (f"-r{number}" if number else "")
    seats = (Seat(node, 0xFF),)
    meta = {**objects.run_meta("", workload.metadata.uid, "default", name, seats)}
    del meta["uid"]
    meta["labels"] = {UID_LABEL: uid, RUN_LABEL: name, MANAGED_BY: CONTROLLER_NAME}
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"metadata": {"labels": meta["labels"]}, "spec": {"containers": [container]}}
    made = await bed.client.create(
        DEPLOYMENT, {"metadata": meta, "spec": {"replicas": 1, "template": template}}, "default"
    )
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9c", "uid": f"rs-{number}"}
    pod = {
        "metadata": {
            "name": f"{name}-x",
            "labels": {**meta["labels"], RUN_LABEL: made.metadata.labels[RUN_LABEL]},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [container]},
        "status": {
            "phase": "Running",
            "startTime": timestamp.format_time(bed.now_s),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await bed.client.create(POD, pod, "default")
    await bed.settle()


def test_a_replica_on_demand_goes_back_to_spot_when_its_service_can_spare_it() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**MIXED, "availabilityZones": ["us-east-1a", "us-east-1b"]})
        await add_service(bed, replicas=1, extra=1)
        await bed.round(121)
        await bed.round(2)
        await bed.round(2)
        (first,) = bed.nodes()
        await start_replica(bed, 0, first)
        bed.rules.stock = {}
        status = await bed.round(200)
        assert "Drain" not in {each.action for each in status.actions}, "the service has one replica"
        status = await bed.round(2)
        (second,) = set(bed.nodes()) - {first}
        await start_replica(bed, 1, second)
        status = await bed.round(1)
        assert [each.reason for each in status.actions if each.action == "Drain"] == [
            f"{first}: its replica goes back to spot"
        ]

    run(test, CloudRules(stock=dict(NO_SPOT)))

"""ProvisioningRequests and CapacityBuffers: nodes for all pods or none, with honest conditions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe.kube.api import autoscaling, timestamp
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

REQUEST, BUFFER = autoscaling.PROVISIONING_REQUESTS[0], autoscaling.CAPACITY_BUFFERS[0]


def run(test: Callable[[ScalingBed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScalingBed(CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


async def _add_template(bed: ScalingBed, gpus: int, **annotations: str) -> None:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    await bed.client.create(autoscaling.POD_TEMPLATE, {"metadata": {"name": "t"}, "template": template}, "default")


async def _add_request(bed: ScalingBed, count: int, **spec: Any) -> None:
    bed.api.now = timestamp.format_time(bed.now_s)
    sets = [{"count": count, "podTemplateRef": {"name": "t"}}]
    body = {
        "metadata": {"name": "r"},
        "spec": {"provisioningClassName": "atomic.kgwe.nvidia.io", "podSets": sets} | spec,
    }
    await bed.client.create(REQUEST, body, "default")
    await bed.settle()


async def _read(bed: ScalingBed, kind: Any, name: str) -> dict[str, tuple[str, str]]:
    found = await bed.client.get(kind, name, "default")
    return {each.type: (each.status, each.reason) for each in found.status.conditions}


def test_a_request_is_provisioned_when_all_pods_have_a_place_on_ready_nodes() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "maxSize": 2})
        await _add_template(bed, 8)
        await _add_request(bed, 2)
        await bed.round(1)
        assert await bed.count_bought() == 2
        said = await _read(bed, REQUEST, "r")
        assert said["Accepted"] == ("True", "Accepted")
        assert said["Provisioned"] == ("False", "NodesAreComing")
        for _ in range(3):
            await bed.round(2)
        assert (await _read(bed, REQUEST, "r"))["Provisioned"] == ("True", "Provisioned")

        for _ in range(2):
            await bed.add_pod(8)
        await bed.schedule()
        await bed.round(130)
        assert await bed.count_bought() == 2, "its pods have come: nothing more is bought for it"
        await bed.round(601)
        assert (await _read(bed, REQUEST, "r"))["BookingExpired"][0] == "True"

    run(test)


def test_a_request_that_the_pool_cannot_hold_buys_nothing_says_why_and_fails_in_the_end() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy({**H100, "maxSize": 2})
        await _add_template(bed, 8)
        await _add_request(bed, 3, parameters={"timeoutSeconds": "100"})
        await bed.round(1)
        found = await bed.client.get(REQUEST, "r", "default")
        (said,) = [each for each in found.status.conditions if each.type == "Provisioned"]
        assert (said.status, said.reason) == ("False", "NotBought")
        assert "PoolLimitReached" in said.message
        await bed.round(101)
        assert (await _read(bed, REQUEST, "r"))["Failed"] == ("True", "TimedOut")
        assert await bed.count_bought() == 0

    run(test)


def test_requests_of_other_classes_and_without_a_template_buy_nothing() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await _add_request(bed, 1)
        await bed.round(1)
        assert (await _read(bed, REQUEST, "r"))["Failed"] == ("True", "Unreadable")
        await _add_template(bed, 8)
        other = {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io", "podSets": []}
        await bed.client.create(REQUEST, {"metadata": {"name": "other"}, "spec": other}, "default")
        await bed.settle()
        await bed.round(1)
        assert await _read(bed, REQUEST, "other") == {}
        assert await bed.count_bought() == 0

    run(test)


def test_a_buffer_keeps_capacity_free_and_comes_after_what_waits() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(scaleDown={"idleSeconds": 60, "gracePeriodSeconds": 1})
        await _add_template(bed, 8)
        spec = {"podTemplateRef": {"name": "t"}, "replicas": 1}
        await bed.client.create(BUFFER, {"metadata": {"name": "warm"}, "spec": spec}, "default")
        await bed.settle()
        for _ in range(4):
            await bed.round(2)
        assert await bed.count_bought() == 1
        assert (await _read(bed, BUFFER, "warm"))["Provisioning"][0] == "True"
        await bed.round(1000)
        assert len(bed.nodes()) == 1, "a buffer is not idle"
        await bed.add_pod(8)
        assert await bed.schedule() == 1, "the pod takes the warm node"
        for _ in range(4):
            await bed.round(2)
        assert await bed.count_bought() == 2, "the buffer is filled again"
        await bed.client.delete(BUFFER, "warm", "default")
        await bed.settle()
        await bed.round(1)
        await bed.round(61)
        await bed.round(2)
        await bed.round(1)
        assert len(bed.nodes()) == 1

    run(test)

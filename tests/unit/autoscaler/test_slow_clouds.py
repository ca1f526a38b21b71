"""A cloud that does not answer delays only its own policies, and what it does not list is unknown, not gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.scaling_bed import H100, ScalingBed

from kgwe import errors
from kgwe.apps.autoscaler import settings
from kgwe.apps.autoscaler.providers import TimedProvider
from kgwe.cloud.provider import LaunchError
from kgwe.kube.api import resources
from kgwe.local.fleet.cloud import CloudRules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TIMEOUT_S = 1.0
QUICK = {"idleSeconds": 600, "gracePeriodSeconds": 30}


class SilentCloud:
    """A part of the simulated cloud, as a cloud of its own. Calls that are named in `silent` do not return."""

    def __init__(self, inner: Any, name: str, pools: frozenset[str]) -> None:
        self._inner = inner
        self._pools = pools
        self.silent: set[str] = set()
        self.begun: list[str] = []
        self.name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*given: Any) -> Any:
            self.begun.append(name)
            if name in self.silent:
                await asyncio.Event().wait()
            answer = await found(*given)
            return tuple(each for each in answer if each.pool in self._pools) if name == "list_instances" else answer

        return call


def run(test: Callable[[ScalingBed, SilentCloud], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScalingBed(CloudRules()).running() as bed:
            cloud = SilentCloud(bed.provider, "aws", frozenset({"slow"}))
            bed.providers = {"kwok": SilentCloud(bed.provider, "kwok", frozenset({"h100"})), "aws": cloud}
            bed.controller = bed.make_controller()
            await test(bed, cloud)

    asyncio.run(main())


def silence(bed: ScalingBed, cloud: SilentCloud, call: str) -> None:
    """Let the cloud be silent from now on. Only now is its time short, so that a slow machine makes no call late."""
    bed.controller._providers["aws"]._timeout_s = TIMEOUT_S
    cloud.silent = {call}


def _ready(status: Any) -> Any:
    return next(each for each in status.conditions if each.type == "Ready")


async def _buy(bed: ScalingBed) -> str:
    """Buy a node for a pod that only the cloud `aws` can serve, and let it run."""
    await bed.add_policy({**H100, "name": "slow"}, name="slow", provider="aws", scaleDown=QUICK)
    pod = await bed.add_pod(8)
    await bed.controller.reconcile()
    for wait_s in (121, 2, 2, 2):
        await bed.wait(wait_s)
        await bed.controller.reconcile()
        await bed.settle()
    assert await bed.schedule() == 1
    return pod


def test_a_cloud_that_lists_nothing_stops_only_its_own_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgwe.apps.autoscaler.providers._PATIENCE", 1e6)

    async def test(bed: ScalingBed, cloud: SilentCloud) -> None:
        await _buy(bed)
        (name,) = bed.nodes()
        silence(bed, cloud, "list_instances")
        await bed.add_policy(scaleDown=QUICK)
        await bed.add_pod(8)
        for _ in range(4):
            await bed.round(121)
        assert await bed.count_bought() == 2, "the policy of the other cloud has bought"
        said = _ready(await bed.status("slow"))
        assert (said.status, said.reason) == ("False", "CloudFails")
        assert "provider aws has not answered list_instances within 1 s" in said.message
        assert name in bed.nodes(), "what is not listed is not gone"
        assert bed.metrics.timeouts == {"aws": 1, "kwok": 0}, "one call is late, and no second one begins"

    run(test)


@pytest.mark.parametrize("call", ["launch", "terminate"])
def test_a_cloud_that_does_not_sell_or_take_back_stops_only_its_own_policies(call: str) -> None:
    async def test(bed: ScalingBed, cloud: SilentCloud) -> None:
        pod = await _buy(bed)
        await bed.delete_pod(pod)
        silence(bed, cloud, call)
        if call == "launch":
            await bed.client.patch(resources.AUTOSCALING_POLICY, "slow", {"spec": {"minNodes": 2, "maxNodes": 2}})
            await bed.settle()
        for wait_s in (1, 601, 31, 1):
            await bed.wait(wait_s)
            await bed.controller.reconcile()
            await bed.settle()
        said = _ready(await bed.status("slow"))
        assert (said.status, said.reason) == ("False", "CloudFails")
        assert f"has not answered {call} within" in said.message
        await bed.add_policy({**H100, "minSize": 1})
        before = await bed.count_bought()
        status = await bed.round(1)
        assert _ready(status).status == "True"
        assert await bed.count_bought() == before + 1

    run(test)


def test_a_late_call_is_given_up_and_the_cloud_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: ScalingBed, cloud: SilentCloud) -> None:
        asked = TimedProvider(cloud, 0.01)
        cloud.silent = {"list_instances", "list_notices", "launch"}
        monkeypatch.setattr("kgwe.apps.autoscaler.providers._PATIENCE", 1e6)
        for call in (asked.list_instances, asked.list_notices, asked.list_instances):
            with pytest.raises(LaunchError, match="has not answered"):
                await call()
        assert cloud.begun == ["list_instances", "list_notices"]
        assert asked.describe_late("list_instances")
        cloud.silent.clear()
        asked._timeout_s = 30.0
        monkeypatch.setattr("kgwe.apps.autoscaler.providers._PATIENCE", 0.0)
        assert await asked.list_instances() == ()
        assert not asked.describe_late("list_instances")
        assert bed.nodes() == []

    run(test)


def test_a_time_out_that_makes_no_sense_is_refused() -> None:
    assert settings.load().cloud_timeout_seconds == 30
    with pytest.raises(errors.Permanent, match="cloudTimeoutSeconds"):
        settings.load(overrides={"cloud_timeout_seconds": 0.0})

"""The cloud in memory keeps the contract of providers, and shows the faults that real clouds have."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.memory_provider import MemoryCloud, MemoryProvider, MemoryProviderBed

from kgwe import errors
from kgwe.cloud.provider import GangSupport, InstanceState, LaunchRequest, NoticeKind


@pytest.mark.parametrize("half_gangs", [False, True], ids=["atomic", "best-effort"])
@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_memory(clause, half_gangs):
    await clause(MemoryProviderBed(half_gangs=half_gangs))


def request(request_id="r-1", count=1):
    return LaunchRequest(request_id=request_id, pool="a100", instance_type="p4d", zone="z", count=count)


async def test_a_list_may_miss_young_instances_repeat_others_and_change_the_order():
    cloud = MemoryCloud(shuffle=True)
    provider = MemoryProvider(cloud)
    await provider.launch(request(count=3))
    assert await provider.list_instances() == ()
    cloud.now += cloud.settle_s
    found = [each.provider_id for each in await provider.list_instances()]
    assert (len(found), len(set(found))) == (4, 3)


async def test_a_slow_cloud_answers_when_it_is_released():
    cloud = MemoryCloud(slow=True)
    call = asyncio.ensure_future(MemoryProvider(cloud).launch(request()))
    await asyncio.sleep(0)
    assert not call.done()
    cloud.release()
    assert (await call).error is None


async def test_instances_vanish_stop_and_are_announced():
    cloud = MemoryCloud()
    provider = MemoryProvider(cloud)
    first, second = (await provider.launch(request(count=2))).instances
    cloud.announce(second.provider_id, NoticeKind.TERMINATION, cloud.now + 120)
    assert [each.provider_id for each in await provider.list_notices()] == [second.provider_id]
    cloud.vanish(first.provider_id)
    cloud.stop(second.provider_id)
    assert [each.state for each in await provider.list_instances()] == [InstanceState.STOPPED]


async def test_nodes_join_as_launched_or_with_a_fault():
    cloud = MemoryCloud()
    provider = MemoryProvider(cloud)
    await provider.launch(request("plain"))
    cloud.other_name, cloud.fewer_gpus = True, 1
    await provider.launch(request("odd"))
    cloud.never_join = True
    await provider.launch(request("never"))
    plain, odd = cloud.take_joins()
    assert plain.node_name == plain.instance.node_name
    assert (odd.node_name != odd.instance.node_name, odd.missing_gpus) == (True, 1)
    assert cloud.take_joins() == []


def test_half_gangs_are_stated():
    assert MemoryProvider(MemoryCloud(half_gangs=True)).traits.gangs is GangSupport.BEST_EFFORT


@pytest.mark.parametrize("bad", ["", "9x", "x-", "X", "a" * 37, "a b"])
def test_a_bad_token_is_refused(bad):
    with pytest.raises(errors.Permanent, match="launch request id"):
        request(bad)


def test_a_request_for_nothing_is_refused():
    with pytest.raises(errors.Permanent, match="0 instances"):
        request(count=0)

"""Interruption notices of three clouds, from a stand-in with the documented paths, headers and bodies."""

from __future__ import annotations

import pytest
from tests.support.fakes.metadata_service import MetadataService

from kgwe import errors
from kgwe.cloud.notices.aws import AwsNotices
from kgwe.cloud.notices.azure import AzureNotices
from kgwe.cloud.notices.gcp import GcpNotices
from kgwe.cloud.provider import NoticeKind

NOW = 1_500_000_000.0


@pytest.fixture(scope="module")
def server():
    with MetadataService().serve() as found:
        yield found


@pytest.fixture
def service(server):
    fresh = MetadataService(url=server.url)
    vars(server).update(vars(fresh))
    return server


@pytest.mark.parametrize("make", [AwsNotices, GcpNotices, AzureNotices])
async def test_without_an_announcement_there_is_no_notice(make, service):
    assert await make(service.url).read(NOW) == ()


async def test_aws_names_the_time_of_the_termination(service):
    service.action = {"action": "terminate", "time": "2017-07-14T02:42:00Z"}
    source = AwsNotices(service.url)
    (notice,) = await source.read(NOW)
    assert (notice.kind, notice.reason) == (NoticeKind.TERMINATION, "SpotInterruption")
    assert notice.deadline_at == NOW + 120
    assert await source.read(NOW + 5) == (notice,)
    assert service.tokens == 1


async def test_aws_recommends_a_rebalance(service):
    service.rebalance = {"noticeTime": "2020-11-05T08:22:00Z"}
    (notice,) = await AwsNotices(service.url).read(NOW)
    assert (notice.kind, notice.deadline_at) == (NoticeKind.REBALANCE, None)


async def test_a_session_token_that_ended_is_renewed(service):
    source = AwsNotices(service.url)
    await source.read(NOW)
    service.token = "another"  # noqa: S105 - of a stand-in
    assert await source.read(NOW) == ()
    assert service.tokens == 2


async def test_gcp_has_thirty_seconds_from_the_first_sight_of_a_preemption(service):
    service.preempted = "TRUE"
    source = GcpNotices(service.url)
    (notice,) = await source.read(NOW)
    assert (notice.kind, notice.deadline_at) == (NoticeKind.TERMINATION, NOW + 30)
    assert await source.read(NOW + 5) == (notice,)


async def test_gcp_announces_maintenance_that_ends_vms_with_gpus_and_not_migrations(service):
    service.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
    source = GcpNotices(service.url)
    assert await source.read(NOW) == ()
    service.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
    (notice,) = await source.read(NOW)
    assert (notice.kind, notice.deadline_at) == (NoticeKind.MAINTENANCE, NOW + 3600)


def event(kind="Preempt", name="pool_0", before="Fri, 14 Jul 2017 02:40:30 GMT"):
    return {
        "EventId": "e-1",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [name],
        "EventStatus": "Scheduled" if before else "Started",
        "NotBefore": before,
    }


async def test_azure_announces_the_events_of_this_vm_only(service):
    service.events = [event(name="pool_1"), event(kind="Freeze"), event()]
    (notice,) = await AzureNotices(service.url).read(NOW)
    assert (notice.kind, notice.deadline_at) == (NoticeKind.TERMINATION, NOW + 30)


async def test_an_event_of_azure_that_has_begun_has_thirty_seconds(service):
    service.events = [event(before="")]
    source = AzureNotices(service.url)
    (notice,) = await source.read(NOW)
    assert notice.deadline_at == NOW + 30
    assert await source.read(NOW + 9) == (notice,)


async def test_azure_maintenance(service):
    service.events = [event(kind="Redeploy")]
    (notice,) = await AzureNotices(service.url).read(NOW)
    assert notice.kind is NoticeKind.MAINTENANCE


@pytest.mark.parametrize("body", ["[]", '{"Events": 5}', '{"Events": [null, 3, {"EventType": 4}]}'])
async def test_odd_bodies_of_azure_announce_nothing(service, body):
    source = AzureNotices(service.url)
    await source.read(NOW)
    service.broken = body
    assert await source.read(NOW) == ()


@pytest.mark.parametrize("make", [AwsNotices, AzureNotices])
async def test_a_body_that_is_no_json_is_an_error_and_no_notice(make, service):
    source = make(service.url)
    await source.read(NOW)
    service.broken = "<html>"
    with pytest.raises(errors.Transient):
        await source.read(NOW)


@pytest.mark.parametrize("make", [AwsNotices, GcpNotices, AzureNotices])
async def test_a_service_that_fails_or_is_absent_is_an_error(make, service):
    service.status = 503
    with pytest.raises(errors.Transient):
        await make(service.url).read(NOW)
    with pytest.raises(errors.Transient):
        await make("http://127.0.0.1:9").read(NOW)

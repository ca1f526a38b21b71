"""GCP through google-cloud-compute against a stand-in of the documented REST shapes. Never run against GCP itself."""

from __future__ import annotations

import pytest
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.gcp_bed import BulkBed, GcpServer, ResizeBed, refusal
from tests.support.fakes.rest_server import RestFault

from kgwe.cloud.gcp.bulk import GcpBulk, make_bulk_insert, make_label, make_metadata
from kgwe.cloud.gcp.client import ERRORS, GcpSettings, make_request_id, read_errors
from kgwe.cloud.provider import CapacityType, LaunchError, LaunchErrorKind, LaunchRequest
from kgwe.placement.fleet.taints import Taint

# Importing the SDK takes seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    found = GcpServer()
    yield found
    found.stop()


@pytest.mark.parametrize("bed", [BulkBed, ResizeBed])
@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_contract(clause, bed, server):
    await clause(bed(server))


REQUEST = LaunchRequest(
    request_id="r-1",
    pool="H100 pool",
    instance_type="a3-highgpu-8g",
    zone="us-central1-a",
    capacity_type=CapacityType.SPOT,
    count=16,
    atomic=True,
    placement_group="compact",
    labels={"team": "ml"},
    taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"),),
    template="gpu",
)


def test_a_gang_asks_for_all_or_none_with_a_compact_placement():
    body = make_bulk_insert(GcpSettings(cluster="c", project="p"), REQUEST)["bulk_insert_instance_resource_resource"]
    assert body["count"] == body["min_count"] == 16
    assert body["instance_properties"]["resource_policies"] == ["compact"]
    assert body["instance_properties"]["scheduling"]["provisioning_model"] == "SPOT"
    assert body["instance_properties"]["labels"]["kgwe-pool"] == "h100-pool"
    assert make_metadata(REQUEST) == {
        "kgwe-node-labels": "team=ml",
        "kgwe-node-taints": "nvidia.com/gpu=present:NoSchedule",
    }
    assert make_label("ok-1") == "ok-1"


def test_two_clusters_never_share_a_request_id():
    assert make_request_id("a", "r") != make_request_id("b", "r")
    assert make_request_id("a", "r") == make_request_id("a", "r")


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_of_the_table_keeps_its_kind(code):
    (error,) = read_errors([(code, "m")])
    assert (error.kind, error.code) == (ERRORS[code], code)


async def test_a_refusal_says_when_to_come_again(server):
    bed = BulkBed(server)
    answer = refusal(429, "rateLimitExceeded")
    answer.headers["Retry-After"] = "9"
    server.rest.faults.append(RestFault(answer))
    result = await bed.provider.launch(bed.make_request("r-1"))
    assert result.error is not None
    assert (result.error.kind, result.error.retry_after_s) == (LaunchErrorKind.THROTTLED, 9.0)


async def test_no_answer_is_transient():
    with pytest.raises(LaunchError) as caught:
        await GcpBulk(GcpSettings(cluster="c", project="p", endpoint="127.0.0.1:9")).list_instances()
    assert caught.value.kind is LaunchErrorKind.TRANSIENT


async def test_a_group_that_the_pool_does_not_have_is_a_bad_template(server):
    bed = ResizeBed(server)
    result = await bed.provider.launch(REQUEST)
    assert result.error is not None
    assert result.error.kind is LaunchErrorKind.BAD_TEMPLATE

"""AWS through boto3 against moto's server behind a proxy. Nothing here has talked to AWS itself."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.aws_bed import AwsServer, FleetsBed, GroupsBed

from kgwe.cloud.aws.client import ERRORS, AwsClient, AwsSettings, translate_answer
from kgwe.cloud.aws.fleets import AwsFleets, make_fleet
from kgwe.cloud.aws.groups import AwsGroups, read_failure
from kgwe.cloud.error_table import choose_error
from kgwe.cloud.provider import CapacityType, LaunchError, LaunchErrorKind, LaunchRequest
from kgwe.placement.fleet.taints import Taint


@pytest.fixture(scope="module")
def server():
    found = AwsServer()
    yield found
    found.stop()


@pytest.mark.parametrize("bed", [FleetsBed, pytest.param(GroupsBed, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_contract(clause, bed, server):
    await clause(bed(server))


async def test_a_gang_asks_for_all_or_none_in_one_zone_type_and_placement_group(server):
    bed = FleetsBed(server)
    request = LaunchRequest(
        request_id="gang-1",
        pool="h100",
        instance_type="p5.48xlarge",
        zone="us-east-1c",
        capacity_type=CapacityType.SPOT,
        count=4,
        atomic=True,
        placement_group="rack",
        labels={"team": "ml"},
        taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"),),
        template="gpu:1",
    )
    result = await bed.provider.launch(request)
    assert len(result.instances) == 4
    assert all(each.provider_id.startswith("aws:///us-east-1c/i-") for each in result.instances)
    form = next(form for action, form in server.proxy.calls if action == "CreateFleet")
    assert form["SpotOptions.MinTargetCapacity"] == "4"
    assert form["SpotOptions.SingleInstanceType"] == form["SpotOptions.SingleAvailabilityZone"] == "true"
    assert form["LaunchTemplateConfigs.1.Overrides.1.Placement.GroupName"] == "rack"
    assert server.proxy.placement_groups == {"rack": "cluster"}
    tags = {key: value for key, value in form.items() if ".Tag." in key}
    assert "k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu" in tags.values()
    assert {each.node_name is not None for each in await bed.provider.list_instances()} == {True}
    # The group exists already for the next gang.
    assert (await bed.provider.launch(dataclasses.replace(request, request_id="gang-2", count=1))).error is None


async def test_an_unknown_template_and_an_unknown_group_are_bad_templates(server):
    for bed in (FleetsBed(server), GroupsBed(server)):
        request = bed.make_request("r-1")
        result = await bed.provider.launch(
            LaunchRequest(
                request_id="r-1", pool="p", instance_type="p5.48xlarge", zone=request.zone, template="not-there"
            )
        )
        assert result.error is not None
        assert result.error.kind is LaunchErrorKind.BAD_TEMPLATE


async def test_instances_that_were_in_a_group_before_are_never_counted_for_a_request(server):
    bed = GroupsBed(server)
    before = await bed.add_foreign()
    provider = AwsGroups(
        server.make_settings(bed.cluster), server.client, wait_s=0.1, poll_s=0.05, clock=lambda: 2_000_000_000.0
    )
    result = await provider.launch(bed.make_request("r-1"))
    # By that clock every instance is older than the request, so none is taken, and the call is to be repeated.
    assert before not in {each.provider_id for each in result.instances}
    assert result.error is not None
    assert result.error.is_retryable


async def test_a_failed_group_stops_buying_what_it_could_not_get(server):
    bed = GroupsBed(server)
    bed.set_capacity(1)
    result = await bed.provider.launch(bed.make_request("r-1", 3))
    assert len(result.instances) == 1
    groups = server.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[bed.group])
    assert groups["AutoScalingGroups"][0]["DesiredCapacity"] == 1


async def test_marks_of_old_requests_do_not_fill_the_tags_of_a_group(server):
    bed = GroupsBed(server)
    provider = AwsGroups(server.make_settings(bed.cluster), server.client, most_marks=2)
    for number in range(4):
        assert (await provider.launch(bed.make_request(f"r-{number}"))).error is None
    groups = server.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[bed.group])
    assert len(groups["AutoScalingGroups"][0]["Tags"]) == 2
    assert bed.count_alive() == 4


async def test_no_answer_and_missing_credentials_have_their_kinds(monkeypatch, tmp_path):
    settings = AwsSettings(
        cluster="c", region="us-east-1", endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b"
    )
    with pytest.raises(LaunchError) as caught:
        await AwsFleets(settings).list_instances()
    assert caught.value.kind is LaunchErrorKind.TRANSIENT
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    bare = AwsSettings(cluster="c", region="us-east-1", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(LaunchError) as caught:
        await AwsFleets(bare, AwsClient(bare)).list_instances()
    assert caught.value.kind is LaunchErrorKind.AUTHENTICATION


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_of_the_table_keeps_its_kind_in_an_answer(code):
    error = translate_answer({"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": 400}})
    assert (error.kind, error.code) == (ERRORS[code], code)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientSomethingNew", 400, LaunchErrorKind.NO_CAPACITY),
        ("GpuLimitExceeded", 400, LaunchErrorKind.QUOTA),
        ("InvalidNewThing.Malformed", 400, LaunchErrorKind.BAD_TEMPLATE),
        ("Odd", 503, LaunchErrorKind.TRANSIENT),
        ("Odd", 403, LaunchErrorKind.AUTHENTICATION),
        ("Odd", 429, LaunchErrorKind.THROTTLED),
    ],
)
def test_codes_of_no_table_are_judged_by_words_and_status(code, status, kind):
    answer = {
        "Error": {"Code": code},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "7"}},
    }
    error = translate_answer(answer)
    assert (error.kind, error.retry_after_s) == (kind, 7.0)


def test_of_several_errors_the_one_that_needs_an_operator_is_reported():
    found = [LaunchError(kind, kind) for kind in (LaunchErrorKind.NO_CAPACITY, LaunchErrorKind.QUOTA)]
    assert choose_error(found) is found[1]
    assert choose_error([]) is None


def test_a_failed_activity_names_its_code():
    message = "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
    assert read_failure(message).kind is LaunchErrorKind.QUOTA
    assert read_failure("no reason").kind is LaunchErrorKind.NO_CAPACITY


def test_two_clusters_never_share_a_token():
    request = LaunchRequest(request_id="r", pool="p", instance_type="t", zone="z", template="gpu")
    tokens = {make_fleet(AwsSettings(cluster=name, region="r"), request)["ClientToken"] for name in ("a", "b", "a")}
    assert len(tokens) == 2


def test_reservations_are_used_first():
    request = LaunchRequest(
        request_id="r", pool="p", instance_type="t", zone="z", template="gpu", capacity_type=CapacityType.RESERVED
    )
    fleet = make_fleet(AwsSettings(cluster="c", region="r"), request)
    assert fleet["OnDemandOptions"]["CapacityReservationOptions"] == {
        "UsageStrategy": "use-capacity-reservations-first"
    }


async def test_an_atomic_launch_that_the_cloud_filled_in_part_is_returned(server):
    """MinTargetCapacity should prevent it; the provider does not rely on that."""
    bed = FleetsBed(server)
    bed.set_capacity(2)
    request = bed.make_request("r-1", 3)
    answer = await server.client.call("ec2", "create_fleet", **make_fleet(server.make_settings(bed.cluster), request))
    atomic = bed.make_request("r-1", 3, atomic=True)
    result = await AwsFleets(server.make_settings(bed.cluster), server.client)._read_answer(atomic, answer)
    assert result.instances == ()
    assert result.error is not None
    assert bed.count_alive() == 0

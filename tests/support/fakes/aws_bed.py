"""Beds of the provider contract on moto's server behind the proxy: fleets, and Auto Scaling groups."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import boto3
from moto.server import ThreadedMotoServer
from tests.support.fakes.aws_proxy import AwsProxy, Failure

from kgwe.cloud.aws.client import AwsClient, AwsSettings
from kgwe.cloud.aws.fleets import AwsFleets
from kgwe.cloud.aws.groups import AwsGroups
from kgwe.cloud.aws.instances import read_instance_ids
from kgwe.cloud.provider import CapacityType, LaunchErrorKind, LaunchRequest

if TYPE_CHECKING:
    from kgwe.cloud.provider import Provider

CODES = {
    LaunchErrorKind.NO_CAPACITY: Failure("InsufficientInstanceCapacity", 500),
    LaunchErrorKind.QUOTA: Failure("MaxSpotInstanceCountExceeded"),
    LaunchErrorKind.LIMIT: Failure("InsufficientFreeAddressesInSubnet"),
    LaunchErrorKind.AUTHENTICATION: Failure("UnauthorizedOperation", 403),
    LaunchErrorKind.BAD_TEMPLATE: Failure("InvalidParameterValue"),
    LaunchErrorKind.THROTTLED: Failure("RequestLimitExceeded", 503),
    LaunchErrorKind.TRANSIENT: Failure("InternalError", 500),
}
_NUMBERS = itertools.count()


class AwsServer:
    """Moto behind the proxy, and what every bed needs in it: a template and the subnets."""

    def __init__(self) -> None:
        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._moto.start()
        self.proxy = AwsProxy(self._moto.get_host_and_port()[1])
        self._server = self.proxy.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.ec2: Any = boto3.client("ec2", endpoint_url=self.url, **keys)
        self.autoscaling: Any = boto3.client("autoscaling", endpoint_url=self.url, **keys)
        self.subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in self.ec2.describe_subnets()["Subnets"]}
        self.ec2.create_launch_template(
            LaunchTemplateName="gpu", LaunchTemplateData={"ImageId": "ami-03cf127a", "InstanceType": "p5.48xlarge"}
        )
        self.client = AwsClient(self.make_settings("none"))

    def make_settings(self, cluster: str) -> AwsSettings:
        return AwsSettings(
            cluster=cluster,
            region="us-east-1",
            subnets=self.subnets,
            endpoint_url=self.url,
            access_key_id="test",
            secret_access_key="test",
            read_timeout_s=10,
        )

    def stop(self) -> None:
        self.client.close()
        self.ec2.close()
        self.autoscaling.close()
        self._server.shutdown()
        self._server.server_close()
        self._moto.stop()


class FleetsBed:
    """Instant fleets of a new cluster."""

    def __init__(self, server: AwsServer) -> None:
        self.server = server
        server.proxy.reset()
        self.cluster = f"cluster-{next(_NUMBERS)}"
        self.provider: Provider = self.reopen()
        self.kinds = tuple(LaunchErrorKind)

    def reopen(self) -> Provider:
        return AwsFleets(self.server.make_settings(self.cluster), self.server.client)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="p5.48xlarge",
            zone="us-east-1b",
            capacity_type=CapacityType.SPOT,
            count=count,
            atomic=atomic,
            template="gpu",
        )

    def set_capacity(self, instances: int) -> None:
        self.server.proxy.capacity = instances

    def fail_next(self, kind: LaunchErrorKind) -> None:
        failure = CODES[kind]
        actions = frozenset[str]() if kind is LaunchErrorKind.THROTTLED else frozenset({"CreateFleet"})
        self.server.proxy.failures.append(Failure(failure.code, failure.status, actions=actions))

    def lose_answer(self) -> None:
        self.server.proxy.lost_answers = 1

    async def add_foreign(self) -> str:
        other = AwsFleets(self.server.make_settings("another"), self.server.client)
        return (await other.launch(self.make_request(f"foreign-{next(_NUMBERS)}"))).instances[0].provider_id

    def is_alive(self, provider_id: str) -> bool:
        return self._count([{"Name": "instance-id", "Values": read_instance_ids([provider_id])}]) == 1

    def count_alive(self) -> int:
        return self._count([{"Name": "tag:kgwe.nvidia.io/cluster", "Values": [self.cluster]}])

    def _count(self, filters: list[dict[str, Any]]) -> int:
        found = self.server.ec2.describe_instances(Filters=filters)["Reservations"]
        states = [each["State"]["Name"] for reservation in found for each in reservation["Instances"]]
        return sum(state in {"pending", "running"} for state in states)


class GroupsBed(FleetsBed):
    """An Auto Scaling group of a new cluster, with an instance that was there before."""

    def __init__(self, server: AwsServer) -> None:
        super().__init__(server)
        self.group = f"group-{self.cluster}"
        server.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=self.group,
            MinSize=0,
            MaxSize=100,
            DesiredCapacity=0,
            LaunchTemplate={"LaunchTemplateName": "gpu", "Version": "$Latest"},
            VPCZoneIdentifier=server.subnets["us-east-1b"],
        )

    def reopen(self) -> Provider:
        return AwsGroups(self.server.make_settings(self.cluster), self.server.client, wait_s=0.2, poll_s=0.05)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="p5.48xlarge",
            zone="us-east-1b",
            capacity_type=CapacityType.ON_DEMAND,
            count=count,
            atomic=atomic,
            template=self.group,
        )

    def fail_next(self, kind: LaunchErrorKind) -> None:
        proxy = self.server.proxy
        proxy.activity, proxy.max_size, proxy.capacity = "", None, 1000
        failure = CODES[kind]
        if kind in {LaunchErrorKind.NO_CAPACITY, LaunchErrorKind.QUOTA}:
            proxy.capacity = 0
            proxy.activity = f"Could not launch On-Demand Instances. {failure.code} - as asked by the test."
        elif kind is LaunchErrorKind.LIMIT:
            proxy.max_size = 0
        else:
            actions = frozenset[str]() if kind is LaunchErrorKind.THROTTLED else frozenset({"SetDesiredCapacity"})
            proxy.failures.append(Failure(failure.code, failure.status, actions=actions))

    async def add_foreign(self) -> str:
        self.server.autoscaling.set_desired_capacity(AutoScalingGroupName=self.group, DesiredCapacity=1)
        groups = self.server.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])
        return f"aws:///us-east-1b/{groups['AutoScalingGroups'][0]['Instances'][0]['InstanceId']}"

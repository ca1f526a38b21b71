"""Instances of instant EC2 fleets: one call that launches all of a gang in one zone and type, or nothing."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.aws.client import ERRORS, AwsClient
from kgwe.cloud.aws.instances import make_provider_id, make_tags, read_instance, read_instance_ids
from kgwe.cloud.error_table import choose_error, find_kind
from kgwe.cloud.provider import (
    CLUSTER_TAG,
    REQUEST_TAG,
    CapacityType,
    GangSupport,
    Instance,
    InstanceState,
    InterruptionNotice,
    LaunchError,
    LaunchErrorKind,
    LaunchResult,
    TopologySupport,
    Traits,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kgwe.cloud.aws.client import AwsSettings
    from kgwe.cloud.provider import LaunchRequest

_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING, InstanceState.STOPPED})


class AwsFleets:
    """Provider of EC2 instances. The template of a request is a launch template: `NAME` or `NAME:VERSION`."""

    name: Final = "aws"
    #: A cluster placement group keeps instances in one network segment of a zone.
    traits: Final = Traits(gangs=GangSupport.ATOMIC, topology=TopologySupport.GUARANTEED, settle_s=60.0)

    def __init__(self, settings: AwsSettings, client: AwsClient | None = None) -> None:
        self._settings = settings
        self._client = client or AwsClient(settings)

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        try:
            # The token makes a repeated call safe; tags do so when the cloud has forgotten the token.
            before = await self._describe({f"tag:{REQUEST_TAG}": request.request_id})
            if before:
                alive = tuple(each for each in before if each.state in _ALIVE)
                return LaunchResult(instances=alive, error=describe_rest(request, len(alive)))
            if request.placement_group:
                await self._ensure_placement_group(request.placement_group)
            answer = await self._client.call("ec2", "create_fleet", **make_fleet(self._settings, request))
            return await self._read_answer(request, answer)
        except LaunchError as error:
            return LaunchResult(error=error)

    async def list_instances(self) -> tuple[Instance, ...]:
        return tuple(each for each in await self._describe({}) if each.state is not InstanceState.GONE)

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(read_instance_ids(provider_ids))
        # Only what carries the cluster's tag is ended, whatever the caller names.
        owned = {each.provider_id for each in await self._describe({}) if each.state in _ALIVE} if wanted else set()
        ids = sorted(wanted & set(read_instance_ids(owned)))
        if ids:
            await self._client.call("ec2", "terminate_instances", InstanceIds=ids)

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: the node agent reads notices from the instance's metadata."""
        return ()

    async def close(self) -> None:
        self._client.close()

    async def _describe(self, filters: Mapping[str, str]) -> list[Instance]:
        wanted = {f"tag:{CLUSTER_TAG}": self._settings.cluster, **filters}
        found = await self._client.list_all(
            "ec2",
            "describe_instances",
            "Reservations",
            Filters=[{"Name": name, "Values": [value]} for name, value in wanted.items()],
        )
        return [read_instance(item) for reservation in found for item in reservation["Instances"]]

    async def _ensure_placement_group(self, name: str) -> None:
        tags = [{"Key": CLUSTER_TAG, "Value": self._settings.cluster}]
        try:
            await self._client.call(
                "ec2",
                "create_placement_group",
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}],
            )
        except LaunchError as error:
            if error.code != "InvalidPlacementGroup.Duplicate":
                raise

    async def _read_answer(self, request: LaunchRequest, answer: Mapping[str, Any]) -> LaunchResult:
        ids = [each for item in answer.get("Instances", ()) for each in item.get("InstanceIds", ())]
        found = (
            LaunchError(
                find_kind(item.get("ErrorCode", ""), ERRORS),
                f"{item.get('ErrorCode', '')}: {item.get('ErrorMessage', '')}",
                code=item.get("ErrorCode", ""),
            )
            for item in answer.get("Errors", ())
        )
        error = (choose_error(found) or describe_rest(request, len(ids))) if len(ids) < request.count else None
        if error and request.atomic and ids:
            await self._client.call("ec2", "terminate_instances", InstanceIds=ids)
            ids = []
        instances = (
            Instance(
                provider_id=make_provider_id(request.zone, each),
                request_id=request.request_id,
                pool=request.pool,
                instance_type=request.instance_type,
                zone=request.zone,
                capacity_type=request.capacity_type,
                state=InstanceState.LAUNCHING,
            )
            for each in ids
        )
        return LaunchResult(instances=tuple(instances), error=error)


def make_fleet(settings: AwsSettings, request: LaunchRequest) -> dict[str, Any]:
    """Return the arguments of CreateFleet. Everything that the token stands for is the same for the same request."""
    is_spot = request.capacity_type is CapacityType.SPOT
    gang = {
        "MinTargetCapacity": request.count,
        "SingleInstanceType": True,
        "SingleAvailabilityZone": True,
    }
    options: dict[str, Any] = gang if request.atomic else {}
    options["AllocationStrategy"] = "price-capacity-optimized" if is_spot else "lowest-price"
    if request.capacity_type is CapacityType.RESERVED:
        options["CapacityReservationOptions"] = {"UsageStrategy": "use-capacity-reservations-first"}
    override: dict[str, Any] = {"InstanceType": request.instance_type}
    if subnet := settings.subnets.get(request.zone):
        override["SubnetId"] = subnet
    else:
        override["AvailabilityZone"] = request.zone
    if request.placement_group:
        override["Placement"] = {"GroupName": request.placement_group}
    name, _, version = request.template.partition(":")
    return {
        "Type": "instant",
        "ClientToken": make_token(settings.cluster, request.request_id),
        "SpotOptions" if is_spot else "OnDemandOptions": options,
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.count,
            "DefaultTargetCapacityType": "spot" if is_spot else "on-demand",
        },
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": version or "$Default"},
                "Overrides": [override],
            }
        ],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": make_tags(settings.cluster, request)}],
    }


def make_token(cluster: str, request_id: str) -> str:
    """Return a token that two clusters of one account never share."""
    return hashlib.sha256(f"{cluster}/{request_id}".encode()).hexdigest()


def describe_rest(request: LaunchRequest, found: int) -> LaunchError | None:
    """Return why instances are missing if the cloud gave no reason, or None if none is missing."""
    if found >= request.count:
        return None
    return LaunchError(
        LaunchErrorKind.NO_CAPACITY, f"{found} of {request.count} instances of request {request.request_id} exist"
    )

"""EC2 instances and their tags, as records of the Protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.provider import (
    CLUSTER_TAG,
    POOL_TAG,
    REQUEST_TAG,
    CapacityType,
    Instance,
    InstanceState,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kgwe.cloud.provider import LaunchRequest

CAPACITY_TAG: Final = "kgwe.nvidia.io/capacity-type"
#: Tags by which bootstrap scripts and cluster-autoscaler know the labels and taints of a node before it exists.
_LABEL_TAG: Final = "k8s.io/cluster-autoscaler/node-template/label/"
_TAINT_TAG: Final = "k8s.io/cluster-autoscaler/node-template/taint/"
_STATES: Final = {
    "pending": InstanceState.LAUNCHING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPED,
    "stopped": InstanceState.STOPPED,
    "shutting-down": InstanceState.REMOVING,
    "terminated": InstanceState.GONE,
}
_PROVIDER_ID: Final = re.compile(r"aws:///[a-z0-9-]+/(i-[0-9a-f]+)")


def make_tags(cluster: str, request: LaunchRequest) -> list[dict[str, str]]:
    """Return the tags of the instances that a request buys."""
    tags = {
        CLUSTER_TAG: cluster,
        REQUEST_TAG: request.request_id,
        POOL_TAG: request.pool,
        CAPACITY_TAG: str(request.capacity_type),
        "Name": f"{cluster}-{request.pool}",
    }
    tags |= {f"{_LABEL_TAG}{key}": value for key, value in request.labels.items()}
    tags |= {f"{_TAINT_TAG}{taint.key}": f"{taint.value}:{taint.effect}" for taint in request.taints}
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def read_tags(item: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}


def read_instance(item: Mapping[str, Any]) -> Instance:
    """Return an instance from DescribeInstances."""
    tags = read_tags(item)
    zone = item.get("Placement", {}).get("AvailabilityZone", "")
    capacity = tags.get(CAPACITY_TAG, "")
    if capacity not in set(CapacityType):
        capacity = CapacityType.SPOT if item.get("InstanceLifecycle") == "spot" else CapacityType.ON_DEMAND
    launched = item.get("LaunchTime")
    return Instance(
        provider_id=make_provider_id(zone, item["InstanceId"]),
        request_id=tags.get(REQUEST_TAG, ""),
        pool=tags.get(POOL_TAG, ""),
        instance_type=item.get("InstanceType", ""),
        zone=zone,
        capacity_type=CapacityType(capacity),
        state=_STATES.get(item.get("State", {}).get("Name", ""), InstanceState.LAUNCHING),
        node_name=item.get("PrivateDnsName") or None,
        launched_at=launched.timestamp() if launched else 0.0,
        message=item.get("StateReason", {}).get("Message", ""),
    )


def make_provider_id(zone: str, instance_id: str) -> str:
    return f"aws:///{zone}/{instance_id}"


def read_instance_ids(provider_ids: Collection[str]) -> list[str]:
    """Return ids of EC2; ids of other clouds and nonsense are left out."""
    return [match[1] for each in provider_ids if (match := _PROVIDER_ID.fullmatch(each))]

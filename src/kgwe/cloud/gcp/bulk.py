"""Instances by bulk insert: with `minCount` equal to `count`, all of a gang are created or none."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.gcp.client import GcpClient, make_request_id
from kgwe.cloud.provider import (
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
    from collections.abc import Collection

    from kgwe.cloud.gcp.client import GcpSettings
    from kgwe.cloud.provider import LaunchRequest

CLUSTER_LABEL: Final = "kgwe-cluster"
REQUEST_LABEL: Final = "kgwe-request"
POOL_LABEL: Final = "kgwe-pool"
CAPACITY_LABEL: Final = "kgwe-capacity"
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")
_PROVIDER_ID: Final = re.compile(r"gce://([a-z0-9:.-]+)/([a-z0-9-]+)/([a-z0-9-]+)")
_STATES: Final = {
    "PROVISIONING": InstanceState.LAUNCHING,
    "STAGING": InstanceState.LAUNCHING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.RUNNING,
    "SUSPENDING": InstanceState.STOPPED,
    "SUSPENDED": InstanceState.STOPPED,
    "STOPPING": InstanceState.REMOVING,
    "TERMINATED": InstanceState.STOPPED,
    "DEPROVISIONING": InstanceState.REMOVING,
}
_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING, InstanceState.STOPPED})


class GcpBulk:
    """Provider of single VMs. The template of a request is an instance template."""

    name: Final = "gcp"
    #: A compact placement policy keeps VMs close to each other.
    traits: Final = Traits(gangs=GangSupport.ATOMIC, topology=TopologySupport.GUARANTEED, settle_s=60.0)

    def __init__(self, settings: GcpSettings, client: GcpClient | None = None) -> None:
        self._settings = settings
        self._client = client or GcpClient(settings)

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        error = None
        try:
            found = await self._list(request.request_id)
            if not found:
                arguments = make_bulk_insert(self._settings, request)
                try:
                    operation = await self._client.call("instances", "bulk_insert_unary", arguments)
                    await self._client.follow(request.zone, operation)
                except LaunchError as failure:
                    error = failure
                found = await self._list(request.request_id)
        except LaunchError as failure:
            return LaunchResult(error=failure)
        alive = tuple(each for each in found if each.state in _ALIVE)
        if len(alive) < request.count and error is None:
            text = f"{len(alive)} of {request.count} instances of request {request.request_id} exist"
            error = LaunchError(LaunchErrorKind.NO_CAPACITY, text)
        if error and request.atomic and alive and not error.is_retryable:
            await self.terminate([each.provider_id for each in alive])
            alive = ()
        return LaunchResult(instances=alive, error=error if len(alive) < request.count else None)

    async def list_instances(self) -> tuple[Instance, ...]:
        return tuple(await self._list(""))

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(provider_ids)
        for each in await self.list_instances() if wanted else ():
            if each.provider_id in wanted and each.state in _ALIVE:
                await self._delete(each)

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: the node agent reads notices from the metadata server."""
        return ()

    async def close(self) -> None:
        self._client.close()

    async def _delete(self, instance: Instance) -> None:
        _, _, name = instance.provider_id.rpartition("/")
        wanted = {"project": self._settings.project, "zone": instance.zone, "instance": name}
        try:
            await self._client.call("instances", "delete_unary", wanted)
        except LaunchError as error:
            if error.code != "notFound":
                raise

    async def _list(self, request_id: str) -> list[Instance]:
        wanted = f"labels.{CLUSTER_LABEL}={make_label(self._settings.cluster)}"
        if request_id:
            wanted += f" AND labels.{REQUEST_LABEL}={request_id}"
        pages = await self._client.list_all(
            "instances", "aggregated_list", {"project": self._settings.project, "filter": wanted}
        )
        return [read_instance(self._settings.project, item) for _, scoped in pages for item in scoped.instances]


def make_bulk_insert(settings: GcpSettings, request: LaunchRequest) -> dict[str, Any]:
    """Return the arguments of bulkInsert."""
    properties: dict[str, Any] = {
        "machine_type": request.instance_type,
        "labels": {
            CLUSTER_LABEL: make_label(settings.cluster),
            REQUEST_LABEL: request.request_id,
            POOL_LABEL: make_label(request.pool),
            CAPACITY_LABEL: str(request.capacity_type),
        },
        "metadata": {"items": [{"key": key, "value": value} for key, value in make_metadata(request).items()]},
    }
    if request.capacity_type is CapacityType.SPOT:
        properties["scheduling"] = {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
    if request.placement_group:
        properties["resource_policies"] = [request.placement_group]
    return {
        "project": settings.project,
        "zone": request.zone,
        "request_id": make_request_id(settings.cluster, request.request_id),
        "bulk_insert_instance_resource_resource": {
            "count": request.count,
            "min_count": request.count if request.atomic else 1,
            "name_pattern": f"{request.request_id}-####",
            "source_instance_template": f"projects/{settings.project}/global/instanceTemplates/{request.template}",
            "instance_properties": properties,
        },
    }


def make_metadata(request: LaunchRequest) -> dict[str, str]:
    """Return what the start-up script of a node reads: its labels and taints, as the kubelet takes them."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(request.labels.items()))
    taints = ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in request.taints)
    return {key: value for key, value in (("kgwe-node-labels", labels), ("kgwe-node-taints", taints)) if value}


def make_label(text: str) -> str:
    """Return a value that GCP allows as a label."""
    return text if _LABEL.fullmatch(text) else re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def read_instance(project: str, item: Any) -> Instance:
    """Return an instance of a list."""
    zone = item.zone.rpartition("/")[2]
    is_spot = item.scheduling.provisioning_model == "SPOT"
    capacity = item.labels.get(CAPACITY_LABEL, "")
    if capacity not in set(CapacityType):
        capacity = CapacityType.SPOT if is_spot else CapacityType.ON_DEMAND
    return Instance(
        provider_id=f"gce://{project}/{zone}/{item.name}",
        request_id=item.labels.get(REQUEST_LABEL, ""),
        pool=item.labels.get(POOL_LABEL, ""),
        instance_type=item.machine_type.rpartition("/")[2],
        zone=zone,
        capacity_type=CapacityType(capacity),
        state=_STATES.get(item.status, InstanceState.LAUNCHING),
        node_name=item.name,
        launched_at=read_time(item.creation_timestamp),
        message=item.status_message,
    )


def read_time(text: str) -> float:
    try:
        return dt.datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0

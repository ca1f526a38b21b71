"""Instances of managed instance groups by resize requests: all of a request are created at once, or none.

A resize request has the name of the launch request and names its instances, so a repeated call finds it, and every
instance tells which request it belongs to.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.error_table import choose_error
from kgwe.cloud.gcp.client import GcpClient, make_request_id, read_errors
from kgwe.cloud.provider import (
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

    from kgwe.cloud.gcp.client import GcpGroup, GcpSettings
    from kgwe.cloud.provider import LaunchRequest

_STATES: Final = {
    "CREATING": InstanceState.LAUNCHING,
    "CREATING_WITHOUT_RETRIES": InstanceState.LAUNCHING,
    "VERIFYING": InstanceState.LAUNCHING,
    "NONE": InstanceState.RUNNING,
    "REFRESHING": InstanceState.RUNNING,
    "RESTARTING": InstanceState.RUNNING,
    "DELETING": InstanceState.REMOVING,
    "ABANDONING": InstanceState.REMOVING,
}
_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING})
_FAILED: Final = frozenset({"FAILED", "CANCELLED"})


class GcpGroups:
    """Provider of resize requests. The template of a request is the name of the managed instance group."""

    name: Final = "gcp-mig"
    #: The group's own placement policy decides; what it gave is seen when nodes join.
    traits: Final = Traits(gangs=GangSupport.ATOMIC, topology=TopologySupport.OBSERVED_AFTER_JOIN, settle_s=60.0)

    def __init__(self, settings: GcpSettings, client: GcpClient | None = None) -> None:
        self._settings = settings
        self._client = client or GcpClient(settings)
        self._prefix = f"k{hashlib.sha256(settings.cluster.encode()).hexdigest()[:5]}"
        self._name = re.compile(rf"{self._prefix}-(?P<request>[a-z0-9-]+)-(?P<number>[0-9]+)")

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        try:
            group = self._find_group(request)
            resize = await self._find(request)
            if resize is None:
                await self._insert(request)
            error = await self._follow(request)
            found = tuple(
                each
                for each in await self._list_group(request.pool, group)
                if each.request_id == request.request_id and each.state in _ALIVE
            )
        except LaunchError as failure:
            return LaunchResult(error=failure)
        if error is None and len(found) < request.count:
            text = f"{len(found)} of {request.count} instances of request {request.request_id} exist"
            error = LaunchError(LaunchErrorKind.NO_CAPACITY, text)
        return LaunchResult(instances=found, error=error)

    async def list_instances(self) -> tuple[Instance, ...]:
        found: list[Instance] = []
        for pool, group in self._settings.groups.items():
            found += await self._list_group(pool, group)
        return tuple(found)

    async def terminate(self, provider_ids: Collection[str]) -> None:
        for pool, group in self._settings.groups.items() if provider_ids else ():
            owned = await self._list_group(pool, group)
            urls = [
                f"zones/{group.zone}/instances/{each.node_name}"
                for each in owned
                if each.provider_id in provider_ids and each.state in _ALIVE
            ]
            if urls:
                await self._client.call(
                    "groups",
                    "delete_instances_unary",
                    {
                        **self._place(group.zone, group.name),
                        "instance_group_managers_delete_instances_request_resource": {
                            "instances": urls,
                            "skip_instances_on_validation_error": True,
                        },
                    },
                )

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: the node agent reads notices from the metadata server."""
        return ()

    async def close(self) -> None:
        self._client.close()

    def _place(self, zone: str, group: str) -> dict[str, Any]:
        return {"project": self._settings.project, "zone": zone, "instance_group_manager": group}

    async def _find(self, request: LaunchRequest) -> Any:
        wanted = {**self._place(request.zone, request.template), "resize_request": request.request_id}
        try:
            return await self._client.call("resizes", "get", wanted)
        except LaunchError as error:
            if error.code == "notFound":
                return None
            raise

    async def _insert(self, request: LaunchRequest) -> None:
        names = [{"name": f"{self._prefix}-{request.request_id}-{number}"} for number in range(request.count)]
        operation = await self._client.call(
            "resizes",
            "insert_unary",
            {
                **self._place(request.zone, request.template),
                "request_id": make_request_id(self._settings.cluster, request.request_id),
                "instance_group_manager_resize_request_resource": {"name": request.request_id, "instances": names},
            },
        )
        await self._client.follow(request.zone, operation)

    async def _follow(self, request: LaunchRequest) -> LaunchError | None:
        """Wait for the end of a resize request. One that waits for capacity is repeated by the caller."""
        ends = time.monotonic() + self._settings.wait_s
        while True:
            resize = await self._find(request)
            if resize is None:
                return LaunchError(LaunchErrorKind.TRANSIENT, f"resize request {request.request_id} does not show yet")
            if resize.state in _FAILED:
                found = [(each.code, each.message) for each in resize.status.error.errors]
                text = f"resize request {request.request_id} is {resize.state}"
                return choose_error(read_errors(found)) or LaunchError(LaunchErrorKind.NO_CAPACITY, text)
            if resize.state == "SUCCEEDED":
                return None
            if time.monotonic() >= ends:
                return LaunchError(LaunchErrorKind.TRANSIENT, f"resize request {request.request_id} is {resize.state}")
            await asyncio.sleep(self._settings.poll_s)

    def _find_group(self, request: LaunchRequest) -> GcpGroup:
        group = self._settings.groups.get(request.pool)
        if group is None or (group.name, group.zone) != (request.template, request.zone):
            text = f"pool {request.pool} has no managed instance group {request.template!r} in {request.zone}"
            raise LaunchError(LaunchErrorKind.BAD_TEMPLATE, text)
        return group

    async def _list_group(self, pool: str, group: GcpGroup) -> list[Instance]:
        """Return the instances of a group that requests of this cluster named."""
        place = self._place(group.zone, group.name)
        found = await self._client.list_all("groups", "list_managed_instances", place)
        return [instance for item in found if (instance := self._read(pool, group, item)) is not None]

    def _read(self, pool: str, group: GcpGroup, item: Any) -> Instance | None:
        match = self._name.fullmatch(item.name)
        if match is None:
            return None
        return Instance(
            provider_id=f"gce://{self._settings.project}/{group.zone}/{item.name}",
            request_id=match["request"],
            pool=pool,
            instance_type=group.instance_type,
            zone=group.zone,
            capacity_type=group.capacity_type,
            state=_STATES.get(item.current_action, InstanceState.RUNNING),
            node_name=item.name,
        )

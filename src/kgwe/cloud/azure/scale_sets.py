"""Instances of virtual machine scale sets: the capacity of the set is raised, and new VMs are given to the request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.azure.client import AzureClient
from kgwe.cloud.azure.marks import MOST_TEXT, Mark, make_tag, read_marks
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
    from collections.abc import Callable, Collection, Mapping

    from kgwe.cloud.azure.client import AzureScaleSet, AzureSettings
    from kgwe.cloud.provider import LaunchRequest

_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING, InstanceState.STOPPED})
_STATES: Final = {"Creating": InstanceState.LAUNCHING, "Deleting": InstanceState.REMOVING}
_MOST_MARKS: Final = 24


class AzureScaleSets:
    """Provider of scale sets. The template of a request is the name of the scale set of its pool."""

    name: Final = "azure"
    traits: Final = Traits(gangs=GangSupport.BEST_EFFORT, topology=TopologySupport.OBSERVED_AFTER_JOIN, settle_s=120.0)

    def __init__(
        self,
        settings: AzureSettings,
        client: AzureClient | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._client = client or AzureClient(settings)
        self._clock = clock
        self._lock = asyncio.Lock()

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        # Requests of one process change a scale set one after the other; entity tags keep other processes apart.
        async with self._lock:
            try:
                return await self._launch(request)
            except LaunchError as error:
                return LaunchResult(error=error)

    async def _launch(self, request: LaunchRequest) -> LaunchResult:
        scale_set = self._find_set(request)
        there = await self._client.get_set(scale_set.name)
        marks = read_marks(self._settings.cluster, there.tags)
        mark = marks.get(request.request_id)
        if mark is None:
            self._check_limit(there, scale_set, request.count)
            mark = Mark(is_done=False, began_at=int(self._clock()))
            await self._write(there, self._add_mark(marks, request, mark))
            there = await self._client.get_set(scale_set.name)
        if mark.is_done:
            found = await self._find_own(request, scale_set)
            return LaunchResult(instances=found, error=_describe_rest(request, len(found)))
        error = await self._raise_capacity(request, scale_set, there, mark)
        return await self._close(request, scale_set, mark, error)

    async def _raise_capacity(
        self, request: LaunchRequest, scale_set: AzureScaleSet, there: Any, mark: Mark
    ) -> LaunchError | None:
        """Raise the capacity by what the request lacks; return why that failed for good."""
        machines = await self._client.list_machines(scale_set.name)
        marks = read_marks(self._settings.cluster, there.tags)
        free = _find_free(machines, marks, mark)
        under_way = max(int(there.sku.capacity) - sum(_read_state(each) in _ALIVE for each in machines), 0)
        missing = request.count - len(free) - under_way
        if missing <= 0:
            return None
        self._check_limit(there, scale_set, missing)
        sku = self._client.models.Sku(
            name=there.sku.name, tier=there.sku.tier, capacity=int(there.sku.capacity) + missing
        )
        try:
            await self._client.update_set(
                scale_set.name, self._client.models.VirtualMachineScaleSetUpdate(sku=sku), there.etag or ""
            )
        except LaunchError as error:
            if error.is_retryable:
                raise
            return error
        return None

    async def _close(
        self, request: LaunchRequest, scale_set: AzureScaleSet, mark: Mark, error: LaunchError | None
    ) -> LaunchResult:
        """Give the request its VMs. After a failure, lower the capacity to what there is, and return a broken gang."""
        machines = await self._client.list_machines(scale_set.name)
        there = await self._client.get_set(scale_set.name)
        marks = read_marks(self._settings.cluster, there.tags)
        own = sorted(_find_free(machines, marks, mark))[: request.count]
        if len(own) < request.count and error is None:
            text = f"scale set {scale_set.name} has created {len(own)} of {request.count} VMs so far"
            error = LaunchError(LaunchErrorKind.TRANSIENT, text)
        if error is None or not error.is_retryable:
            kept = frozenset(own)
            change = self._add_mark(marks, request, replace(mark, is_done=True, machines=kept))
            if error is not None:
                alive = sum(_read_state(each) in _ALIVE for each in machines)
                change["sku"] = self._client.models.Sku(name=there.sku.name, tier=there.sku.tier, capacity=alive)
            await self._write(there, change)
        instances = self._read_all(request.pool, scale_set, machines, dict.fromkeys(own, request.request_id))
        if error is not None and not error.is_retryable and request.atomic:
            await self.terminate([each.provider_id for each in instances])
            instances = ()
        return LaunchResult(instances=instances, error=error)

    async def list_instances(self) -> tuple[Instance, ...]:
        found: list[Instance] = []
        for pool, scale_set in self._settings.scale_sets.items():
            there = await self._client.get_set(scale_set.name)
            machines = await self._client.list_machines(scale_set.name)
            marks = read_marks(self._settings.cluster, there.tags)
            owners = {number: name for name, mark in marks.items() for number in mark.machines}
            for name, mark in marks.items():
                if not mark.is_done:  # a launch that ended in the middle: its VMs are owned all the same
                    owners |= dict.fromkeys(_find_free(machines, marks, mark), name)
            found += self._read_all(pool, scale_set, machines, owners)
        return tuple(found)

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(provider_ids)
        owned = await self.list_instances() if wanted else ()
        for pool, scale_set in self._settings.scale_sets.items():
            ids = [
                each.provider_id.rpartition("/")[2]
                for each in owned
                if each.provider_id in wanted and each.pool == pool and each.state in _ALIVE
            ]
            if ids:
                await self._client.delete_machines(scale_set.name, ids)

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: the node agent reads scheduled events from the metadata service."""
        return ()

    async def close(self) -> None:
        self._client.close()

    def _find_set(self, request: LaunchRequest) -> AzureScaleSet:
        found = self._settings.scale_sets.get(request.pool)
        if found is None or found.name != request.template:
            text = f"pool {request.pool} has no scale set {request.template!r}"
            raise LaunchError(LaunchErrorKind.BAD_TEMPLATE, text)
        return found

    @staticmethod
    def _check_limit(there: Any, scale_set: AzureScaleSet, more: int) -> None:
        needed = int(there.sku.capacity) + more
        if needed > scale_set.limit:
            text = f"scale set {scale_set.name} may have {scale_set.limit} VMs; {needed} are needed"
            raise LaunchError(LaunchErrorKind.LIMIT, text)

    async def _find_own(self, request: LaunchRequest, scale_set: AzureScaleSet) -> tuple[Instance, ...]:
        there = await self._client.get_set(scale_set.name)
        mark = read_marks(self._settings.cluster, there.tags)[request.request_id]
        machines = await self._client.list_machines(scale_set.name)
        owners = dict.fromkeys(mark.machines, request.request_id)
        found = self._read_all(request.pool, scale_set, machines, owners)
        return tuple(each for each in found if each.state in _ALIVE)

    def _add_mark(self, marks: Mapping[str, Mark], request: LaunchRequest, mark: Mark) -> dict[str, Any]:
        """Return the tags with a mark more; the oldest that are done make room."""
        kept = dict(marks) | {request.request_id: mark}
        done = sorted(
            (each.began_at, name) for name, each in kept.items() if each.is_done and name != request.request_id
        )
        for _, name in done[: max(len(kept) - _MOST_MARKS, 0)]:
            if not kept[name].machines:
                del kept[name]
        return {"marks": {make_tag(self._settings.cluster, name): each.write() for name, each in kept.items()}}

    async def _write(self, there: Any, change: dict[str, Any]) -> None:
        marks = change["marks"]
        if any(len(text) > MOST_TEXT for text in marks.values()):
            raise LaunchError(
                LaunchErrorKind.LIMIT, "the VMs of a request do not fit into one tag; buy fewer at a time"
            )
        others = {
            key: text
            for key, text in (there.tags or {}).items()
            if not key.startswith(make_tag(self._settings.cluster, ""))
        }
        update = self._client.models.VirtualMachineScaleSetUpdate(tags={**others, **marks}, sku=change.get("sku"))
        await self._client.update_set(there.name, update, there.etag or "")

    def _read_all(
        self, pool: str, scale_set: AzureScaleSet, machines: list[Any], owners: Mapping[int, str]
    ) -> tuple[Instance, ...]:
        """Return the VMs that have an owner."""
        return tuple(
            Instance(
                provider_id=f"azure://{each.id}",
                request_id=owners[int(each.instance_id)],
                pool=pool,
                instance_type=each.sku.name if each.sku else "",
                zone="-".join([each.location, *(each.zones or ())]),
                capacity_type=scale_set.capacity_type,
                state=_read_state(each),
                node_name=(each.os_profile.computer_name if each.os_profile else None) or None,
                launched_at=each.time_created.timestamp() if each.time_created else 0.0,
            )
            for each in machines
            if int(each.instance_id) in owners
        )


def _find_free(machines: list[Any], marks: Mapping[str, Mark], mark: Mark) -> set[int]:
    """Return VMs that were created since the request began, and that belong to no other request."""
    taken = {number for each in marks.values() if each is not mark and each.is_done for number in each.machines}
    return {
        int(each.instance_id)
        for each in machines
        if _read_state(each) in _ALIVE
        and int(each.instance_id) not in taken
        and each.time_created is not None
        and each.time_created.timestamp() >= mark.began_at
    }


def _read_state(machine: Any) -> InstanceState:
    codes = [each.code for each in (machine.instance_view.statuses or ())] if machine.instance_view else []
    if any(code in {"PowerState/deallocated", "PowerState/stopped"} for code in codes):
        return InstanceState.STOPPED
    return _STATES.get(machine.provisioning_state or "", InstanceState.RUNNING)


def _describe_rest(request: LaunchRequest, found: int) -> LaunchError | None:
    if found >= request.count:
        return None
    text = f"{found} of {request.count} instances of request {request.request_id} exist"
    return LaunchError(LaunchErrorKind.NO_CAPACITY, text)

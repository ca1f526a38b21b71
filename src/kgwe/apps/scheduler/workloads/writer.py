"""Writes the status and the Events of workloads, and deletes their runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kgwe import errors
from kgwe.cluster.workload.workload import Workload, status_patch
from kgwe.kube.client.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Status
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.events import EventRecorder

# Events about single replicas that scaling causes all the time; the status of the workload shows them.
_REPLICA_SILENT: Final = frozenset({"Suspended", "Resumed"})


class StatusWriter:
    """Writes with the resource version of the decision: the API server refuses a write from a stale view."""

    def __init__(
        self,
        client: KubeClient,
        events: EventRecorder,
        state: ClusterState | None = None,
        on_replica: Callable[[Workload], None] = lambda _workload: None,
    ) -> None:
        """`on_replica`: called when the status of one of several replicas changed."""
        self._client = client
        self._events = events
        self._state = state
        self._on_replica = on_replica
        self._overwritten: dict[str, str] = {}  # uid -> version that our last write replaced
        self._expected: dict[str, str] = {}  # uid -> version that our last write made, if nothing else waits for it

    def is_behind(self, workload: Workload) -> bool:
        """Whether the watch has not shown our last write yet: another write would be refused."""
        uid = workload.meta.uid
        # The caller must be called again when the watch shows that write.
        self._expected.pop(uid, None)
        if self._overwritten.get(uid) == workload.meta.resourceVersion:
            return True
        self._overwritten.pop(uid, None)
        return False

    def is_echo(self, workload: Workload) -> bool:
        """Whether the watch shows our last write, and no call was refused since."""
        return self._expected.pop(workload.meta.uid, "") == workload.meta.resourceVersion

    def forget(self, uid: str) -> None:
        self._overwritten.pop(uid, None)
        self._expected.pop(uid, None)

    async def write_status(self, workload: Workload, new: Status) -> bool:
        """Write the status if it changed; returns whether it did. One of several replicas is only remembered."""
        patch = status_patch(workload, new)
        if patch is None:
            return False
        if self._state is not None and self._is_part(workload):
            self._state.set_replica_status(workload, new)
            self._on_replica(workload)
            return True
        return await self.write_object_status(workload, new)

    def _is_part(self, workload: Workload) -> bool:
        return self._state is not None and self._state.replicas.is_member(workload)

    async def write_object_status(self, workload: Workload, new: Status) -> bool:
        """Write the status of the object if it changed; returns whether it did."""
        patch = status_patch(workload, new)
        if patch is None:
            return False
        patch["metadata"] = {"resourceVersion": workload.meta.resourceVersion}
        stored = await self._client.patch(
            workload.kind.resource, workload.meta.name, patch, workload.meta.namespace, subresource="status"
        )
        if stored.metadata.resourceVersion != workload.meta.resourceVersion:
            self._overwritten[workload.meta.uid] = workload.meta.resourceVersion
            self._expected[workload.meta.uid] = stored.metadata.resourceVersion
        return True

    async def remove_finalizer(self, workload: Workload) -> bool:
        """Remove the finalizer of an earlier release; returns whether the workload had it."""
        if workload.replica or workload.kind.finalizer not in workload.meta.finalizers:
            return False
        kept = [name for name in workload.meta.finalizers if name != workload.kind.finalizer]
        body = {"metadata": {"resourceVersion": workload.meta.resourceVersion, "finalizers": kept}}
        with contextlib.suppress(errors.NotFound):
            await self._client.patch(workload.kind.resource, workload.meta.name, body, workload.meta.namespace)
        return True

    async def delete_run(self, run: Run) -> None:
        if run.meta.deletionTimestamp is not None:
            return
        # It is gone already, or another object has its name.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)

    def record_event(
        self, workload: Workload, type_: Literal["Normal", "Warning"], reason: str, note: str, *, action: str
    ) -> None:
        if self._is_part(workload):
            if reason in _REPLICA_SILENT:
                return
            note = f"replica {workload.replica}: {note}"
        meta = msgspec.structs.replace(workload.meta, uid=workload.object_uid) if workload.replica else workload.meta
        self._events.record(Event(workload.kind.resource, meta, type_, reason, note, action))

"""The behavior of simulated nodes: GPU usage, MIG layouts, out-of-memory failures and reclaimed spot nodes.

One process simulates the whole fleet. It watches nodes, GPUNodes and pods, assigns the GPUs of each node to its pods,
and acts at deadlines: a pod fails at the time in its usage profile, and a reclaimed spot node disappears. All state is
in API objects, except the assignment of GPUs, which is kept in a small file if one is given.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.client import informer
from kgwe.local.fleet import apply, device_assignment, faults, gpupods, mig_layout, resource_slices
from kgwe.local.fleet.meter import NodeMeter
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.hardware.dcgm import metrics
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

# Retry a missed deadline (the API server was unavailable) after this time.
_RETRY_S: Final = 2.0
# Changes within this time are handled together.
_GATHER_S: Final = 0.05

_Remembered = dict[str, list[tuple[str, int, int | None]]]


class Simulator:
    """The state of all simulated nodes. `clock` gives seconds since 1970."""

    def __init__(
        self, client: KubeClient, *, memory: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._clock = clock
        self._memory = memory
        self._nodes = informer.Informer(client, resources.NODE, label_selector=inventory.FLEET_LABEL)
        self._gpu_nodes = informer.Informer(client, resources.GPU_NODE, label_selector=inventory.FLEET_LABEL)
        self._pods = informer.Informer(client, gpupods.GPU_PODS, field_selector="spec.nodeName!=")
        self._pods_on: dict[str, dict[str, gpupods.GpuPod]] = collections.defaultdict(dict)
        self._meters: dict[str, NodeMeter] = {}
        self._held: dict[str, device_assignment.Grants] = {}
        self._remembered = self._read_assignments()
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._due: dict[str, dict[str, float]] = {}  # node -> uid of a pod, or "" for the node itself -> time
        self._unreported: set[str] = set()  # nodes whose GPUs may differ from their API objects
        self._unwritten = False
        self._warned: set[str] = set()
        self._nodes.on_change(self._on_node)
        self._gpu_nodes.on_change(self._on_gpu_node)
        self._pods.on_change(self._on_pod)

    # --- watching ---------------------------------------------------------------------------------------

    def _on_node(self, change: informer.Change[core.Node]) -> None:
        self._touch(change.key)

    def _on_gpu_node(self, change: informer.Change[gpunode.GPUNode]) -> None:
        if change.new is None:
            self._meters.pop(change.key, None)
        else:
            self._measure(change.new)
        self._touch(change.key)

    def _measure(self, obj: gpunode.GPUNode) -> None:
        name = obj.metadata.name
        try:
            if meter := self._meters.get(name):
                meter.update(obj, self._clock())
            else:
                self._meters[name] = NodeMeter(obj, self._clock())
        except errors.Permanent as exc:
            log.warning("node_not_measured", node=name, error=str(exc))
            self._meters.pop(name, None)

    def _on_pod(self, change: informer.Change[gpupods.GpuPod]) -> None:
        for pod in (change.old, change.new):
            if pod is not None:
                self._pods_on[pod.spec.node_name].pop(pod.metadata.uid, None)
                self._touch(pod.spec.node_name)
        pod = change.new
        if pod is not None and pod.is_active and pod.list_requests():
            self._pods_on[pod.spec.node_name][pod.metadata.uid] = pod

    def _touch(self, node: str) -> None:
        self._changed.add(node)
        self._wake.set()

    # --- deciding ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Update GPUs and deadlines of each changed node."""
        if not self._pods.has_synced or not self._nodes.has_synced or not self._gpu_nodes.has_synced:
            return  # with incomplete data, GPUs in use would be assigned again
        changed, self._changed = self._changed, set()
        for name in changed:
            self._settle_node(name)
        if self._unwritten:
            self._write_assignments()
            self._unwritten = False

    def _settle_node(self, name: str) -> None:
        node, obj = self._nodes.store.get(name), self._gpu_nodes.store.get(name)
        pods = self._pods_on.get(name, {})
        before = self._held.pop(name, {})
        given: device_assignment.Grants = {}
        if node is not None and obj is not None:
            known = {uid: grants for uid in pods if (grants := before.get(uid) or self._remembered.pop(uid, ()))}
            given = device_assignment.assign(
                device_assignment.list_devices(obj, node.status.capacity, mig_layout.count_shares(node)),
                pods.values(),
                known,
            )
            self._held[name] = given
            if meter := self._meters.get(name):
                meter.set_holders(device_assignment.map_holders(pods, given))
        self._unwritten = self._unwritten or given != before
        if obj is not None and (obj.spec.cards or obj.spec.source == gpunode.Source.AGENT):
            self._unreported.add(name)
        self._due.pop(name, None)
        if node is not None and (due := self._plan(node, pods)):
            self._due[name] = due
        if not pods:
            self._pods_on.pop(name, None)

    def _plan(self, node: core.Node, pods: dict[str, gpupods.GpuPod]) -> dict[str, float]:
        """Return the next events of this node and their times."""
        due: dict[str, float] = {}
        if deadline := faults.spot_deadline(node):
            due[""] = deadline.timestamp()
        for uid, pod in pods.items():
            self._record_warning(pod)
            # Pods of a node that is down are frozen.
            if (fails_at_s := pod.fails_at_s()) is not None and not faults.is_down(node):
                due[uid] = fails_at_s
        return due

    def _record_warning(self, pod: gpupods.GpuPod) -> None:
        _, problem = pod.profile()
        if problem and pod.metadata.uid not in self._warned:
            self._warned.add(pod.metadata.uid)
            log.warning("use_profile_ignored", pod=pod.metadata.key, error=problem)

    # --- acting -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def watch_cluster(self) -> AsyncIterator[None]:
        """Watch without acting while the context is open; enter it after the first complete list."""
        watches = (self._nodes, self._gpu_nodes, self._pods)
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        try:
            await informer.wait_synced(*watches)
            self.settle()
            yield
        finally:
            await _cancel_tasks(*tasks)

    @contextlib.asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Watch and act while the context is open."""
        async with self.watch_cluster():
            acting = asyncio.create_task(self._act())
            try:
                yield
            finally:
                await _cancel_tasks(acting)

    async def _act(self) -> None:
        while True:
            self._wake.clear()
            self.settle()
            for name in sorted(self._unreported):
                await self._report(name)
            now = self._clock()
            for name, uid in [(name, uid) for name, due in self._due.items() for uid, at in due.items() if at <= now]:
                await self._run_actions(name, uid)
            soonest = min((at for due in self._due.values() for at in due.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if soonest is None else max(soonest - self._clock(), _GATHER_S)):
                    await self._wake.wait()
            await asyncio.sleep(_GATHER_S)

    async def _run_actions(self, name: str, uid: str) -> None:
        """Act on a deadline of a node or of one of its pods."""
        due = self._due.get(name, {})
        try:
            if uid:
                await self._fail(self._pods_on[name][uid])
            else:
                await self._take_back(self._nodes.store[name])
        except errors.Transient as exc:
            log.warning("simulated_event_postponed", node=name, pod_uid=uid, error=str(exc))
            due[uid] = self._clock() + _RETRY_S
            return
        except (KeyError, errors.NotFound, errors.Conflict):
            pass  # deleted meanwhile
        due.pop(uid, None)

    async def _report(self, name: str) -> None:
        """Apply pending MIG layouts, and update the devices of the Node."""
        self._unreported.discard(name)
        node, obj = self._nodes.store.get(name), self._gpu_nodes.store.get(name)
        if node is None or obj is None or faults.is_down(node):
            return
        try:
            if obj.spec.source == gpunode.Source.SIMULATED:
                taken, held = device_assignment.list_holdings(
                    obj, self._held.get(name, {}), self._pods_on.get(name, {})
                )
                status = msgspec.structs.replace(await mig_layout.apply_layout(obj, taken), held=held)
                if status != obj.status:
                    # The resource version prevents overwriting a fault that was injected meanwhile.
                    body = msgspec.structs.replace(obj, status=status).manifest()
                    await self._client.replace(resources.GPU_NODE, name, body, subresource="status")
                    return  # the Node is updated after the watch shows the change
            if (devices := mig_layout.compute_resources(node, obj)) is not None:
                await apply.patch_devices(self._client, name, node, *devices)
                await resource_slices.refresh(self._client, obj)
        except (errors.NotFound, errors.Conflict):
            return  # deleted or changed: the watch delivers it
        except errors.Transient as exc:
            log.warning("node_devices_not_written", node=name, error=str(exc))
            self._touch(name)

    async def _take_back(self, node: core.Node) -> None:
        await faults.clear_spot_notice(self._client, node)
        log.info("spot_node_reclaimed", node=node.metadata.name)

    async def _fail(self, pod: gpupods.GpuPod) -> None:
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        # The uid ensures that a new pod with the same name is not affected.
        body = {"metadata": {"uid": pod.metadata.uid}, **gpupods.oom_patch(pod, now)}
        await self._client.patch(
            gpupods.GPU_PODS,
            pod.metadata.name,
            body,
            pod.metadata.namespace,
            subresource="status",
            kind=apply.STRATEGIC_MERGE_PATCH,
        )
        log.info("pod_out_of_memory", pod=pod.metadata.key, node=pod.spec.node_name)

    # --- assignments ------------------------------------------------------------------------------------

    def _read_assignments(self) -> dict[str, tuple[device_assignment.Grant, ...]]:
        if self._memory is None:
            return {}
        try:
            stored = msgspec.json.decode(self._memory.read_bytes(), type=_Remembered)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as exc:
            log.warning("assignment_file_unreadable", path=str(self._memory), error=str(exc))
            return {}
        return {
            uid: tuple(device_assignment.Grant(container, (card, instance)) for container, card, instance in grants)
            for uid, grants in stored.items()
        }

    def _write_assignments(self) -> None:
        if self._memory is None:
            return
        stored: _Remembered = {
            uid: [(grant.container, *grant.unit) for grant in grants]
            for given in self._held.values()
            for uid, grants in given.items()
        }
        fresh = self._memory.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(stored))
            os.replace(fresh, self._memory)  # noqa: PTH105 - atomic by name
        except OSError as exc:
            log.warning("assignment_file_not_written", path=str(self._memory), error=str(exc))

    # --- metrics ----------------------------------------------------------------------------------------

    def is_responding(self, name: str) -> bool:
        """Return whether the exporter on this node would respond: the node exists and is not down."""
        node = self._nodes.store.get(name)
        return node is not None and name in self._meters and not faults.is_down(node)

    def node_names(self) -> list[str]:
        return sorted(name for name in self._nodes.store if name in self._meters)

    def node_labels(self, name: str) -> dict[str, str]:
        node = self._nodes.store.get(name)
        return {} if node is None else node.metadata.labels

    def rows(self, names: list[str]) -> list[metrics.Row]:
        """Return the current metrics of these nodes, without nodes that are down."""
        self.settle()
        now = self._clock()
        return [row for name in names if self.is_responding(name) for row in self._meters[name].rows(now)]


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""Publishes GPU health on the Node: a condition, Events, and optionally a taint.

    GPUHealthy   True      all GPUs are in service
                 False     some GPUs are out of service; the message names them
                 Unknown   the health of all GPUs is unknown

An operator reports a GPU reset that the driver cannot show with the annotation `kgwe.nvidia.io/gpu-reset` on the
GPUNode: UUIDs, or `all`. The agent removes the annotation when it has applied it.

Only changes are written. The taint keeps new pods off the whole node and is off by default.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.resources import Resource
from kgwe.kube.client import client as kube_client
from kgwe.kube.client.events import Event, EventRecorder
from kgwe.model.health.health import HealthState, assess_health, is_in_service
from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.agent.health.monitor import Change, HealthMonitor
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

CONDITION: Final = "GPUHealthy"
TAINT: Final = "kgwe.nvidia.io/gpu-unhealthy"
RESET_ANNOTATION: Final = "kgwe.nvidia.io/gpu-reset"
_ALL: Final = "all"
CONTROLLER: Final = "kgwe-agent"
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0
# Changes within this time are written together.
_SPACING_S: Final = 0.5
_NAMED: Final = 4
_MESSAGE_CHARS: Final = 1024
# All fields of a taint, because taints are written back completely.
_WHOLE_NODE: Final = Resource("", "v1", "nodes", "Node", namespaced=False, type=dict[str, Any])


class DesiredCondition(NamedTuple):
    """The desired condition of the Node."""

    status: str
    reason: str
    message: str


def decide_condition(health: HealthMonitor) -> DesiredCondition:
    """Return the condition that follows from the state of the GPUs."""
    found = {uuid: assess_health(watch) for uuid, watch in health.watches.items()}
    out = {uuid: each for uuid, each in found.items() if not is_in_service(each.state)}
    if out:
        listed = [f"{uuid} {each.reason} ({each.message})" for uuid, each in sorted(out.items())[:_NAMED]]
        more = f" and {len(out) - _NAMED} more" if len(out) > _NAMED else ""
        message = f"{len(out)} of {len(found)} GPUs out of service: {', '.join(listed)}{more}"
        return DesiredCondition("False", "GPUUnhealthy", message[:_MESSAGE_CHARS])
    if found and all(each.state is HealthState.UNKNOWN for each in found.values()):
        return DesiredCondition("Unknown", "GPUUnknown", "the state of the GPUs is unknown")
    degraded = sum(each.state is HealthState.DEGRADED for each in found.values())
    if degraded:
        return DesiredCondition("True", "GPUDegraded", f"{degraded} of {len(found)} GPUs degraded but in service")
    return DesiredCondition("True", "GPUsHealthy", f"all {len(found)} GPUs in service")


class NodeHealthWriter:
    """Keeps the Node's condition and its optional taint up to date, and records Events."""

    def __init__(self, client: KubeClient, node: str, health: HealthMonitor, *, taint: bool = False) -> None:
        self._client = client
        self._node = node
        self._health = health
        self._taints = taint
        self._events = EventRecorder(client, controller=CONTROLLER, instance=node)
        self._wake = asyncio.Event()
        self._wake.set()
        self._written: DesiredCondition | None = None
        self._is_tainted = False
        self._heard = ""
        self._about: ObjectMeta | None = None
        self._unsaid: list[tuple[Literal["Normal", "Warning"], str, str]] = []

    def on_change(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._queue_event(change)
        self._wake.set()

    def on_gpunode(self, obj: gpunode.GPUNode) -> None:
        """Handle a change of the node's GPUNode."""
        asked = obj.metadata.annotations.get(RESET_ANNOTATION, "")
        if asked and asked != self._heard:
            named = list(self._health.watches) if asked == _ALL else asked.replace(",", " ").split()
            log.info("reset_reported", node=self._node, gpus=named)
            for uuid in named:
                if uuid in self._health.watches:
                    self._health.on_reset(uuid)
            self._wake.set()
        self._heard = asked

    def _queue_event(self, change: Change) -> None:
        before, now = change.before, change.now
        if now.state == before.state and now.reason == before.reason:
            return
        what = f"GPU {change.uuid} is {now.state}" + (f": {now.reason}, {now.message}" if now.reason else "")
        is_worse = now.state in (HealthState.UNHEALTHY, HealthState.DEGRADED)
        if before.state is HealthState.UNKNOWN and not is_worse:
            return  # it was read for the first time, or the driver is back
        reason = f"GPU{now.state}" if now.state is not HealthState.HEALTHY else "GPURecovered"
        self._unsaid.append(("Warning" if is_worse else "Normal", reason, what))
        del self._unsaid[:-100]

    async def run(self) -> None:
        recording = asyncio.create_task(self._events.run())
        try:
            await self._write_forever()
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def _write_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = _SPACING_S
            try:
                await self._write()
                failures = 0
            except errors.KgweError as exc:
                log.warning("node_health_not_written", node=self._node, error=str(exc))
                self._wake.set()
                pause = min(backoff.delay_s(_RETRY_S, failures, random.random()), _LONGEST_RETRY_S)  # noqa: S311 - spreads load
                failures += 1
            await asyncio.sleep(pause)

    async def _write(self) -> None:
        if not self._health.watches:
            return  # no GPU was read yet
        if self._about is None:
            await self._read_node()
        while self._unsaid and self._about is not None:
            kind, reason, note = self._unsaid.pop(0)
            self._events.record(Event(resources.NODE, self._about, kind, reason, note, "Watch"))
        if self._heard:
            await self._client.patch(
                resources.GPU_NODE, self._node, {"metadata": {"annotations": {RESET_ANNOTATION: None}}}
            )
        now = decide_condition(self._health)
        if now != self._written:
            await self._client.apply(resources.NODE, self._build_condition(now), subresource="status")
            self._written = now
        is_tainted = self._taints and now.status == "False"
        if is_tainted != self._is_tainted:
            await self._set_taint(is_on=is_tainted)
            self._is_tainted = is_tainted

    async def _read_node(self) -> None:
        """Read the condition and taint that an earlier agent wrote."""
        node = await self._client.get(resources.NODE, self._node)
        self._about = node.metadata
        known = next((each for each in node.status.conditions if each.type == CONDITION), None)
        self._written = DesiredCondition(known.status, known.reason, known.message) if known else None
        self._is_tainted = any(taint.key == TAINT for taint in node.spec.taints)

    def _build_condition(self, now: DesiredCondition) -> dict[str, Any]:
        at = timestamp.format_time(time.time())
        condition = {"type": CONDITION, **now._asdict(), "lastHeartbeatTime": at, "lastTransitionTime": at}
        return {"metadata": {"name": self._node}, "status": {"conditions": [condition]}}

    async def _set_taint(self, *, is_on: bool) -> None:
        """Add or remove this one taint; other taints stay."""

        async def attempt() -> None:
            node = await self._client.get(_WHOLE_NODE, self._node)
            taints = node.get("spec", {}).get("taints", [])
            others = [taint for taint in taints if taint["key"] != TAINT]
            now = [*others, {"key": TAINT, "effect": "NoSchedule"}] if is_on else others
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": now}}
            await self._client.patch(resources.NODE, self._node, body)

        await kube_client.retry_conflict(attempt)

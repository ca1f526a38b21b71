"""Writes the GPUNode of this node.

Only changes are written, by server-side apply, so that fields of other writers stay. An unchanged object gets a
heartbeat: one field. The newest report is kept while the API server is unavailable. Fields that another client
overwrote, or a deleted object, are written again with the next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import Condition
from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-agent"

# Changes within this time are written together; a fault still shows within a second.
_SPACING_S: Final = 0.5
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 30.0
# Errors that need an operator: no permission, no such kind.
_REFUSED_RETRY_S: Final = 60.0


class StatusPublisher:
    """Writes the last status set to the GPUNode."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        *,
        heartbeat_s: float,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        on_write: Callable[[str, int], None] = lambda _kind, _size: None,
    ) -> None:
        """`on_write` is called for each write with its kind and size in bytes."""
        self._client = client
        self._node = node
        self._heartbeat_s = heartbeat_s
        self._now = now
        self._wanted: gpunode.GPUNodeStatus | None = None
        self._wake = asyncio.Event()
        self._heartbeat_at = 0.0
        self._failures = 0
        # (sent object, object in the API): an older CRD drops fields it does not know.
        self._accepted: tuple[gpunode.GPUNodeStatus, gpunode.GPUNodeStatus] | None = None
        #: the object as last read from the API
        self.stored: gpunode.GPUNode | None = None
        #: why the object cannot be written; empty if it can
        self.problem = ""
        self._on_write = on_write

    # --- desired status ----------------------------------------------------------------------------------

    def set_status(self, status: gpunode.GPUNodeStatus, conditions: Sequence[Condition]) -> None:
        """Set the newest status. Conditions without a time get the time of their last change."""
        self._wanted = msgspec.structs.replace(status, conditions=tuple(conditions), heartbeatTime=None)
        if self._is_outdated():
            self._wake.set()

    def on_change(self, change: Change[gpunode.GPUNode]) -> None:
        """Handle an object of the watch, unless it is older than the reply to our last write."""
        if change.new is None:
            self.stored = None
            self._wake.set()
        elif self.stored is None or _version(change.new) >= _version(self.stored):
            self.stored = change.new

    def _is_outdated(self) -> bool:
        if self._wanted is None:
            return False
        if self.stored is None:
            return True
        wanted, there = _normalize(self._wanted), _normalize(self.stored.status)
        return wanted != there and (wanted, there) != self._accepted

    # --- writing ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled, after the API was read once."""
        loop = asyncio.get_running_loop()
        self._heartbeat_at = loop.time() + self._heartbeat_s * random.random()  # noqa: S311 - spreads a fleet's
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._heartbeat_at - loop.time(), 0.01)):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(await self._step())

    async def _step(self) -> float:
        """Write pending changes; return the seconds until the next step."""
        try:
            if self._is_outdated():
                await self._publish()
            elif self._wanted is not None and asyncio.get_running_loop().time() >= self._heartbeat_at:
                await self._write_heartbeat()
        except errors.KgweError as exc:
            return self._note_failure(exc)
        if self.problem:
            log.info("publishing_again", node=self._node, failures=self._failures)
        self.problem, self._failures = "", 0
        return _SPACING_S

    def _note_failure(self, exc: errors.KgweError) -> float:
        if str(exc) != self.problem:
            log.warning("publishing_failed", node=self._node, error=str(exc))
        self.problem = str(exc)
        self._wake.set()
        # A refusal may be temporary: an API server that just started may not have loaded all RBAC rules.
        longest = _LONGEST_RETRY_S if isinstance(exc, errors.Transient) else _REFUSED_RETRY_S
        pause = min(backoff.delay_s(_RETRY_S, self._failures, random.random()), longest)  # noqa: S311 - spreads load
        self._failures += 1
        if isinstance(exc, errors.Transient) and exc.retry_after_s:
            return max(pause, min(exc.retry_after_s, _LONGEST_RETRY_S))
        return pause

    async def _publish(self) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        if (
            self.stored is None
            or self.stored.spec.source != gpunode.Source.AGENT
            or not self.stored.metadata.ownerReferences
        ):
            await self._create_object()
        now = timestamp.seconds(self._now())
        status: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.replace(
                wanted, heartbeatTime=now, conditions=self._with_transition_times(wanted.conditions, now)
            )
        )
        # Zero counts are written too: `kubectl get` shows them.
        status.setdefault("gpuCount", 0)
        status.setdefault("healthyGPUs", 0)
        body = {"metadata": {"name": self._node}, "status": status}
        try:
            self.stored = await self._client.apply(resources.GPU_NODE, body, subresource="status")
        except errors.NotFound:
            self.stored = None  # deleted meanwhile: created again with the next attempt
            raise
        self._accepted = (_normalize(wanted), _normalize(self.stored.status))
        self._note_write("status", body)
        log.info("published", node=self._node, gpus=wanted.gpuCount, healthy=wanted.healthyGPUs)

    async def _create_object(self) -> None:
        """Create the object with its Node as owner, so that it is deleted with the Node."""
        node = await self._client.get(resources.NODE, self._node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        body = {
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "spec": {"source": str(gpunode.Source.AGENT)},
        }
        self.stored = await self._client.apply(resources.GPU_NODE, body)
        self._note_write("object", body)

    async def _write_heartbeat(self) -> None:
        body = {"status": {"heartbeatTime": timestamp.seconds(self._now())}}
        try:
            self.stored = await self._client.patch(resources.GPU_NODE, self._node, body, subresource="status")
        except errors.NotFound:
            self.stored = None
            raise
        self._note_write("heartbeat", body)

    def _note_write(self, kind: str, body: Any) -> None:
        self._heartbeat_at = asyncio.get_running_loop().time() + self._heartbeat_s
        self._on_write(kind, len(msgspec.json.encode(body)))

    def _with_transition_times(self, conditions: Sequence[Condition], now: str) -> tuple[Condition, ...]:
        """Return the conditions with the time of their last change."""
        before = {each.type: each for each in self.stored.status.conditions} if self.stored else {}
        timed = []
        for each in conditions:
            old = before.get(each.type)
            since = old.lastTransitionTime if old is not None and old.status == each.status else None
            timed.append(msgspec.structs.replace(each, lastTransitionTime=since or now))
        return tuple(timed)


def _normalize(status: gpunode.GPUNodeStatus) -> gpunode.GPUNodeStatus:
    """Return the fields that the agent owns: without times, and without conditions of other writers."""
    return msgspec.structs.replace(
        status,
        heartbeatTime=None,
        conditions=tuple(
            Condition(each.type, each.status, each.reason, each.message)
            for each in sorted(status.conditions, key=lambda each: each.type)
            if each.type in OWN_CONDITIONS
        ),
    )


DRIVER_READY: Final = "DriverReady"
DEVICES_AS_PLANNED: Final = "DevicesAsPlanned"
#: conditions the agent writes
OWN_CONDITIONS: Final = frozenset({DRIVER_READY, DEVICES_AS_PLANNED})


def _version(obj: gpunode.GPUNode) -> int:
    text = obj.metadata.resourceVersion
    return int(text) if text.isdigit() else 0

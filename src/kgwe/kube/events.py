"""Kubernetes Events: what happened to an object, for `kubectl describe`.

Recording never blocks and never fails the caller. The same event about the same object is written once;
repeats within `quiet_s` cost nothing, later ones raise the count of the Event already there (its series).
Writes are limited in rate and the backlog is bounded: when it is full the event is dropped and counted,
because an API server under load has better things to do.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog

from kgwe import errors
from kgwe.kube import resources, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client import KubeClient
    from kgwe.kube.resources import Resource

log = structlog.get_logger(__name__)

_NOTE_BYTES = 1024  # the API server refuses longer notes
_REMEMBERED = 4096


class Event(NamedTuple):
    """One thing that happened to one object."""

    resource: Resource[Any]
    about: ObjectMeta
    type: Literal["Normal", "Warning"]
    reason: str
    note: str
    action: str

    def identity(self) -> str:
        text = f"{self.about.uid}\0{self.type}\0{self.reason}\0{self.note}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Written:
    name: str
    at: float
    count: int = 1
    pending: bool = False


class EventRecorder:
    """Queue events with `record`; `run` writes them."""

    def __init__(
        self,
        client: KubeClient,
        *,
        controller: str,
        instance: str,
        quiet_s: float = 300.0,
        per_second: float = 50.0,
        backlog: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self.suppressed = 0
        self._client = client
        self._controller = controller
        self._instance = instance
        self._quiet_s = quiet_s
        self._pause_s = 1 / per_second
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Event, str]] = asyncio.Queue(backlog)
        self._written: OrderedDict[str, _Written] = OrderedDict()

    def record(self, event: Event) -> None:
        identity = event.identity()
        known = self._written.get(identity)
        if known is not None:
            known.count += 1
            if known.pending or self._clock() - known.at < self._quiet_s:
                self.suppressed += 1
                return
        else:
            known = self._written[identity] = _Written(name="", at=self._clock())
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
        try:
            self._queue.put_nowait((event, identity))
        except asyncio.QueueFull:
            self.dropped += 1
            if not known.name:
                self._written.pop(identity, None)
            return
        known.pending = True
        known.at = self._clock()
        self._written.move_to_end(identity)

    async def run(self) -> None:
        while True:
            event, identity = await self._queue.get()
            await self._write(event, identity)
            await asyncio.sleep(self._pause_s)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s` (called when stopping)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._queue.empty():
                    await self._write(*self._queue.get_nowait())
        except TimeoutError:
            self.dropped += self._queue.qsize()

    async def _write(self, event: Event, identity: str) -> None:
        known = self._written.get(identity) or _Written(name="", at=self._clock())
        try:
            if known.name:
                await self._raise_count(event, known)
            else:
                await self._create(event, identity, known)
        except errors.KgweError as exc:
            # The object's namespace may be going away, or the server busy: an event is never worth a retry.
            self.dropped += 1
            self._written.pop(identity, None)
            log.debug("event_not_written", reason=event.reason, error=str(exc))
        finally:
            known.pending = False

    async def _create(self, event: Event, identity: str, known: _Written) -> None:
        stamp = timestamp.micro()
        name = f"{event.about.name[:200]}.{identity}{int(time.time()):x}"
        namespace = event.about.namespace or "default"
        body = {
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": stamp,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": event.action,
            "type": event.type,
            "reason": event.reason,
            "note": event.note.encode()[:_NOTE_BYTES].decode(errors="ignore"),
            "regarding": {
                "apiVersion": event.resource.api_version,
                "kind": event.resource.kind,
                "name": event.about.name,
                "namespace": event.about.namespace,
                "uid": event.about.uid,
            },
        }
        await self._client.create(resources.EVENT, body, namespace)
        known.name = name

    async def _raise_count(self, event: Event, known: _Written) -> None:
        body = {"series": {"count": known.count, "lastObservedTime": timestamp.micro()}}
        try:
            await self._client.patch(resources.EVENT, known.name, body, event.about.namespace or "default")
        except errors.NotFound:
            # Events live an hour; this one's time was up. Start a new one.
            known.name, known.count = "", 1
            await self._create(event, event.identity(), known)

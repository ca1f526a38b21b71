"""Kubernetes Events: what happened to an object, for `kubectl describe`.

Recording never blocks and never fails the caller. The same event about the same object is written once;
repeats within `quiet_s` cost nothing, later ones raise the count of the Event already there (its series).
Writes are limited in rate and the backlog is bounded: when it is full the event is dropped and counted,
because an API server under load has better things to do. A write cut off by a stop is left to `flush`; the
name of an Event is fixed when it is recorded, so that writing it again cannot make two of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.visible_text import escape_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

# The API server refuses longer ones.
_NOTE_BYTES = 1024
_WORD_CHARS = 128  # reason, action, reporting instance
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
        about = f"{self.resource.kind}\0{self.about.key}\0{self.about.uid}"
        text = f"{about}\0{self.type}\0{self.reason}\0{self.note}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Written:
    """An Event written, or waiting to be (`pending`)."""

    name: str
    at: float
    count: int = 1
    pending: bool = False
    stored: bool = False


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
        self._instance = instance[:_WORD_CHARS]
        self._quiet_s = quiet_s
        self._pause_s = 1 / per_second
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Event, _Written]] = asyncio.Queue(backlog)
        self._written: OrderedDict[str, _Written] = OrderedDict()

    def record(self, event: Event) -> None:
        identity = event.identity()
        now = self._clock()
        known = self._written.get(identity)
        if known is not None:
            known.count += 1
            if known.pending or now - known.at < self._quiet_s:
                self.suppressed += 1
                return
        else:
            known = _Written(name=_event_name(event, identity), at=now)
        try:
            self._queue.put_nowait((event, known))
        except asyncio.QueueFull:
            self.dropped += 1
            return
        known.pending, known.at = True, now
        self._written[identity] = known
        self._written.move_to_end(identity)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    async def run(self) -> None:
        while True:
            await self._write_event(*await self._queue.get())
            await asyncio.sleep(self._pause_s)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most `timeout_s` (called when stopping)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._queue.empty():
                    await self._write_event(*self._queue.get_nowait())
        except TimeoutError:
            self.dropped += self._queue.qsize()

    async def _write_event(self, event: Event, known: _Written) -> None:
        try:
            await (self._raise_count(event, known) if known.stored else self._create_event(event, known))
        except errors.KgweError as exc:
            # The object's namespace may be going away, or the server busy: an event is never worth a retry.
            self.dropped += 1
            self._forget_event(event, known)
            log.debug("event_not_written", reason=event.reason, error=str(exc))
        except asyncio.CancelledError:
            # Cut off by a stop, perhaps after it arrived: `flush` makes sure of it.
            try:
                self._queue.put_nowait((event, known))
            except asyncio.QueueFull:
                self.dropped += 1
            raise
        known.pending = False

    def _forget_event(self, event: Event, known: _Written) -> None:
        identity = event.identity()
        if self._written.get(identity) is known:
            del self._written[identity]

    async def _create_event(self, event: Event, known: _Written) -> None:
        namespace = event.about.namespace or "default"
        body = {
            "metadata": {"name": known.name, "namespace": namespace},
            "eventTime": timestamp.micro(),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": event.action[:_WORD_CHARS],
            "type": event.type,
            "reason": event.reason[:_WORD_CHARS],
            "note": escape_text(event.note).encode()[:_NOTE_BYTES].decode(errors="ignore"),
            "regarding": {
                "apiVersion": event.resource.api_version,
                "kind": event.resource.kind,
                "name": event.about.name,
                "namespace": event.about.namespace,
                "uid": event.about.uid,
                "resourceVersion": event.about.resourceVersion,
            },
        }
        with contextlib.suppress(errors.AlreadyExists):  # by the attempt that was cut off
            await self._client.create(resources.EVENT, body, namespace)
        known.stored = True

    async def _raise_count(self, event: Event, known: _Written) -> None:
        body = {"series": {"count": known.count, "lastObservedTime": timestamp.micro()}}
        try:
            await self._client.patch(resources.EVENT, known.name, body, event.about.namespace or "default")
        except errors.NotFound:
            # Events live an hour; this one's time was up. Start a new one.
            known.name, known.count, known.stored = _event_name(event, event.identity()), 1, False
            await self._create_event(event, known)


def _event_name(event: Event, identity: str) -> str:
    # Cut where it may be cut: a part of a name does not end in a dash or a dot.
    return f"{event.about.name[:200].rstrip('-.')}.{identity}{time.time_ns():x}"

"""The time of the first refusal: the first Warning Event about any object in a namespace.

Users see Events (`kubectl describe`, `kubectl events`). The audit log does not contain them, so they are watched. The
API server and this process use the same clock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Self

import msgspec

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

# The watch is silent until the first Event.
_SILENCE_S = 3600.0
# Timeout for opening the watch.
_CONNECT_S = 30.0


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    note: str = ""
    reportingController: str = ""  # noqa: N815 -- the API's name


class _Change(msgspec.Struct, frozen=True):
    type: str = ""
    object: _Event = _Event()


class Verdict:
    """Watches for the first refusal while the context is open."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = resources.EVENT.path(namespace=namespace)
        self._task: asyncio.Task[None] | None = None
        self.at: dt.datetime | None = None
        self.words = ""

    async def __aenter__(self) -> Self:
        connected = asyncio.Event()
        self._task = asyncio.create_task(self._watch(connected))
        async with asyncio.timeout(_CONNECT_S):
            await connected.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, connected: asyncio.Event) -> None:
        decoder = msgspec.json.Decoder(_Change)
        rest = b""
        async with self._client.stream(self._path, params={"watch": "1"}, read_timeout_s=_SILENCE_S) as response:
            connected.set()
            async for piece in response.aiter_bytes():
                now = dt.datetime.now(dt.UTC)
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._on_event(decoder.decode(line), now)

    def _on_event(self, change: _Change, now: dt.datetime) -> None:
        if self.at is None and change.object.type == "Warning":
            self.at = now
            self.words = f"{change.object.reportingController}: {change.object.note}"

    async def is_known(self) -> bool:
        if self._task is not None and self._task.done():
            self._task.result()  # The watch failed: raise its error instead of waiting.
        return self.at is not None

    def seconds_after(self, moment: dt.datetime) -> float:
        """Return the seconds from `moment` to the refusal; 0 if it came earlier. A scheduler without gangs refuses
        early.
        """
        return max(0.0, (self.at - moment).total_seconds()) if self.at else 0.0

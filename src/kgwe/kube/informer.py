"""A cache of one kind, kept true by list and watch.

    list (pages) ──► diff against the store ──► synced ──► watch ──┐
      ▲                                                    ▲       │ closed, cut off, silent too long:
      │                                                    └───────┤ watch again from the last version
      └──────────── 410: that version is no longer kept ───────────┘

Handlers are called once per change, in order, from the informer's own task, and must not block: they
update memory or put a key on a queue. A re-list is diffed against the store, so an object deleted (or
deleted and created anew) while the watch was down is reported like any other. Nothing is reported twice
for the same resource version. `synced` is set after the first complete list; nobody decides before it.

Assumptions about the other side: a list without a version is a consistent read; a watch delivers every
change after its version or fails with 410; bookmarks only move the version forward.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from kgwe import errors
from kgwe.kube import client as kube_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.resources import Resource

log = structlog.get_logger(__name__)


class KubeObject(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)


class Change(NamedTuple, Generic[T]):
    """What became of one object; `old` is None when it is new, `new` is None when it is gone."""

    key: str
    old: T | None
    new: T | None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _VersionOnlyMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _VersionOnly(msgspec.Struct):
    metadata: _VersionOnlyMeta


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


# The server ends a watch after a random time in this range, so that watches of many clients do not end together.
_WATCH_SECONDS = (240, 300)
# Longest silence on a watch. The server sends a bookmark about every minute and ends the watch itself
# within _WATCH_SECONDS, so this long without a byte means the connection is half open.
_INACTIVITY_S = 330.0
_BACKOFF_S = (0.2, 30.0)


class Informer(Generic[T]):
    """The objects of one kind, by key, as the API server last told us."""

    def __init__(
        self,
        client: kube_client.KubeClient,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
        inactivity_s: float = _INACTIVITY_S,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        #: key -> object; read freely, never written outside this class
        self.store: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.version = ""
        #: how often each thing happened, for metrics and tests
        self.lists = 0
        self.watches = 0
        self.skipped = 0
        self._client = client
        self._path = resource.path(namespace=namespace)
        self._selectors = {k: v for k, v in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if v}
        self._page_size = page_size
        self._inactivity_s = inactivity_s
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._watching: asyncio.Future[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # callers of resync
        self._page = msgspec.json.Decoder(kube_client.ListPage[resource.type])  # type: ignore[name-defined] # a run-time type
        self._raw_page = msgspec.json.Decoder(kube_client.ListPage[msgspec.Raw])
        self._object = msgspec.json.Decoder(resource.type)
        self._event = msgspec.json.Decoder(_Event)
        self._bookmark = msgspec.json.Decoder(_VersionOnly)

    @property
    def has_synced(self) -> bool:
        return self.synced.is_set()

    def on_change(self, handler: Callable[[Change[T]], None]) -> None:
        """Call `handler` for every change from now on; what is known already is reported as new."""
        self._handlers.append(handler)
        for key, obj in self.store.items():
            handler(Change(key, None, obj))

    async def resync(self) -> None:
        """List again now and return when the store equals a read begun after this call.

        A new leader calls this before its first decision: its watch may not yet have delivered the last
        writes of the leader before it.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._watching is not None:
            self._watching.cancel()
        await waiter

    async def run(self) -> None:
        """Keep the store true until cancelled."""
        backoff_s = _BACKOFF_S[0]
        fresh = False
        while True:
            try:
                if not fresh or self._waiting:
                    await self._list()
                    fresh = True
                await self._watch_until_resync()
                backoff_s = _BACKOFF_S[0]
            except errors.Expired:
                # The version we hold was compacted away. Everything missed meanwhile is found by diffing.
                log.info("watch_expired", resource=self.resource.plural, version=self.version)
                fresh = False
            except (errors.Transient, errors.NotFound, errors.Permanent) as exc:
                # Permanent too: rights may be granted and a CRD installed while we wait.
                wait_s = getattr(exc, "retry_after_s", None) or backoff_s * (1 + self._rng.random())
                log.warning(
                    "watch_interrupted", resource=self.resource.plural, error=str(exc), retry_in_s=round(wait_s, 2)
                )
                backoff_s = min(backoff_s * 2, _BACKOFF_S[1])
                await asyncio.sleep(wait_s)

    async def _watch_until_resync(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await self._watching
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not self._waiting:
                raise
        finally:
            self._watching = None

    # --- list -------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            await self._replace()
        except errors.KgweError:
            self._waiting += waiting  # they still wait for a list that succeeds
            raise
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _replace(self) -> None:
        """Make the store equal to what the server has now."""
        found, version = await self._list_pages(self._page_size)
        self.lists += 1
        for key in [key for key in self.store if key not in found]:
            self._set(key, None)
        for key, obj in found.items():
            self._set(key, obj)
        self.version = version
        self.synced.set()
        log.debug("listed", resource=self.resource.plural, objects=len(found), version=version)

    async def _list_pages(self, limit: int) -> tuple[dict[str, T], str]:
        found: dict[str, T] = {}
        query = {**self._selectors, "limit": str(limit)} if limit else dict(self._selectors)
        while True:
            try:
                body = await self._client.request("GET", self._path, params=query)
            except errors.Expired:
                if "continue" not in query:
                    raise
                # The list outlived the version it was reading: take it whole, as client-go does.
                return await self._list_pages(0)
            page = self._decode_page(body)
            found.update((obj.metadata.key, obj) for obj in page.items)
            if not page.metadata.continue_:
                return found, page.metadata.resource_version
            query["continue"] = page.metadata.continue_

    def _decode_page(self, body: bytes) -> kube_client.ListPage[T]:
        try:
            return self._page.decode(body)
        except msgspec.ValidationError:
            # One object we cannot read must not hide the others.
            raw = self._raw_page.decode(body)
            items = [obj for item in raw.items if (obj := self._decode_object(item)) is not None]
            return kube_client.ListPage(items=items, metadata=raw.metadata)

    def _decode_object(self, raw: msgspec.Raw) -> T | None:
        try:
            return self._object.decode(raw)
        except msgspec.ValidationError as exc:
            self.skipped += 1
            log.warning("object_unreadable", resource=self.resource.plural, error=str(exc), start=bytes(raw)[:200])
            return None

    # --- watch ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        self.watches += 1
        params = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(self._rng.randint(*_WATCH_SECONDS)),
        }
        rest = b""
        async with self._client.stream(self._path, params=params, read_timeout_s=self._inactivity_s) as response:
            # Split bytes at newlines ourselves: decoding to text line by line would double the work.
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        self._receive(line)

    def _receive(self, line: bytes) -> None:
        event = self._event.decode(line)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise kube_client.error_for(status.code, status.reason, f"watching {self._path}: {status.message}")
        version = self._bookmark.decode(event.object).metadata.resource_version
        if event.type != "BOOKMARK":
            obj = self._decode_object(event.object)
            if obj is not None:
                self._set(obj.metadata.key, None if event.type == "DELETED" else obj)
        self.version = version

    # --- store ------------------------------------------------------------------------------------------

    def _set(self, key: str, new: T | None) -> None:
        old = self.store.get(key)
        if old is None and new is None:
            return
        if old is not None and new is not None:
            if old.metadata.resourceVersion == new.metadata.resourceVersion:
                return
            if old.metadata.uid != new.metadata.uid:
                # A namesake: the old object is gone and handlers must hear of that first.
                self._set(key, None)
                old = None
        if new is None:
            del self.store[key]
        else:
            self.store[key] = new
        change = Change(key, old, new)
        for handler in self._handlers:
            handler(change)


async def wait_synced(*informers: Informer[Any]) -> None:
    """Return when every informer has completed its first list."""
    await asyncio.gather(*(informer.synced.wait() for informer in informers))

"""A cache of one kind, kept true by list and watch.

    list (pages) ──► diff against the store ──► synced ──► watch ──┐
      ▲                                                    ▲       │ closed, cut off, silent too long:
      │                                                    └───────┤ watch again from the last version
      └──────────── 410: that version is no longer kept ───────────┘

Handlers are called once per change, in order, from the informer's own task, and must not block: they
update memory or put a key on a queue. A re-list is diffed against the store, so an object deleted (or
deleted and created again) while the watch was down is reported like any other. Nothing is reported twice
for the same resource version. `synced` is set after the first complete list; decisions wait for it.

An object that cannot be decoded hides no other; if an earlier state of it was understood, that one stays, because
what the object holds (a GPU, say) is not free just because we cannot read it. An error that a handler raises concerns
that object alone: it is logged and counted, the other handlers hear of the change, and so do all handlers of the next
one. The change that failed is handed out again with the next list, whether or not the object has changed since.

All of this is the same in JSON and in protobuf (`codec.py`). Of objects that `keep` picks, the bytes are kept too, as
long as they are picked: a caller that writes such an object back also writes what its struct leaves out.

Assumptions about the other side: a list without a version is a consistent read; a watch delivers every
change after its version or fails with 410; bookmarks only move the version forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from kgwe import errors
from kgwe.kube.client import client as kube_client
from kgwe.kube.transport.codec import Codecs, identify
from kgwe.kube.transport.encoding import Garbled, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.transport.encoding import Codec, Identity, Page

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


# The server ends a watch after a random time in this range, so that watches of many clients do not end together.
_WATCH_SECONDS = (240, 300)
# Longest silence on a watch. The server sends a bookmark about every minute, so this long without a byte means that the
# connection is half open; should a server send none, watching again from the same version costs one request.
_INACTIVITY_S = 150.0
# From the first failure to the longest wait between attempts: how stale a cache may stay once the server is back.
_BACKOFF_S = (0.2, 10.0)
# The server may ask for more patience than that, but not for any amount.
_PATIENCE_S = 60.0
# A watch that ends sooner, without a word, does not count as having worked.
_SHORT_WATCH_S = 1.0
# One piece of a watch can hold a hundred objects: others get their turn in between.
_TURN_S = 0.001
# So many objects at most are kept as bytes as well: a few kilobytes each.
_KEPT = 4096


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
        keep: Callable[[T], bool] | None = None,
        rng: random.Random | None = None,
        on_error: Callable[[str, Exception], None] = lambda _key, _error: None,
    ) -> None:
        """`on_error`: called with the key and the exception when a listener fails."""
        self.resource = resource
        #: key -> object; read freely, never written outside this class
        self.store: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.version = ""
        #: how often each thing happened, for metrics and tests
        self.lists = 0
        self.watches = 0
        self.skipped = 0
        self.failed = 0
        self._on_error = on_error
        self._client = client
        self._path = resource.path(namespace=namespace)
        self._selectors = {k: v for k, v in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if v}
        self._page_size = page_size
        self._inactivity_s = inactivity_s
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._watching: asyncio.Future[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # callers of resync
        self._wake = asyncio.Event()  # cuts a back-off short
        self._stale = True  # a list is needed before watching makes sense
        self._failures = 0  # since the server last gave us anything
        self._codecs = Codecs(resource)
        self._keep = keep
        self._kept: dict[str, bytes] = {}  # key -> the object in protobuf
        self._broken: set[str] = set()  # keys of objects whose last change a handler failed on

    @property
    def has_synced(self) -> bool:
        return self.synced.is_set()

    def on_change(self, handler: Callable[[Change[T]], None]) -> None:
        """Call `handler` for every change from now on; what is known already is reported as new."""
        self._handlers.append(handler)
        for key, obj in self.store.items():
            self._call_handlers(handler, Change(key, None, obj))

    def bytes_of(self, obj: T) -> bytes:
        """That very state in protobuf, if `keep` wanted it; nothing if it is not at hand."""
        key, known = obj.metadata.key, self.store.get(obj.metadata.key)
        same = known is not None and known.metadata.resourceVersion == obj.metadata.resourceVersion
        return self._kept.get(key, b"") if same else b""

    async def resync(self) -> None:
        """List again now and return when the store equals a read begun after this call.

        A new leader calls this before its first decision: its watch may not yet have delivered the last
        writes of the leader before it.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wake.set()
        if self._watching is not None:
            self._watching.cancel()
        await waiter

    async def run(self) -> None:
        """Keep the store true until cancelled."""
        try:
            while True:
                try:
                    # Again after each list: who asked for one while it was being read waits for another.
                    while self._stale or self._waiting:
                        await self._list_objects()
                    await self._watch_until_resync()
                except errors.KgweError as exc:
                    await self._handle_failure(exc)
        finally:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(errors.Transient(f"the informer of {self.resource.plural} was stopped"))
            self._waiting.clear()

    async def _handle_failure(self, exc: errors.KgweError) -> None:
        """Decide where to go on, and when."""
        # Whatever is not a passing failure leaves open what we missed. Permanent ones are tried again too: rights may
        # be granted and a CRD installed while we wait.
        self._stale = self._stale or not isinstance(exc, errors.Transient)
        if isinstance(exc, kube_client.NotAcceptable) and self._codecs.without_protobuf():
            return
        first_expiry = isinstance(exc, errors.Expired) and self._failures == 0
        wait_s = 0.0 if first_expiry else self._backoff_s(exc)
        self._failures += 1
        if first_expiry:
            # The version we hold was compacted away. Everything missed meanwhile is found by diffing.
            log.info("watch_expired", resource=self.resource.plural, version=self.version)
            return
        log.warning("watch_interrupted", resource=self.resource.plural, error=str(exc), retry_in_s=round(wait_s, 2))
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    def _backoff_s(self, exc: errors.KgweError) -> float:
        if isinstance(exc, errors.Transient) and exc.retry_after_s:
            return min(exc.retry_after_s, _PATIENCE_S) * (1 + 0.1 * self._rng.random())
        base_s, ceiling_s = _BACKOFF_S
        return min(base_s * float(2 ** min(self._failures, 10)), ceiling_s) * (0.5 + 0.5 * self._rng.random())

    async def _watch_until_resync(self) -> None:
        self._watching = asyncio.ensure_future(self._watch_changes())
        try:
            await self._watching
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not self._waiting:
                raise
        finally:
            self._watching = None

    # --- list -------------------------------------------------------------------------------------------

    async def _list_objects(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            await self._replace_store()
        except BaseException:
            self._waiting += waiting  # they still wait for a list that succeeds
            raise
        self._stale = False
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _replace_store(self) -> None:
        """Make the store equal to what the server has now."""
        found, unreadable, version = await self._list_pages(self._page_size)
        self.lists += 1
        for key, obj in list(self.store.items()):
            if key not in found and unreadable.get(key) != obj.metadata.uid:
                self._set_object(key, None)
        for key, (obj, raw) in found.items():
            self._set_object(key, obj, raw)
        self.version = version
        self.synced.set()
        log.debug("listed", resource=self.resource.plural, objects=len(found), version=version)

    async def _list_pages(self, limit: int) -> tuple[dict[str, tuple[T, bytes]], dict[str, str], str]:
        """Objects and their bytes by key, uids of those that cannot be read by key, and the version of it all."""
        found: dict[str, tuple[T, bytes]] = {}
        unreadable: dict[str, str] = {}
        query = {**self._selectors, "limit": str(limit)} if limit else dict(self._selectors)
        while True:
            try:
                body = await self._client.request("GET", self._path, params=query, accept=self._codecs.accept)
            except errors.Expired:
                if "continue" not in query:
                    raise
                # The list outlived the version it was reading: take it whole, as client-go does.
                return await self._list_pages(0)
            page = self._read_page(body)
            for obj, raw in page.items:
                found[obj.metadata.key] = obj, raw if self._keep is not None and self._keep(obj) else b""
            for identity, why in page.unreadable:
                self._skip_object(identity, why)
                if identity is not None:
                    unreadable[identity.key] = identity.uid
            if not page.version:
                # No API server said this, and taking its word could mean that everything is gone.
                raise errors.Transient(f"listing {self._path}: the reply has no resourceVersion")
            if not page.more:
                return found, unreadable, page.version
            query["continue"] = page.more

    def _read_page(self, body: bytes) -> Page[T]:
        try:
            return self._codecs.of_list(body).page(body)
        except Garbled as exc:
            raise errors.Transient(f"listing {self._path}: {exc}") from exc
        except Unreadable as exc:
            raise errors.Permanent(f"listing {self._path}: {exc}") from exc

    def _skip_object(self, identity: Identity | None, why: str) -> None:
        self.skipped += 1
        key = "?" if identity is None else identity.key
        log.warning("object_unreadable", resource=self.resource.plural, key=key, error=why)

    # --- watch ------------------------------------------------------------------------------------------

    async def _watch_changes(self) -> None:
        self.watches += 1
        params = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(self._rng.randint(*_WATCH_SECONDS)),
        }
        worked = False
        async with self._client.stream(
            self._path, params=params, read_timeout_s=self._inactivity_s, accept=self._codecs.accept
        ) as response:
            codec = self._codecs.of_watch(response.headers.get("Content-Type", ""))
            frames = codec.frames()
            clock = asyncio.get_running_loop().time
            began_at = clock()
            try:
                # Split bytes ourselves: decoding to text line by line would double the work.
                async for piece in response.aiter_bytes():
                    turn_ends = time.perf_counter() + _TURN_S
                    for frame in frames.feed(piece):
                        if frame:
                            self._receive_frame(codec, frame)
                            worked = True
                            if time.perf_counter() > turn_ends:
                                await asyncio.sleep(0)
                                turn_ends = time.perf_counter() + _TURN_S
            finally:
                worked = worked or clock() - began_at >= _SHORT_WATCH_S
                if worked:
                    self._failures = 0
        if not worked:
            # Something answers in the server's name and hangs up: not a reason to ask a thousand times a second.
            raise errors.Transient(f"watching {self._path}: ended as soon as it began")

    def _receive_frame(self, codec: Codec[T], frame: bytes) -> None:
        try:
            event = codec.event(frame)
            status = codec.status(event.object) if event.type == "ERROR" else None
        except Unreadable as exc:
            # Not Transient: what this event said is lost, only a list can tell.
            raise errors.Permanent(f"watching {self._path}: {exc}") from exc
        if status is not None:
            raise kube_client.make_error(status.code, status, f"watching {self._path}")
        if event.type in ("ADDED", "MODIFIED"):
            try:
                obj = codec.object(event.object)
            except Unreadable as exc:
                self._skip_object(identify(codec, event.object), str(exc))
            else:
                raw = codec.extract_object(event.object) if self._keep is not None and self._keep(obj) else b""
                self._set_object(obj.metadata.key, obj, raw)
                self.version = obj.metadata.resourceVersion
                return
        identity = identify(codec, event.object)
        if identity is None:
            raise errors.Permanent(f"watching {self._path}: a {event.type} without readable metadata")
        if event.type == "DELETED":
            self._set_object(identity.key, None)
        self.version = identity.resourceVersion

    # --- store ------------------------------------------------------------------------------------------

    def _set_object(self, key: str, new: T | None, raw: bytes = b"") -> None:
        old = self.store.get(key)
        if old is None and new is None:
            return
        if old is not None and new is not None:
            if old.metadata.resourceVersion == new.metadata.resourceVersion and key not in self._broken:
                return
            if old.metadata.uid != new.metadata.uid:
                # A namesake: the old object is gone and handlers must hear of that first.
                self._set_object(key, None)
                old = None
        if new is None:
            del self.store[key]
        else:
            self.store[key] = new
        self._remember_bytes(key, new, raw)
        change = Change(key, old, new)
        self._broken.discard(key)
        for handler in self._handlers:
            self._call_handlers(handler, change)

    def _call_handlers(self, handler: Callable[[Change[T]], None], change: Change[T]) -> None:
        """Tell one handler. Whatever it raises is about this object: the others must be heard of all the same."""
        try:
            handler(change)
        except Exception as exc:
            self.failed += 1
            if change.new is not None:
                self._broken.add(change.key)
            log.exception("handler_failed", resource=self.resource.plural, key=change.key)
            self._on_error(change.key, exc)

    def _remember_bytes(self, key: str, new: T | None, raw: bytes) -> None:
        if self._keep is None:
            return
        if raw and new is not None and (key in self._kept or len(self._kept) < _KEPT):
            self._kept[key] = raw
        else:
            self._kept.pop(key, None)


async def wait_synced(*informers: Informer[Any]) -> None:
    """Return when every informer has completed its first list."""
    await asyncio.gather(*(informer.synced.wait() for informer in informers))

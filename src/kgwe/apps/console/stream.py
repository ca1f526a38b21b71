"""One stream of changes: computed and encoded once for all users with equal rights, and sent to each of them.

    event: change
    data: {"version": 7, "nodes": [rows that changed], "gone": [names], "lists": ["work", "budgets", "policies"]}

A row replaces the row of its name. `lists` says which lists to load again. A client that misses a version, or whose
stream was cut, loads the fleet again. A client that is too slow is cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import structlog
from starlette.responses import StreamingResponse

from kgwe import errors
from kgwe.apps.console.node_rows import NodeRow  # noqa: TC001 - read by msgspec when it describes the reply
from kgwe.apps.console.stream_places import StreamPlaces
from kgwe.httpapi import problems
from kgwe.httpapi.routes import NoQuery, Route
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.requests import Request
    from starlette.types import Receive, Send
    from starlette.types import Scope as Connection

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.identity import ConsoleAuthenticator
    from kgwe.apps.console.node_rows import NodeRows
    from kgwe.apps.console.scope import Scope, ScopeReader
    from kgwe.apps.console.stream_places import Place
    from kgwe.httpapi.authentication import User
    from kgwe.kube.api.resources import Resource

log = structlog.get_logger(__name__)

# Changes are gathered for so long.
_GATHER_S: Final = 0.05
# Changes that may concern all nodes are looked for this often.
_WIDE_S: Final = 1.0
_PING_S: Final = 15.0
_WAITING: Final = 64
_MOST_SCOPES: Final = 64
_TOO_MANY: Final = 429
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What changed since the version before."""

    version: int
    nodes: list[NodeRow] = []
    gone: Annotated[list[str], msgspec.Meta(description="Nodes that are no longer there.")] = []
    lists: Annotated[list[str], msgspec.Meta(description="Lists to load again: work, budgets or policies.")] = []


class FleetReply(msgspec.Struct, frozen=True):
    """All GPU nodes that the user may see, at one version of the stream."""

    version: int
    levels: Annotated[list[str], msgspec.Meta(description="Levels of the network, the nearest first.")]
    nodes: list[NodeRow]
    complete: Annotated[
        bool, msgspec.Meta(description="Whether all pods are visible, so that a GPU without pods is free.")
    ]


class Channel:
    """The fleet as the users of one scope see it, and their open streams."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.rows: dict[str, NodeRow] = {}
        self.version = 0
        self.queues: set[asyncio.Queue[bytes | None]] = set()
        self._encoded: tuple[int, bytes] = (-1, b"")

    def encode(self, levels: list[str]) -> bytes:
        """Return the whole fleet, encoded once for each version."""
        if self._encoded[0] != self.version:
            found = FleetReply(self.version, levels, list(self.rows.values()), self.scope.sees_fleet)
            self._encoded = self.version, msgspec.json.encode(found)
        return self._encoded[1]

    def covers(self, kind: Resource[Any], namespace: str) -> bool:
        """Whether a change of an object may be known."""
        scope = self.scope
        if kind is resources.AUTOSCALING_POLICY:
            return scope.policies
        readable = {
            resources.POD: scope.pods,
            resources.GPU_WORKLOAD: scope.workloads,
            resources.WARP_GPU_WORKLOAD: scope.warp_workloads,
            resources.GPU_BUDGET: scope.budgets,
        }[kind]
        return readable.covers(namespace)

    def send(self, delta: Delta) -> None:
        """Send a change to all streams; those that are too slow are cut off."""
        text = b"event: change\ndata: " + msgspec.json.encode(delta) + b"\n\n"
        for queue in list(self.queues):
            if queue.qsize() >= _WAITING:
                self.queues.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(text)


_LISTS: Final = {
    resources.POD: "work",
    resources.GPU_WORKLOAD: "work",
    resources.WARP_GPU_WORKLOAD: "work",
    resources.GPU_BUDGET: "budgets",
    resources.AUTOSCALING_POLICY: "policies",
}


class Hub:
    """The channels of all scopes in use."""

    def __init__(self, watch: ClusterWatch, rows: NodeRows) -> None:
        self._watch = watch
        self._rows = rows
        self._channels: OrderedDict[Scope, Channel] = OrderedDict()
        self._wide_s = 0.0

    def open(self, scope: Scope) -> Channel:
        """Return the channel of a scope."""
        channel = self._channels.get(scope)
        if channel is None:
            channel = self._channels[scope] = Channel(scope)
            self._update(channel, self._rows.list_names(), ())
            self._drop_unused()
        self._channels.move_to_end(scope)
        return channel

    def encode_fleet(self, scope: Scope) -> bytes:
        """Return the fleet as a user may see it."""
        return self.open(scope).encode(self.list_levels(scope))

    def list_levels(self, scope: Scope) -> list[str]:
        """Return the levels of the network; none for users who see no nodes."""
        return self._rows.list_levels() if scope.nodes else []

    def list_rows(self, scope: Scope) -> list[NodeRow]:
        """Return the nodes as a user may see them."""
        return list(self.open(scope).rows.values())

    def _drop_unused(self) -> None:
        unused = [scope for scope, channel in self._channels.items() if not channel.queues]
        for scope in unused[: max(len(self._channels) - _MOST_SCOPES, 0)]:
            del self._channels[scope]

    def close(self) -> None:
        """End all streams, so that the server can stop; browsers come again."""
        for channel in self._channels.values():
            for queue in channel.queues:
                queue.put_nowait(None)

    async def run(self) -> None:
        """Send changes, until cancelled."""
        while True:
            await self._watch.changed.wait()
            self._watch.changed.clear()
            self.flush()
            await asyncio.sleep(_GATHER_S)

    def flush(self) -> None:
        """Bring all channels up to date, and send what changed."""
        watch = self._watch
        names, watch.nodes = watch.nodes, set()
        lists, watch.lists = watch.lists, set()
        now = time.monotonic()
        if watch.is_wide and now >= self._wide_s:
            watch.is_wide, self._wide_s = False, now + _WIDE_S
            names = {*names, *self._rows.list_names()} | {
                name for channel in self._channels.values() for name in channel.rows
            }
        for channel in list(self._channels.values()):
            try:
                self._update(channel, names, lists)
            except Exception:  # one scope must not stop the others
                log.exception("stream_update_failed")
        if watch.is_wide:
            asyncio.get_running_loop().call_later(_WIDE_S, watch.changed.set)

    def _update(self, channel: Channel, names: Iterable[str], lists: Iterable[tuple[Resource[Any], str]]) -> None:
        changed: list[NodeRow] = []
        gone: list[str] = []
        for name in sorted(names):
            row = self._rows.make_row(name, channel.scope)
            if row is None:
                if channel.rows.pop(name, None) is not None:
                    gone.append(name)
            elif row != channel.rows.get(name):
                channel.rows[name] = row
                changed.append(row)
        touched = sorted({_LISTS[kind] for kind, namespace in lists if channel.covers(kind, namespace)})
        if changed or gone or touched:
            channel.version += 1
            channel.send(Delta(channel.version, changed, gone, touched))


class _StreamReply(StreamingResponse):
    """A stream that calls `release` at its end, even if it never began."""

    def __init__(self, content: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=_HEADERS)
        self._release = release

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


class StreamRoutes:
    """Serves the stream."""

    def __init__(self, hub: Hub, scopes: ScopeReader, authenticator: ConsoleAuthenticator) -> None:
        self._hub = hub
        self._scopes = scopes
        self._authenticator = authenticator
        self._places = StreamPlaces()

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "/api/v1/stream",
                "Changes as server-sent events",
                NoQuery,
                Delta,
                self.stream,
                "fleet",
                media_type="text/event-stream",
                takes_request=True,
            )
        ]

    async def stream(self, user: User, _query: NoQuery, request: Request) -> StreamingResponse:
        """Return a reply that sends changes until the client leaves or its rights change."""
        place = self._places.take(user.name, request.client.host if request.client is not None else "")
        try:
            channel = self._hub.open(await self._scopes.read(user))
        except BaseException:
            self._places.release(place)
            raise
        channel.queues.add(place.queue)
        request.state.stream = True
        return _StreamReply(self._send(place, channel, request), lambda: self._close(place, channel))

    def _close(self, place: Place, channel: Channel) -> None:
        channel.queues.discard(place.queue)
        self._places.release(place)

    async def _send(self, place: Place, channel: Channel, request: Request) -> AsyncIterator[bytes]:
        yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
        checked_s = time.monotonic()
        while True:
            try:
                text = await asyncio.wait_for(place.queue.get(), _PING_S)
            except TimeoutError:
                text = b": ping\n\n"
            if text is None:
                return
            yield text
            if time.monotonic() - checked_s > _PING_S:
                checked_s = time.monotonic()
                if not await self._is_same(channel, request):
                    yield b"event: end\ndata: {}\n\n"
                    return

    async def _is_same(self, channel: Channel, request: Request) -> bool:
        """Whether the client is still known and has the same rights; the client comes again if not."""
        try:
            return await self._scopes.read(await self._authenticator.authenticate(request)) == channel.scope
        except problems.Problem as exc:
            return exc.status == _TOO_MANY  # then nothing was revoked
        except errors.KgweError:
            return True  # the API server does not answer: nothing was revoked

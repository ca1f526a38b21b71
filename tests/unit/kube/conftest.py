"""Scripted API servers, for informers and for Leases: they give the answers that a real one gives seldom, when told."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.builders.things import ENCODINGS, Encoding, Thing
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Change, Informer
from kgwe.kube.transport.httpx_transport import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


_END = b""


class ScriptedServer:
    """Lists what it is told to have; a watch sends what it is told to send."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.queries: list[dict[str, str]] = []
        self.accepted: list[str] = []
        self.answers: list[Callable[[httpx2.Request], httpx2.Response | None]] = []
        self.hold_list: asyncio.Event | None = None
        self.watching = asyncio.Event()
        self._lines: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        query = dict(request.url.params)
        self.queries.append(query)
        self.accepted.append(request.headers["Accept"])
        if self.answers and (answer := self.answers.pop(0)(request)) is not None:
            return answer
        if "watch" in query:
            self.watching.set()
            kind = f"{self.encoding.content_type};stream=watch"
            return httpx2.Response(200, content=self._stream(), headers={"Content-Type": kind})
        items, version = list(self.objects.values()), str(self.version)
        if self.hold_list is not None:
            await self.hold_list.wait()
        return httpx2.Response(200, content=self.encoding.page(items, version))

    async def _stream(self) -> AsyncIterator[bytes]:
        while (line := await self._lines.get()) != _END:
            if isinstance(line, Exception):
                raise line
            yield line

    def send(self, type_: str, obj: dict[str, Any]) -> None:
        self.send_bytes(self.encoding.event(type_, obj))

    def send_bytes(self, data: bytes) -> None:
        self._lines.put_nowait(data)

    def end(self) -> None:
        self._lines.put_nowait(_END)

    def cut(self) -> None:
        self._lines.put_nowait(httpx2.ReadError("connection reset"))

    def thing(self, name: str, *, uid: str = "", **fields: Any) -> dict[str, Any]:
        """A new state of a thing, stored."""
        self.version += 1
        metadata = {"name": name, "namespace": "n", "uid": uid or f"u-{name}", "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": metadata, **fields}
        return self.objects[name]

    def informer(self, **how: Any) -> Informer[Thing]:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), base_url="https://cluster.example")
        return Informer(KubeClient(HttpxTransport(http)), self.encoding.resource(), rng=random.Random(5), **how)

    def kept(self, informer: Informer[Thing], name: str) -> bytes:
        return informer.bytes_of(informer.store[f"n/{name}"])

    @property
    def lists(self) -> int:
        return sum("watch" not in query for query in self.queries)

    @property
    def watches(self) -> int:
        return sum("watch" in query for query in self.queries)


class Seen:
    """What an informer reported, as short words, and a way to wait for more."""

    def __init__(self, informer: Informer[Thing]) -> None:
        self.words: list[str] = []
        self._more = asyncio.Event()
        informer.on_change(self.note)

    def note(self, change: Change[Thing]) -> None:
        old, new = change.old, change.new
        what = "new" if old is None else "gone" if new is None else "changed"
        self.words.append(f"{what} {change.key}")
        self._more.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.words) < count:
                self._more.clear()
                await self._more.wait()
        return self.words


@pytest.fixture(params=ENCODINGS, ids=lambda each: type(each).__name__)
def encoding(request: pytest.FixtureRequest) -> Encoding:
    """Every test of an informer runs in each."""
    made: Encoding = request.param
    return made


@pytest.fixture
def server(encoding: Encoding) -> ScriptedServer:
    return ScriptedServer(encoding)


@pytest.fixture
def things(server: ScriptedServer) -> Informer[Thing]:
    return server.informer()


@pytest.fixture
def seen(things: Informer[Thing]) -> Seen:
    """Everything `things` reports."""
    return Seen(things)


@asynccontextmanager
async def run(informer: Informer[Any]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(informer.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def running() -> Callable[[Informer[Any]], Any]:
    """`async with running(informer) as task`."""
    return run


async def wait_until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - counters set no event
            await asyncio.sleep(0.005)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Any]:
    """`await eventually(lambda: ...)`, for counters that nobody announces; bounded."""
    return wait_until


class LeaseServer:
    """Keeps one Lease as the API server does: versions move, stale writes are refused."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.calls: list[str] = []
        self.on_request: Callable[[httpx2.Request], Awaitable[None]] | None = None

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.append(request.method)
        if self.on_request is not None:
            await self.on_request(request)
        if request.method == "GET":
            return httpx2.Response(200, json=self.lease) if self.lease else httpx2.Response(404)
        body = json.loads(request.content)
        if request.method == "POST":
            if self.lease is not None:
                return httpx2.Response(409, json={"reason": "AlreadyExists"})
        elif self.lease is None:
            return httpx2.Response(404)
        elif body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return httpx2.Response(409, json={"reason": "Conflict"})
        return httpx2.Response(200, json=self.store(body))

    def store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


@pytest.fixture
def lease_server() -> LeaseServer:
    return LeaseServer()

"""What breaks between a client and an API server: a proxy to cut, freeze and mend, and a cluster to crash.

    proxy        a TCP proxy in front of `cluster` (TLS passes through untouched)
    client       straight to `cluster`
    far_client   through `proxy`
    breakable    `cluster`, for tests that kill its parts and start them again
    far_from     a proxy and a client through it, for any cluster
    watching     runs an informer and takes down what it reports
    eventually   for what nobody announces

Everything here waits for events and is bounded by a time that a busy machine does not reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Self

import pytest
import pytest_asyncio
import yaml
from tests.support.clusters import clients
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster import components

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from kgwe.kube.client.informer import Change, Informer
    from kgwe.local.cluster.cluster import LocalCluster

_counter = itertools.count(1)


class Proxy:
    """Forwards bytes to one port of loopback until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._flowing = asyncio.Event()
        self._refusing = False
        self.mend()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection; hang up on new ones."""
        self._refusing = True
        for task, writers in self._connections.items():
            for writer in writers:
                writer.transport.abort()
            task.cancel()

    def freeze(self) -> None:
        """Forward nothing more on the connections there are, and keep them open: half-open, for ever."""
        self._flowing.clear()

    def mend(self) -> None:
        """New connections work."""
        self._refusing = False
        self._flowing = asyncio.Event()
        self._flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._forward(reader, writer, self._flowing))
        self._connections[task] = [writer]
        task.add_done_callback(self._connections.pop)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        this = asyncio.current_task()
        assert this is not None
        opening = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", self._target))
        try:
            far_reader, far_writer = await asyncio.shield(opening)
        except OSError:
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            opening.add_done_callback(_hang_up)  # cancelled half-way, it would leave its socket open
            raise
        self._connections[this].append(far_writer)
        ways = [
            asyncio.ensure_future(self._pump(reader, far_writer, flowing)),
            asyncio.ensure_future(self._pump(far_reader, writer, flowing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for each in (writer, far_writer):
                each.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await flowing.wait()
                writer.write(data)
                await writer.drain()


def _hang_up(opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


def kubeconfig_through(proxy: Proxy, kubeconfig: Path, path: Path) -> Path:
    """The same cluster, reached through the proxy."""
    document: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def far_from(tmp_path: Path) -> Callable[[LocalCluster], Any]:
    @contextlib.asynccontextmanager
    async def reach(cluster: LocalCluster) -> AsyncIterator[tuple[Proxy, KubeClient]]:
        async with Proxy(cluster.state().ports[components.APISERVER]) as proxy:
            path = kubeconfig_through(proxy, cluster.kubeconfig, tmp_path / f"far-{next(_counter)}")
            async with KubeClient.connect(path, field_manager="far") as client:
                yield proxy, client

    return reach


@pytest_asyncio.fixture(loop_scope="session")
async def _far(cluster: LocalCluster, far_from: Any) -> AsyncIterator[tuple[Proxy, KubeClient]]:
    async with far_from(cluster) as both:
        yield both


@pytest.fixture
def proxy(_far: tuple[Proxy, KubeClient]) -> Proxy:
    return _far[0]


@pytest.fixture
def far_client(_far: tuple[Proxy, KubeClient]) -> KubeClient:
    return _far[1]


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    async with clients.connect(cluster.kubeconfig, field_manager="near") as client:
        yield client


@pytest.fixture
def breakable(cluster: LocalCluster) -> LocalCluster:
    return cluster


class Watched:
    """A running informer and what it reported, in order."""

    def __init__(self, watched: Informer[Any]) -> None:
        self.informer = watched
        self.changes: list[Any] = []
        self._more = asyncio.Event()
        watched.on_change(self._note)

    def _note(self, change: Change[Any]) -> None:
        self.changes.append(change)
        self._more.set()

    @property
    def words(self) -> list[str]:
        return [
            f"{'new' if c.old is None else 'gone' if c.new is None else 'changed'} {c.key.rpartition('/')[2]}"
            for c in self.changes
        ]

    async def until(self, *words: str, within_s: float = PATIENCE_S) -> None:
        """Wait for as many reports as words, and compare all there are by then."""
        async with asyncio.timeout(within_s):
            while len(self.changes) < len(words):
                self._more.clear()
                await self._more.wait()
        assert self.words == list(words)

    async def synced(self, within_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(within_s):
            await self.informer.synced.wait()


@contextlib.asynccontextmanager
async def watch(informer: Informer[Any]) -> AsyncIterator[Watched]:
    seen = Watched(informer)
    task = asyncio.ensure_future(informer.run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def watching() -> Callable[[Informer[Any]], Any]:
    """`async with watching(informer) as seen`."""
    return watch


async def wait_until(true: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - counters set no event
            await asyncio.sleep(0.02)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """`await eventually(lambda: ...)`, for what nobody announces; bounded."""
    return wait_until

"""Servers that say what a test tells them to say, byte by byte, and take down what they were asked."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE_S

from kgwe.kube.transport.pool import ConnectionPool, Server
from kgwe.kube.transport.transport import Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENT = Timeouts(connect=10, read=10, total=20, idle=60)


def ok(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    """A plain answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def eventually(true: Callable[[], object]) -> None:
    """Wait, bounded, for what nobody announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


@dataclass
class Asked:
    """A request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        return self.line.split(" ", 1)[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]


class Peer:
    """The server's end of one connection."""

    def __init__(self, log: list[Asked], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._log = log
        self.reader = reader
        self.writer = writer

    async def asked(self) -> Asked:
        """The next request, whole."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.rstrip().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        request = Asked(line, headers, await self.reader.readexactly(int(headers.get("Content-Length", 0))))
        self._log.append(request)
        return request

    async def say(self, *pieces: bytes) -> None:
        """Send each piece in a packet of its own, as far as that can be had."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(OSError):
                while await self.reader.read(65536):
                    pass


@dataclass
class Bed:
    """What the server saw."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    open: int = 0
    most_open: int = 0


@contextlib.asynccontextmanager
async def serving(script: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Bed]:
    """A server that runs `script` on each connection, then hangs up."""
    bed = Bed()
    running: set[asyncio.Task[None]] = set()

    async def serve(peer: Peer) -> None:
        bed.open += 1
        bed.most_open = max(bed.most_open, bed.open)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await script(peer)
        finally:
            bed.open -= 1
            peer.writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bed.peers.append(Peer(bed.asked, reader, writer))
        task = asyncio.ensure_future(serve(bed.peers[-1]))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    bed.port = server.sockets[0].getsockname()[1]
    try:
        yield bed
    finally:
        server.close()
        for peer in bed.peers:
            peer.reset()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@contextlib.asynccontextmanager
async def pooled(
    script: Callable[[Peer], Awaitable[None]], *, size: int = 8, timeouts: Timeouts = PATIENT
) -> AsyncIterator[tuple[ConnectionPool, Bed]]:
    """A pool of connections to such a server."""
    async with serving(script) as bed:
        pool = ConnectionPool(Server("127.0.0.1", bed.port), size=size, timeouts=timeouts)
        try:
            yield pool, bed
        finally:
            await pool.close()


async def answer_all(peer: Peer) -> None:
    """A server as it should be."""
    while True:
        request = await peer.asked()
        await peer.say(ok(request.target.encode()))

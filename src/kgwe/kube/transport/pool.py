"""Requests to one server over a bounded pool of kept connections.

    idle ──► send ──► head ──► body ──► idle
      │        │        │        │
      └────────┴────────┴────────┴──► dropped     whatever goes wrong or is given up on the way

Assumptions callers may rely on: every failure is an `httpx2.TransportError`; a request given up at any moment closes
its connection and gives its place back; nothing is sent twice unless the server cannot have acted on it, or acting
twice does not matter. That is: not a byte was written, or it was a GET on a kept connection that ended before the first
byte of an answer. A write that meets such an end is reported, never repeated.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import socket
from typing import TYPE_CHECKING, NamedTuple

import httpx2

from kgwe.kube.transport.http1 import Connection, Reply
from kgwe.kube.transport.transport import Timeouts

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


class Server(NamedTuple):
    host: str
    port: int
    ssl: ssl.SSLContext | None = None


class Stream:
    """A reply whose body is read as it arrives; the server has to wait while it is not read."""

    def __init__(self, connection: Connection, silence_s: float) -> None:
        self.status_code = connection.status
        self.headers = httpx2.Headers(connection.headers)
        self._connection = connection
        self._silence_s = silence_s

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        while piece := await self._connection.read(self._silence_s):
            yield piece

    async def aread(self) -> bytes:
        return b"".join([piece async for piece in self.aiter_bytes()])


class ConnectionPool:
    """At most `size` connections to one server."""

    def __init__(self, server: Server, *, size: int = 64, timeouts: Timeouts | None = None) -> None:
        self._server = server
        self._timeouts = timeouts or Timeouts()
        self._free = size  # places not taken by a connection, open or being opened
        self._idle: list[Connection] = []  # the longest idle first, taken from the other end
        self._open: set[Connection] = set()
        self._queue: collections.deque[asyncio.Future[Connection | None]] = collections.deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(self, message: bytes) -> Reply:
        """Send a request, as it goes over the wire, and return the whole answer."""
        deadline = asyncio.get_running_loop().time() + self._timeouts.total
        connection = await self._exchange(message, self._timeouts.read, deadline, streaming=False)
        reply = Reply(connection.status, connection.take_body(), connection.headers)
        self._release(connection)
        return reply

    @contextlib.asynccontextmanager
    async def stream(self, message: bytes, *, silence_s: float) -> AsyncIterator[Stream]:
        """Send a request and read its answer piece by piece; `silence_s` is the longest pause between them."""
        connection = await self._exchange(message, silence_s, math.inf, streaming=True)
        try:
            yield Stream(connection, silence_s)
        except BaseException:
            self._drop(connection)
            raise
        self._release(connection)

    async def close(self) -> None:
        """Drop every connection, also under requests; return when the sockets are closed."""
        self._closed = True
        for waiter in self._queue:
            if not waiter.done():
                waiter.set_exception(httpx2.CloseError("the client was closed"))
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()
        if self._reaper is not None:
            self._reaper.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self._open:  # noqa: ASYNC110 - a turn or two of the loop
                    await asyncio.sleep(0)

    async def _exchange(self, message: bytes, silence_s: float, deadline: float, *, streaming: bool) -> Connection:
        """A connection that has the answer, or its head when streaming."""
        if self._closed:
            raise RuntimeError("the client is closed")
        again = False
        while True:
            connection = await self._acquire(deadline, fresh=again)
            try:
                connection.send(message, streaming=streaming)
                await connection.wait_answer(silence_s, deadline)
            except httpx2.TransportError:
                self._drop(connection)
                if again or not connection.may_repeat(idempotent=message.startswith(b"GET ")):
                    raise
                again = True
            except BaseException:
                self._drop(connection)
                raise
            else:
                return connection

    # --- places -----------------------------------------------------------------------------------------

    async def _acquire(self, deadline: float, *, fresh: bool) -> Connection:
        """Return an unused connection; `fresh` asks for one that was not idle."""
        if fresh and self._idle and not self._free:
            self._drop(self._idle.pop(0))
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.is_peer_present():
                return connection
            self._drop(connection)
        if self._free:
            self._free -= 1
        elif (handed := await self._wait_turn(deadline)) is not None:
            return handed
        try:
            return await self._open_connection(deadline)
        except BaseException:
            self._free_place()
            raise

    async def _wait_turn(self, deadline: float) -> Connection | None:
        """Wait for a connection of another request, or (None) for a place to open one."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Connection | None] = loop.create_future()
        self._queue.append(waiter)
        try:
            async with asyncio.timeout_at(min(loop.time() + self._timeouts.read, deadline)):
                return await waiter
        except BaseException as exc:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())  # given up just when the turn came
            if isinstance(exc, TimeoutError):
                raise httpx2.PoolTimeout("every connection is in use") from exc
            raise

    def _pass_on(self, connection: Connection | None) -> None:
        if connection is None:
            self._free_place()
        else:
            self._release(connection)

    def _release(self, connection: Connection) -> None:
        if self._closed or not connection.is_reusable():
            self._drop(connection)
            return
        connection.set_idle()
        if not self._hand_over(connection):
            self._idle.append(connection)
            if self._reaper is None:
                self._reaper = asyncio.get_running_loop().call_later(self._timeouts.idle, self._close_idle)

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._free_place()

    def _free_place(self) -> None:
        if not self._hand_over(None):
            self._free += 1

    def _hand_over(self, connection: Connection | None) -> bool:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._drop(connection)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._reaper = None
        while self._idle and self._idle[0].idle_since + self._timeouts.idle <= loop.time():
            self._drop(self._idle.pop(0))
        if self._idle:
            self._reaper = loop.call_at(self._idle[0].idle_since + self._timeouts.idle, self._close_idle)

    # --- connecting -------------------------------------------------------------------------------------

    async def _open_connection(self, deadline: float) -> Connection:
        host, port, _ = self._server
        loop = asyncio.get_running_loop()
        until = min(loop.time() + self._timeouts.connect, deadline)
        failure = OSError("no address")
        try:
            async with asyncio.timeout_at(until):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
                for number, address in enumerate(addresses):
                    try:
                        # An address that swallows packets must not use up the time of the others.
                        async with asyncio.timeout((until - loop.time()) / (len(addresses) - number)):
                            return await self._connect(address)
                    except OSError as exc:
                        failure = exc
        except OSError as exc:
            failure = exc
        if isinstance(failure, TimeoutError):
            raise httpx2.ConnectTimeout(f"{host}:{port} does not take the call") from failure
        raise httpx2.ConnectError(f"{host}:{port}: {failure}") from failure

    async def _connect(self, address: str) -> Connection:
        host, port, ssl = self._server
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._on_lost), address, port, ssl=ssl, server_hostname=host if ssl else None
        )
        if self._closed:
            connection.abort()
            raise httpx2.CloseError("the client was closed")
        if connection.open:
            self._open.add(connection)
        return connection

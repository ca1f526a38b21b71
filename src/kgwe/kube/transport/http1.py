"""One HTTP/1.1 connection: a request at a time, and its answer as it comes in.

Written for the API server alone, because a general client spends most of its time on generality. Left out on purpose:
HTTP/2, HEAD, redirects, cookies, compression, proxies (`connection.py` takes httpx2 for those). `pool.py` has the rest.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
from typing import TYPE_CHECKING

import httptools
import httpx2

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

# A peer that vanished without a word (a dead machine, a forgotten NAT entry) is found out in half a minute, on an idle
# watch as much as under a request waiting for its answer.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}  # s, s, times, ms
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, k), v) for k, v in _KEEPALIVE.items() if hasattr(socket, k)),
]
# The peer has closed its side. Where that looks like data: unrequested data is as bad.
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLIN)

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 1 << 30
_STREAM_BUFFER = 256 * 1024  # unread; then the server has to wait
_FINAL = 200  # the first status that is not provisional
# The timer of the longest silence rings in steps. A step that ends late does not count: the loop did not listen.
_STEPS = 8
_LATE = 0.1  # of a step
_EXCUSED = 4  # silences; a loop that is always late gives up in the end


class Reply:
    """A whole answer."""

    __slots__ = ("_headers", "content", "status_code")

    def __init__(self, status_code: int, content: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status_code
        self.content = content
        self._headers = headers

    @property
    def headers(self) -> httpx2.Headers:
        return httpx2.Headers(self._headers)


class Connection(asyncio.Protocol):
    """A TCP or TLS connection; `lost` is called when it is closed."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self.status = 0  # of the answer, once its head is complete
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.used = False  # has carried an answer before
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: httpx2.TransportError | None = None
        self._busy = self._streaming = self._paused = self._keep = self._unsent = False
        self._heard = 0  # bytes of the answer until its head was complete
        self._heard_at = self._silence_s = self._deadline = self._excused_s = 0.0
        self._body: list[bytes] = []
        self._size = 0

    # --- for the pool -----------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def is_peer_present(self) -> bool:
        """Whether the peer is still there, as far as this machine has heard (the event loop may not have, yet)."""
        return self.open and not self._poll.poll(0)

    def is_reusable(self) -> bool:
        """Whether the answer is complete and nothing is left over, on either side."""
        if not (self.complete and self._keep and self.open) or self._paused or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() == 0

    def may_repeat(self, *, idempotent: bool) -> bool:
        """Whether the request that failed here can be sent elsewhere without being carried out twice."""
        hung_up = isinstance(self._error, httpx2.RemoteProtocolError | httpx2.ReadError)
        return self._unsent or (idempotent and hung_up and self.used and not self._heard)

    def send(self, message: bytes, *, streaming: bool) -> None:
        self.status = self._heard = self._size = 0
        self.headers, self._body = [], []
        self.complete = self._keep = False
        self._busy, self._streaming = True, streaming
        if self._transport is None or self._transport.is_closing():
            self._unsent = True
            self._fail(httpx2.WriteError("the connection is closed"))
        else:
            self._transport.write(message)

    async def wait_answer(self, silence_s: float, deadline: float) -> None:
        """Wait for the whole answer, or for its head when streaming."""
        while not (self.complete or (self._streaming and self.status)):
            await self._wait_data(silence_s, deadline)

    async def read(self, silence_s: float) -> bytes:
        """What has come of the body since last time; empty at its end."""
        while not self._body and not self.complete:
            await self._wait_data(silence_s, math.inf)
        return self.take_body()

    def take_body(self) -> bytes:
        body, self._body, self._size = self._body, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return body[0] if len(body) == 1 else b"".join(body)

    def set_idle(self) -> None:
        self.used, self._busy, self.idle_since = True, False, self._loop.time()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- waiting ----------------------------------------------------------------------------------------

    async def _wait_data(self, silence_s: float, deadline: float) -> None:
        if self._error is not None:
            raise self._error
        self._silence_s, self._deadline, self._heard_at = silence_s, deadline, self._loop.time()
        self._excused_s = 0.0
        self._waiter = self._loop.create_future()
        self._set_timer(self._heard_at)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()

    def _set_timer(self, now: float) -> None:
        # Set once per step and not with each byte: bytes come far more often than silence.
        due = min(self._heard_at + self._silence_s, self._deadline, now + self._silence_s / _STEPS)
        self._timer = self._loop.call_at(due, self._check_deadline, now, due)

    def _check_deadline(self, began: float, due: float) -> None:
        """Fail if the server was silent for too long while the loop listened.

        A busy loop neither sends the request nor reads the answer, and uvloop runs timers before it reads what arrived
        meanwhile. A process without a processor is no better. Such a step does not count.
        """
        now = self._loop.time()
        is_late = now - due > _LATE * min(self._silence_s / _STEPS, now - began)
        if is_late and self._excused_s < _EXCUSED * self._silence_s:
            self._excused_s += now - began
            self._heard_at = min(self._heard_at + now - began, now)
            self._deadline += now - began
        if now >= self._deadline:
            self._fail(httpx2.ReadTimeout("no answer in time"))
        elif now >= self._heard_at + self._silence_s:
            self._fail(httpx2.ReadTimeout("the server is silent"))
        else:
            self._set_timer(now)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: httpx2.TransportError) -> None:
        if self._error is None:
            self._error = error
            self._wake()

    # --- called by the event loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a Transport, though uvloop's TLS does not inherit from it
        sock = transport.get_extra_info("socket")
        for option in _SOCKET_OPTIONS:
            sock.setsockopt(*option)
        self._poll.register(sock.fileno(), _HUNG_UP)

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._parser is None:
            self.abort()  # data without a request
            return
        self._heard_at = self._loop.time()
        if not self.status:
            self._heard += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._keep = False
            self._fail(httpx2.RemoteProtocolError(f"not an answer in HTTP/1.1: {exc}"))
        if not self.status and self._heard > _HEAD_LIMIT:
            self._fail(httpx2.RemoteProtocolError(f"more than {_HEAD_LIMIT} bytes of headers"))

    def eof_received(self) -> None:
        self._end(None)
        self.abort()  # without waiting for the peer to take its leave of TLS

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._transport = self._parser = None
        self._lost(self)

    def _end(self, exc: Exception | None) -> None:
        if exc is not None:
            self._fail(httpx2.ReadError(f"connection lost: {exc!r}"))
        elif self.status and self._error is None and self._ends_with_connection():
            self.complete = True
            self._wake()
        else:
            when = "in the middle of its answer" if self._heard else "before answering"
            self._fail(httpx2.RemoteProtocolError(f"the server hung up {when}"))

    def _ends_with_connection(self) -> bool:
        return not {name.lower() for name, _ in self.headers} & {b"content-length", b"transfer-encoding"}

    # --- called by the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._keep = False  # until the message is complete; what follows a complete one is a stray

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else a trailer
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < _FINAL:
            self.headers = []
            return
        self.status = status
        if self._streaming:
            self._wake()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._body.append(body)
        self._size += len(body)
        if self._streaming:
            self._wake()
            if self._size > _STREAM_BUFFER and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        elif self._size > _BODY_LIMIT:
            self._fail(httpx2.ReadError(f"more than {_BODY_LIMIT} bytes in one answer"))

    def on_message_complete(self) -> None:
        if self.status and not self.complete and self._error is None and self._parser is not None:
            self.complete = True
            self._keep = self._parser.should_keep_alive()
            self._wake()


class LineSplitter:
    """Puts lines together from pieces, in time linear in their length and in memory bounded by `limit`."""

    def __init__(self, limit: int = 32 * 1024 * 1024) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._limit:
            raise errors.Permanent(f"a line of more than {self._limit} bytes")
        return lines

"""An HTTP/1.1 server for short questions and answers: probes, metrics, and kube-scheduler's calls.

    bytes → parser → Request → the application → Reply → bytes, all in one callback of the event loop

Written for these alone, because a general server spends more time on generality than the answers take. An application
is a function of a request that returns its reply, or an awaitable of it. Left out on purpose: HTTP/2, streams,
compression, WebSockets. What is larger, slower or stranger than what is asked here is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import httptools
import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = structlog.get_logger(__name__)

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

_LARGEST_HEAD: Final = 16 << 10
_MOST_CONNECTIONS: Final = 256
# A request must be there in this time, and its reply be taken in as much.
_REQUEST_S: Final = 30.0
# Clients of Kubernetes keep idle connections 90 s; closing first would reset a request under way.
_IDLE_S: Final = 120.0
# What a client that was turned away may take to read why.
_LINGER_S: Final = 1.0
# What answers under way may take when the server stops.
_GRACE_S: Final = 2.0


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`:8080`, `0.0.0.0:8080` or `[::]:8080`; port 0 takes a free one."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
            raise errors.Permanent(f"bad address {text!r}: give HOST:PORT or :PORT, such as :8080")
        return cls(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - probes come from the kubelet's address


class Request(NamedTuple):
    method: str
    #: without the query
    path: str
    #: as they came
    headers: list[tuple[bytes, bytes]]
    body: bytes
    #: the body was larger than what is read, and is left out
    too_large: bool

    def header(self, name: bytes) -> str:
        """The first of that (lower-case) name; empty: there is none."""
        return next((value.decode("latin-1") for given, value in self.headers if given.lower() == name), "")


class Reply(NamedTuple):
    status: int
    body: bytes
    content_type: str = TEXT


if TYPE_CHECKING:
    App = Callable[[Request], Reply | Awaitable[Reply]]


@contextlib.asynccontextmanager
async def serving(
    app: App, address: Address, *, certificate: str = "", key: str = "", largest_body: int = 1 << 20
) -> AsyncIterator[int]:
    """Serve `app` while the context is open, over TLS when there is a certificate; yields the port (useful when 0 was
    asked for)."""
    tls = _tls(certificate, key) if certificate else None
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.create_server((address.host, address.port), family=family)
    except OSError as exc:
        raise errors.Permanent(f"cannot listen on {address.host}:{address.port}: {exc.strerror or exc}") from exc
    shared = _Shared(app, largest_body)
    with sock:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(shared), sock=sock, ssl=tls, ssl_handshake_timeout=_REQUEST_S if tls else None
        )
        try:
            yield sock.getsockname()[1]
        finally:
            server.close()
            await shared.finish()


def _tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key or None)
    except OSError as exc:  # ssl.SSLError is one
        raise errors.Permanent(f"cannot use certificate {certificate} with key {key}: {exc}") from exc
    return context


class _Shared:
    """What all connections of one server have in common."""

    def __init__(self, app: App, largest_body: int) -> None:
        self.app = app
        self.largest_body = largest_body
        self.connections: set[_Connection] = set()
        self.answers: set[asyncio.Task[None]] = set()  # under way
        self.stopping = False

    async def finish(self) -> None:
        """Answers under way are given some time; whoever only waits is sent away at once."""
        self.stopping = True
        for connection in list(self.connections):
            connection.stop()
        left: list[asyncio.Future[None]] = [connection.closed for connection in self.connections]
        left += self.answers
        if left:
            await asyncio.wait(left, timeout=_GRACE_S)
        for connection in list(self.connections):
            connection.abort()
        for answer in self.answers:
            answer.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@functools.lru_cache(maxsize=64)
def _head(status: int, content_type: str, keep: bool) -> bytes:  # noqa: FBT001 - a key of the cache
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {content_type}",
        f"connection: {'keep-alive' if keep else 'close'}",
        "content-length: ",
    )
    return "\r\n".join(lines).encode()


def _message(reply: Reply, *, keep: bool, bodiless: bool = False) -> bytes:
    head = _head(reply.status, reply.content_type, keep)
    return b"%b%d\r\n\r\n%b" % (head, len(reply.body), b"" if bodiless else reply.body)


@functools.lru_cache(maxsize=64)
def _path(url: bytes) -> str | None:
    """Of what was asked for; None: there is none to be made out."""
    try:
        found: bytes | None = httptools.parse_url(url).path
        return unquote(found.decode("ascii"), errors="strict") if found and found.startswith(b"/") else None
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None


class _Connection(asyncio.Protocol):
    """Requests are answered in the order they come, each when the one before it has been."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        # None: what still comes is not read.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._due = self._loop.time() + _REQUEST_S
        self._timer = self._loop.call_at(self._due, self._tick)
        self._waiting: deque[tuple[Request, bool]] = deque()  # and whether the connection stays open after it
        self._answering = False  # an answer is awaited
        self._full = False  # the client does not read
        self._paused = False  # it is not read what the client sends
        self._last = False  # no further request is answered
        self._begin()
        self._open = False  # a request has begun and is not complete

    # --- called by the event loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a Transport, though uvloop's TLS does not inherit from it
        if self._shared.stopping or len(self._shared.connections) >= _MOST_CONNECTIONS:
            transport.close()
        self._shared.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self._open:
            self._heard += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # it was answered as if it had not asked for that
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)
        if self._open:
            self._weigh()

    def _weigh(self) -> None:
        """Of a request that is not complete there may be more than is worth waiting for."""
        largest = self._shared.largest_body
        if not self._complete_head:
            if self._heard > _LARGEST_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._size > largest or self._heard > largest + _LARGEST_HEAD:
            self._ask(keep=False, too_large=True)

    def eof_received(self) -> bool:
        """Whoever says no more may still want to hear what was asked for."""
        self._parser = None
        self.stop()
        return self._answering or bool(self._waiting)

    def pause_writing(self) -> None:
        self._full = True
        self._set_due(_REQUEST_S)

    def resume_writing(self) -> None:
        self._full = False
        self._set_due(_IDLE_S)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - nobody is left to be told
        self._timer.cancel()
        self._transport = self._parser = None
        self._waiting.clear()
        self._shared.connections.discard(self)
        self.closed.set_result(None)

    def _set_due(self, in_s: float) -> None:
        self._due = self._loop.time() + in_s

    def _tick(self) -> None:
        if self._answering:
            self._set_due(_REQUEST_S)
        if self._loop.time() < self._due:
            # Set again only when it rings: requests come far more often than silence.
            self._timer = self._loop.call_at(self._due, self._tick)
        elif self._open and not self._full:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.abort()

    # --- called by the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()
        self._set_due(_REQUEST_S)

    def _begin(self) -> None:
        self._open, self._complete_head = True, False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._head_size = self._size = self._heard = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete_head:  # else a trailer
            self._headers.append((name, value))
            self._head_size += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._complete_head = True
        if self._head_size + len(self._url) > _LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        for name, value in self._headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue" and self._transport and not self._waiting:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._shared.largest_body:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser is not None and self._open:
            keep = self._parser.should_keep_alive() and not self._parser.should_upgrade()
            self._ask(keep=keep, too_large=self._size > self._shared.largest_body)

    # --- answering --------------------------------------------------------------------------------------

    def _ask(self, *, keep: bool, too_large: bool) -> None:
        """The request is complete, or as complete as it may become."""
        path = _path(self._url)
        if path is None or self._parser is None:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self._open = False
        body = b"" if too_large else b"".join(self._body)
        method = self._parser.get_method().decode("ascii")
        keep = keep and not too_large
        if not keep:
            self._parser = None
        self._waiting.append((Request(method, path, self._headers, body, too_large), keep))
        self._next()

    def _next(self) -> None:
        """Answer what waits, unless the one before has not been answered or the client does not read."""
        while self._waiting and not self._answering and not self._full:
            request, keep = self._waiting.popleft()
            try:
                reply = self._shared.app(request)
            except Exception:  # the application's fault must not end the connection without an answer
                log.exception("request_failed", path=request.path)
                reply = _BROKEN
            if isinstance(reply, Reply):
                self._write(request, reply, keep=keep)
            else:
                self._answering = True
                task = self._loop.create_task(self._await(request, reply, keep=keep))
                self._shared.answers.add(task)
                task.add_done_callback(self._shared.answers.discard)
        self._read(paused=self._answering or self._full)
        self._close_when_done()

    async def _await(self, request: Request, coming: Awaitable[Reply], *, keep: bool) -> None:
        """To its end, though the client may have gone: what it asked for may be half done."""
        try:
            reply = await coming
        except Exception:  # as above
            log.exception("request_failed", path=request.path)
            reply = _BROKEN
        self._answering = False
        self._write(request, reply, keep=keep)
        self._next()

    def _write(self, request: Request, reply: Reply, *, keep: bool) -> None:
        if self._transport is None:
            return
        keep = keep and not self._last
        self._transport.write(_message(reply, keep=keep, bodiless=request.method == "HEAD"))
        self._set_due(_IDLE_S)
        if request.too_large:
            self._linger()
        elif not keep:
            self._last = True

    def _refuse(self, status: HTTPStatus) -> None:
        """Read no more, and say why unless there are others to be answered first."""
        if self._parser is None or self._transport is None:
            return
        self._open, self._parser = False, None
        if self._answering or self._waiting:
            self._last = True
        else:
            self._transport.write(_message(Reply(status, f"{status.phrase}\n".encode()), keep=False))
            self._linger()

    def _linger(self) -> None:
        """Closing with bytes unread would take the reply away from whoever still sends."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer.cancel()
        self._set_due(_LINGER_S)
        self._timer = self._loop.call_at(self._due, self._tick)

    def _read(self, *, paused: bool) -> None:
        if paused != self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # --- the end ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Once what was asked has been answered."""
        self._last = True
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._last and not self._answering and not self._waiting and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


_BROKEN: Final = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error\n")

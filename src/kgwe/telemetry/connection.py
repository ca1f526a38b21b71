"""One connection of the HTTP server."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httptools
import structlog

from kgwe.telemetry import messages
from kgwe.telemetry.messages import Reply, Request
from kgwe.telemetry.tls import names_of

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable

    from kgwe.telemetry.connection_limiter import ConnectionLimiter

log = structlog.get_logger(__name__)

_LARGEST_HEAD: Final = 16 << 10
# Timeout of a handshake, and of the head of a request.
_HEAD_S: Final = 5.0
# Timeout of a complete request, and of the delivery of its reply; kube-scheduler's own timeout is no longer.
_REQUEST_S: Final = 10.0
# Kubernetes clients keep idle connections for 90 s; closing earlier could reset a new request.
_IDLE_S: Final = 120.0
# Seconds a refused client has to read the reason.
_LINGER_S: Final = 1.0
# A timer that fires later than this shows that the event loop was busy: what the client sent waits unread.
_LATE_S: Final = 0.02
# Pipelined requests that may wait. Scrapers, kubelets and kube-scheduler send none.
_SENT_AHEAD: Final = 8


class Connection(asyncio.Protocol):
    """Answers requests in order, one after the other.

    A connection answers one request per turn of the event loop, so pipelined requests on any number of connections do
    not block other work. A client that pipelines more than `_SENT_AHEAD` requests gets those answers, and the
    connection is closed.
    """

    def __init__(self, limiter: ConnectionLimiter, peer: str = "") -> None:
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.peer = peer
        #: the client presented a certificate, or has sent a complete request
        self.is_proven = False
        #: time at which its last request began
        self.active_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        # None: further bytes are not read.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.arrival = 0  # its number among the admitted connections
        self._due = self._rings_at = self.active_at + _HEAD_S
        self._timer = self._loop.call_at(self._due, self._tick)
        self._waiting: deque[tuple[Request, bool]] = deque()  # whether the connection stays open after the reply
        self._had_turn = False  # a request of the current bytes was answered
        self._next_is_due = False  # the event loop will call `_next`
        self._overrun = False  # too many pipelined requests; those that do not wait are not answered
        self._answering = False  # a reply is awaited
        self._full = False  # the client does not read
        self._paused = False  # input of the client is not read
        self._last = False  # no further request is answered
        self._stranger = False  # no name of its certificate is allowed
        self._handshake: asyncio.Task[None] | None = None
        self._held = 0  # bytes of bodies of unanswered requests
        self._begin()
        self.is_open = False

    @property
    def is_answering(self) -> bool:
        return self._answering or bool(self._waiting)

    @property
    def body_size(self) -> int:
        return len(self._body)

    # --- called by the event loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a Transport, though uvloop's TLS does not inherit from it
        if self._handshake is not None:
            self._check_client(transport)
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        if not self._limiter.admit(self):
            self.abort()

    def start_tls(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Start the handshake with an accepted client; `connection_made` is called when it is complete."""
        self._handshake = self._loop.create_task(self._start_handshake(sock, context))
        self._limiter.run(self._handshake)

    async def _start_handshake(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self, sock, ssl=context, ssl_handshake_timeout=_HEAD_S, ssl_shutdown_timeout=_LINGER_S
            )
        except (OSError, RuntimeError, asyncio.CancelledError):  # ssl.SSLError is an OSError
            if self._transport is None:
                sock.close()
                self.connection_lost(None)

    def _check_client(self, transport: asyncio.BaseTransport) -> None:
        """Check the client's certificate after the handshake."""
        tls, certificate = self._limiter.tls, transport.get_extra_info("peercert")
        if tls is None or tls.files.authority is None:
            return
        if tls.is_allowed(certificate):
            self.is_proven = True
            self._set_due(_IDLE_S)
        else:
            self._stranger = True
            self._limiter.log_refused_client(names_of(certificate), self.peer)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self.is_open:
            self._heard += len(data)
        self._had_turn = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # it was answered as if it had not asked for that
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)
        if self.is_open:
            self._check_size()

    def _check_size(self) -> None:
        """Refuse an incomplete request that is too large or takes too long."""
        self._shorten_deadline(self.active_at + (_REQUEST_S if self._complete_head else _HEAD_S))
        largest = self._limiter.limits.body
        if not self._complete_head:
            if self._heard > _LARGEST_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._size > largest or self._heard > largest + _LARGEST_HEAD:
            self._queue_request(keep=False, too_large=True)

    def eof_received(self) -> bool:
        """Keep the connection after EOF: the client may still read its replies."""
        self._parser = None
        self.stop()
        return self.is_answering

    def pause_writing(self) -> None:
        self._full = True
        self._shorten_deadline(self._loop.time() + _REQUEST_S)

    def resume_writing(self) -> None:
        self._full = False
        self._set_due(_IDLE_S)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - there is nothing to tell
        if self.closed.done():
            return
        self._timer.cancel()
        self._transport = self._parser = None
        self._waiting.clear()
        self.is_open = False
        self._release()
        self._limiter.remove(self)
        self.closed.set_result(None)

    def _set_due(self, in_s: float) -> None:
        self._due = self._loop.time() + in_s

    def _shorten_deadline(self, due: float) -> None:
        """Move the deadline forward, possibly before the timer."""
        self._due = due
        if due < self._rings_at and self._transport is not None:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer.cancel()
        self._rings_at = self._due  # uvloop's handle of a time that has passed does not know it
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late_s = self._loop.time() - self._rings_at
        if self._answering:
            self._set_due(_REQUEST_S)
        elif late_s > _LATE_S:
            self._due = max(self._due, self._loop.time() + min(late_s, _HEAD_S))
        if self._loop.time() < self._due:
            # The timer is set again only when it fires: requests are far more frequent.
            self._set_timer()
        elif self.is_open and not self._full:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.abort()

    # --- called by the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if len(self._waiting) >= _SENT_AHEAD:
            self._overrun, self._parser = True, None
            raise _SentTooManyAhead  # the parser stops here
        self._begin()
        self.active_at = self._loop.time()

    def _begin(self) -> None:
        #: a request has begun and is incomplete
        self.is_open, self._complete_head = True, False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._head_size = self._size = self._heard = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete_head:  # else a trailer
            self._headers.append((name, value))
            self._head_size += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._complete_head = True
        if self._stranger:
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        if self._head_size + len(self._url) > _LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        for name, value in self._headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue" and self._transport and not self._waiting:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._limiter.limits.body or not self.is_open:
            return
        if not self._body:
            self._body = body
        else:
            # One buffer: a list of tiny pieces would take many times the counted bytes.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        self._held += len(body)
        self._limiter.reserve_body(len(body))

    def on_message_complete(self) -> None:
        if self._parser is not None and self.is_open:
            keep = self._parser.should_keep_alive() and not self._parser.should_upgrade()
            self._queue_request(keep=keep, too_large=self._size > self._limiter.limits.body)

    # --- answering --------------------------------------------------------------------------------------

    def _queue_request(self, *, keep: bool, too_large: bool) -> None:
        """Queue a request that is complete, or will get no further."""
        path = messages.path_of(self._url)
        if path is None or self._parser is None:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self.is_open = False
        self.is_proven = True
        body, self._body = b"" if too_large else bytes(self._body), b""
        method = self._parser.get_method().decode("ascii")
        keep = keep and not too_large
        if not keep:
            self._parser = None
        self._waiting.append((Request(method, path, self._headers, body, too_large, self.peer), keep))
        if self._had_turn:
            self._call_next_soon()
        else:
            self._had_turn = True
            self._next()

    def _next(self) -> None:
        """Answer the next waiting request, unless a reply is pending or the client does not read."""
        if self._may_answer:
            self._answer(*self._waiting.popleft())
        if self._may_answer:
            self._call_next_soon()
        else:
            self._read(paused=self._answering or self._full)
        self._close_when_done()

    @property
    def _may_answer(self) -> bool:
        return bool(self._waiting) and not self._answering and not self._full

    def _call_next_soon(self) -> None:
        """Answer the next request in the next turn of the event loop; read nothing until then."""
        self._read(paused=True)
        if not self._next_is_due:
            self._next_is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._next_is_due = False
        self._next()

    def _answer(self, request: Request, keep: bool) -> None:  # noqa: FBT001 - as it waits
        try:
            reply = self._limiter.app(request)
        except Exception:  # an error of the application must not end the connection without a reply
            log.exception("request_failed", path=request.path)
            reply = _BROKEN
        if isinstance(reply, Reply):
            self._write(request, reply, keep=keep)
        else:
            self._answering = True
            self._limiter.run(self._loop.create_task(self._await(request, reply, keep=keep)))

    async def _await(self, request: Request, coming: Awaitable[Reply], *, keep: bool) -> None:
        """Await the reply to its end, even if the client is gone: the action may be half done."""
        try:
            reply = await coming
        except Exception:  # as above
            log.exception("request_failed", path=request.path)
            reply = _BROKEN
        self._answering = False
        self._write(request, reply, keep=keep)
        self._next()

    def _write(self, request: Request, reply: Reply, *, keep: bool) -> None:
        if not self._waiting and not self.is_open:
            self._release()
        if self._transport is None:
            return
        keep = keep and (bool(self._waiting) or not (self._last or self._overrun))
        self._transport.write(messages.encode(reply, keep=keep, bodiless=request.method == "HEAD"))
        self._set_due(_IDLE_S)
        if request.too_large or (self._overrun and not self._waiting):
            self._linger()
        elif not keep:
            self._last = True

    def _release(self) -> None:
        """Release the bytes of its bodies."""
        if self._held:
            self._limiter.reserve_body(-self._held)
            self._held = 0

    def refuse_body(self) -> None:
        """Refuse the request: all connections together hold too many bytes."""
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def _refuse(self, status: HTTPStatus) -> None:
        """Stop reading, and send the reason unless other replies come first."""
        if self._parser is None or self._transport is None:
            return
        self.is_open, self._parser = False, None
        self._body = b""
        self._release()
        if self.is_answering:
            self._last = True
        else:
            self._transport.write(messages.encode(Reply(status, f"{status.phrase}\n".encode()), keep=False))
            self._linger()

    def _linger(self) -> None:
        """Keep reading for a while: closing with unread bytes would discard the reply to a client that still sends."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        self._set_due(_LINGER_S)
        self._set_timer()

    def _read(self, *, paused: bool) -> None:
        if paused != self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # --- the end ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Close after the pending replies."""
        self._last = True
        if self._transport is None:
            self.abort()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._last and not self.is_answering and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()


class _SentTooManyAhead(Exception):
    """Raised if too many requests are pipelined."""


_BROKEN: Final = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error\n")

"""Calls an extender as kube-scheduler does: one call after the other, over one open connection.

It uses plain sockets, because a client library would take as long as the measured server.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Self

from kgwe import errors
from kgwe.local.host.ports import LOOPBACK

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from kgwe.bench.extender.capture import Payload

_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 18
_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Caller:
    """One connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._socket = socket.create_connection((LOOPBACK, port), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=LOOPBACK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def request(self, path: str, body: bytes) -> bytes:
        """Return the complete request as bytes."""
        head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}:{self._port}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(self, request: bytes) -> bytes:
        """Send a request and return the body of the response; raise Permanent unless the status is 200."""
        self._socket.sendall(request)
        reply = self._receive()
        while _END not in reply:
            reply += self._receive()
        head, _, body = reply.partition(_END)
        parts = [body]
        left = _content_length(head) - len(body)
        while left > 0:
            parts.append(self._receive())
            left -= len(parts[-1])
        if not head.startswith(b"HTTP/1.1 200"):
            raise errors.Permanent(f"the extender returned {head.splitlines()[0].decode(errors='replace')}")
        return b"".join(parts)

    def _receive(self) -> bytes:
        piece = self._socket.recv(_CHUNK_BYTES)
        if not piece:
            raise errors.Transient("the extender closed the connection")
        return piece


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            return int(line[len(_LENGTH) :])
    raise errors.Permanent("the extender's response has no Content-Length")


class Spent:
    """The milliseconds of each pair of calls."""

    def __init__(self) -> None:
        self.filter_ms: list[float] = []
        self.prioritize_ms: list[float] = []
        #: pods that got a node
        self.placed = 0

    def both_ms(self) -> list[float]:
        return [sum(pair) for pair in zip(self.filter_ms, self.prioritize_ms, strict=True)]


def call(
    port: int, payloads: Sequence[Payload], spent: Spent, turns: Iterable[int], tls: ssl.SSLContext | None = None
) -> None:
    """Send both calls about the pod of each number, one after the other."""
    with Caller(port, tls) as caller:
        for turn in turns:
            payload = payloads[turn % len(payloads)]
            filtering = caller.request("/filter", payload.filter)
            scoring = caller.request("/prioritize", payload.prioritize)
            began = time.perf_counter()
            chosen = caller.send(filtering)
            between = time.perf_counter()
            caller.send(scoring)
            ended = time.perf_counter()
            spent.filter_ms.append((between - began) * 1e3)
            spent.prioritize_ms.append((ended - between) * 1e3)
            spent.placed += b'"NodeNames":["' in chosen

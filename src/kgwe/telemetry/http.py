"""An HTTP/1.1 server for short requests and replies: probes, metrics, and kube-scheduler's calls.

    bytes → parser → Request → the application → Reply → bytes, all in one callback of the event loop

A general server takes longer per request than these replies need. An application is a function from a request to its
reply, or to an awaitable of it. HTTP/2, streams, compression and WebSockets are not supported. Requests that are too
large or too slow are refused (`connection.py`), and a client with many connections cannot block others
(`connection_limiter.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.telemetry.connection import Connection
from kgwe.telemetry.connection_limiter import ConnectionLimiter, Limits
from kgwe.telemetry.messages import JSON, TEXT, Reply, Request
from kgwe.telemetry.tls import Files, ReloadingContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kgwe.telemetry.messages import App

__all__ = [
    "JSON",
    "TEXT",
    "Address",
    "Files",
    "Limits",
    "PortTaken",
    "ReloadingContext",
    "Reply",
    "Request",
    "bind",
    "serving",
]


log = structlog.get_logger(__name__)

_BACKLOG: Final = 100
_ACCEPT_PAUSE_S: Final = 1.0


class PortTaken(errors.Permanent):
    """Raised if the address is already in use or cannot be bound."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `:8080`, `0.0.0.0:8080` or `[::]:8080`; port 0 picks a free port."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
            raise errors.Permanent(f"invalid address {text!r}: expected HOST:PORT or :PORT, such as :8080")
        return cls(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - probes come from the kubelet's address

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(address: Address) -> socket.socket:
    """Bind the address without accepting connections yet; raise PortTaken if it is not available."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
    except OSError as exc:
        sock.close()
        raise _port_error(address, exc) from exc
    return sock


def _port_error(address: Address, exc: OSError) -> PortTaken:
    return PortTaken(f"cannot listen on {address}: {exc.strerror or exc}")


@contextlib.asynccontextmanager
async def serving(
    app: App,
    address: Address,
    *,
    tls: ReloadingContext | None = None,
    limits: Limits | None = None,
    sock: socket.socket | None = None,
) -> AsyncIterator[int]:
    """Serve `app` while the context is open, with TLS if certificates are given; yield the port.

    `sock` is an address from `bind`; it is closed at the end.
    """
    with sock or bind(address) as listening:
        limiter = ConnectionLimiter(app, limits or Limits(), tls)
        try:
            stop = await (_listen_securely(listening, limiter, tls) if tls else _listen(listening, limiter))
        except OSError as exc:
            raise _port_error(address, exc) from exc
        try:
            yield listening.getsockname()[1]
        finally:
            stop()
            await limiter.finish()


async def _listen(sock: socket.socket, limiter: ConnectionLimiter) -> Callable[[], None]:
    """Accept connections; return a function that stops it."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(limiter), sock=sock)
    return server.close


async def _listen_securely(
    sock: socket.socket, limiter: ConnectionLimiter, tls: ReloadingContext
) -> Callable[[], None]:
    """Accept TLS connections. They are counted before their handshake, and each gets the newest certificates.

    The event loop's own server supports neither.
    """
    loop = asyncio.get_running_loop()
    sock.settimeout(0)
    sock.listen(_BACKLOG)

    def accept() -> None:
        for _ in range(_BACKLOG):
            try:
                accepted, peer = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:  # out of file descriptors or memory: retry later
                log.warning("accept_failed", error=str(exc))
                loop.remove_reader(sock)
                loop.call_later(_ACCEPT_PAUSE_S, listen)
                return
            accepted.settimeout(0)
            connection = Connection(limiter, peer[0])
            if limiter.admit(connection):
                connection.start_tls(accepted, tls.context())
            else:
                accepted.close()
                connection.connection_lost(None)

    def listen() -> None:
        if not limiter.stopping:
            loop.add_reader(sock, accept)

    def stop() -> None:
        limiter.stopping = True
        loop.remove_reader(sock)

    listen()
    return stop

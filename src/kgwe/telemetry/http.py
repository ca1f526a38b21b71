"""An HTTP/1.1 server for short questions and answers: probes, metrics, and kube-scheduler's calls.

    bytes → parser → Request → the application → Reply → bytes, all in one callback of the event loop

Written for these alone, because a general server spends more time on generality than the answers take. An application
is a function of a request that returns its reply, or an awaitable of it. Left out on purpose: HTTP/2, streams,
compression, WebSockets. What is larger, slower or stranger than what is asked here is turned away (`connection.py`),
and many clients, or one with many connections, cannot keep others from being answered (`connection_limiter.py`).
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
    """The address cannot be listened on."""


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

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(address: Address) -> socket.socket:
    """The address as ours, though nothing is accepted there yet; PortTaken when it is not to be had."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
    except OSError as exc:
        sock.close()
        raise _taken(address, exc) from exc
    return sock


def _taken(address: Address, exc: OSError) -> PortTaken:
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
    """Serve `app` while the context is open, over TLS with certificates; yields the port (useful when 0 was asked
    for). `sock`: the address as `bind` gave it; it is closed at the end."""
    with sock or bind(address) as listening:
        limiter = ConnectionLimiter(app, limits or Limits(), tls)
        try:
            stop = await (_listen_securely(listening, limiter, tls) if tls else _listen(listening, limiter))
        except OSError as exc:
            raise _taken(address, exc) from exc
        try:
            yield listening.getsockname()[1]
        finally:
            stop()
            await limiter.finish()


async def _listen(sock: socket.socket, limiter: ConnectionLimiter) -> Callable[[], None]:
    """Accept connections; returns what ends that."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(limiter), sock=sock)
    return server.close


async def _listen_securely(
    sock: socket.socket, limiter: ConnectionLimiter, tls: ReloadingContext
) -> Callable[[], None]:
    """The same over TLS. Connections are counted when they are accepted, not when their handshake is over, and each
    gets the newest certificates: the event loop's own server offers neither."""
    loop = asyncio.get_running_loop()
    sock.settimeout(0)
    sock.listen(_BACKLOG)

    def accept() -> None:
        for _ in range(_BACKLOG):
            try:
                accepted, peer = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:  # no more files, or no memory: go on when there are some
                log.warning("accept_failed", error=str(exc))
                loop.remove_reader(sock)
                loop.call_later(_ACCEPT_PAUSE_S, listen)
                return
            accepted.settimeout(0)
            connection = Connection(limiter, peer[0])
            if limiter.admit(connection):
                connection.secure(accepted, tls.context())
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

"""Metrics and probes over HTTP: /metrics, /healthz, /readyz.

/healthz fails when the process should be restarted, /readyz while it should not be relied on; both say why.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client.exposition import choose_encoder

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import prometheus_client


# Clients of Kubernetes keep idle connections 90 s; closing first would reset a request under way.
_KEEP_ALIVE_S = 120


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


class ProbeApp:
    """The ASGI application."""

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        *,
        live: Callable[[], str | None],
        ready: Callable[[], str | None],
        others: Any = None,
    ) -> None:
        """`others`: the ASGI application for every other path."""
        self._others = others
        self._registry = registry
        self._probes = {"/healthz": live, "/readyz": ready}

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/metrics":
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            encode, content_type = choose_encoder(accept)
            await _reply(send, 200, encode(self._registry), content_type)
        elif path in self._probes:
            problem = self._probes[path]()
            await _reply(send, 503 if problem else 200, f"{problem or 'ok'}\n".encode())
        elif self._others is not None:
            await self._others(scope, receive, send)
        else:
            await _reply(send, 404, b"not found: try /metrics, /healthz or /readyz\n")


async def _reply(
    send: Callable[[Any], Awaitable[None]], status: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process decides when to stop, not the server inside it."""
        yield


@contextlib.asynccontextmanager
async def serving(app: Any, address: Address, *, certificate: str = "", key: str = "") -> Any:
    """Serve `app` while the context is open, over TLS when there is a certificate; yields the port (useful when 0 was
    asked for)."""
    config = uvicorn.Config(
        app,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
        host=address.host,
        port=address.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.create_server((address.host, address.port), family=family)
    except OSError as exc:
        raise errors.Permanent(f"cannot listen on {address.host}:{address.port}: {exc.strerror}") from exc
    task = asyncio.create_task(server.serve([sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        sock.close()

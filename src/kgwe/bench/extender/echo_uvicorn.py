"""The echo of `echo.py` on uvicorn (httptools, uvloop): the baseline for our own HTTP server.

python -m kgwe.bench.extender.echo_uvicorn PORT [CERTIFICATES]
"""

from __future__ import annotations

import importlib.util
import inspect
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgwe.bench.extender import echo
from kgwe.local.cluster import extender as local_extender
from kgwe.local.cluster.certificates import Certificates
from kgwe.local.host.ports import LOOPBACK
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from kgwe.telemetry.messages import App

    Message = MutableMapping[str, Any]
    Asgi = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

# The idle timeout of KGWE's own server: kube-scheduler pauses between pods.
_KEEP_ALIVE_S = 120


def is_installed() -> bool:
    """Return whether uvicorn can be imported; it is a development dependency."""
    return importlib.util.find_spec("uvicorn") is not None


def wrap_asgi(app: App) -> Asgi:
    """Return `app` as an ASGI application."""

    async def serve(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        found = app(http.Request(scope["method"], scope["path"], scope["headers"], body, too_large=False))
        reply = await found if inspect.isawaitable(found) else found
        headers = [
            (b"content-type", reply.content_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    return serve


def serve(port: int, certificates: Path | None = None) -> None:
    """Serve until SIGTERM; with TLS if a directory with certificates of a local cluster is given."""
    import uvicorn  # noqa: PLC0415 - a development dependency

    tls: dict[str, Any] = {}
    if certificates is not None:
        files = local_extender.server_files(Certificates(certificates))
        tls = {
            "ssl_certfile": str(files.certificate),
            "ssl_keyfile": str(files.key),
            "ssl_ca_certs": str(files.authority),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
    uvicorn.run(
        wrap_asgi(echo.build_app()),
        host=LOOPBACK,
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        date_header=False,
        **tls,
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]), *map(Path, sys.argv[2:]))

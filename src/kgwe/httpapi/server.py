"""Serves an application by uvicorn, with TLS. New certificates are used without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from kgwe import errors
from kgwe.httpapi.connections import MOST_CONNECTIONS, GuardedConnection
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from kgwe.telemetry.tls import Files

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S: Final = 10.0
_KEEP_ALIVE_S: Final = 30
_GRACE_S: Final = 5


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_address(address: http.Address, files: Files | None, name: str) -> None:
    """Refuse an address that other machines reach without TLS: tokens would be readable on the way."""
    if files is None and not address.is_loopback:
        raise errors.Permanent(
            f"settings: {name} {address} can be reached by other machines, which needs a certificate and a key;"
            f" without them only a loopback address is served, such as 127.0.0.1:{address.port}"
        )


@contextlib.asynccontextmanager
async def serving(
    app: Any, address: http.Address, files: Files | None, *, client_authority: Path | None = None
) -> AsyncIterator[int]:
    """Serve the application while the context is open; yield the port.

    `client_authority`: clients may show a certificate that it signed; the application gets it as `state.peer`.
    """
    options: dict[str, Any] = {}
    if files is not None:
        files.context()  # a clear error before anything listens
        options = {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
        if client_authority is not None:
            options |= {"ssl_ca_certs": str(client_authority), "ssl_cert_reqs": ssl.CERT_OPTIONAL}
    with http.bind(address) as sock:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=GuardedConnection,
            ws="none",
            # The address of a client is that of its connection: a header is a claim.
            proxy_headers=False,
            # A connection that makes room for another counts until it is closed.
            limit_concurrency=2 * MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
            server_header=False,
            **options,
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[sock]))
        reloading = asyncio.create_task(_reload(config, files)) if files is not None else None
        try:
            while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            yield sock.getsockname()[1]
        finally:
            if reloading is not None:
                reloading.cancel()
            server.should_exit = True
            await running


async def _reload(config: uvicorn.Config, files: Files) -> None:
    """Load certificates again when the files change; a pair that does not match yet is left alone."""
    stamp = files.stamp()
    while True:
        await asyncio.sleep(_LOOK_AGAIN_S)
        if (found := files.stamp()) and found != stamp and config.ssl is not None:
            try:
                config.ssl.load_cert_chain(files.certificate, files.key)
                stamp = found
                log.info("api_certificate_loaded")
            except OSError as exc:
                log.warning("api_certificate_not_loaded", error=str(exc))

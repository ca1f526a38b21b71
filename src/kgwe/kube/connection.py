"""From a kubeconfig or a pod's service account to an HTTP client that is allowed in.

lightkube reads the configuration, the certificates, the tokens (with rotation) and the credential plugins;
here it gets the connection settings that watching needs, and mistakes in the file a clear name.
"""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from kgwe import errors

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from lightkube.config.kubeconfig import SingleConfig

TIMEOUT = httpx2.Timeout(15.0, connect=5.0)
# One slow watch must not starve writes: watches hold a connection each for minutes.
_LIMITS = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=120.0)

# A peer that vanished without a word (a dead machine, a forgotten NAT entry) is found out in half a minute, on an idle
# watch as much as under a request waiting for its answer.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}  # s, s, times, ms
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, k), v) for k, v in _KEEPALIVE.items() if hasattr(socket, k)),
]


class _Transport(httpx2.AsyncHTTPTransport):
    """httpx2's own, over a pool that is given keep-alive and closes what it opened."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify)
        # httpx2 has no argument for the network backend, httpcore2's pool has.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=verify,
            max_connections=_LIMITS.max_connections,
            max_keepalive_connections=_LIMITS.max_keepalive_connections,
            keepalive_expiry=_LIMITS.keepalive_expiry,
            socket_options=_SOCKET_OPTIONS,
            network_backend=_Backend(),
        )


class _Backend(httpcore2.AnyIOBackend):
    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(*args, **kwargs))


class _Stream(httpcore2.AsyncNetworkStream):
    """A TCP stream whose socket is closed when the TLS handshake on it is cancelled.

    httpcore2 closes it when the handshake fails, not when it is cancelled; a client that gives up on calls, as ours
    does whenever a watch makes way for a list, would lose a socket now and then.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._inner.start_tls(*args, **kwargs)
        except BaseException:
            await self._inner.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore2's
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore2's
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def connect(kubeconfig: Path | str | None, *, context: str | None, user_agent: str) -> tuple[httpx2.AsyncClient, str]:
    """The client and the namespace that the configuration names; Permanent when it cannot be used."""
    try:
        config = _load(kubeconfig, context)
        params: dict[str, Any] = ConnectionParams(timeout=TIMEOUT).httpx_params(config)
    except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        # lightkube lets some mistakes in the file surface as whatever they break.
        why = str(exc) if isinstance(exc, ConfigError | OSError) else f"{type(exc).__name__}: {exc}"
        raise errors.Permanent(
            f"reading kubeconfig: {why}; pass --kubeconfig, set KUBECONFIG or run inside a cluster"
        ) from exc
    if not _through_proxy(config.cluster.server):
        params["transport"] = _Transport(params["verify"])
    # The API server compresses big replies only (lists, never watches). Listing 1,500 pods that halves the CPU here,
    # where every few KB cost a pass through TLS and the HTTP parser, and costs none more there.
    headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
    return httpx2.AsyncClient(**params, limits=_LIMITS, headers=headers), config.namespace


def _load(kubeconfig: Path | str | None, context: str | None) -> SingleConfig:
    loaded = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
    config = loaded.get(context)
    if config is None:
        raise ConfigError("no context is chosen")
    if config.user is None:
        raise ConfigError(f"context {config.context_name} names no user")
    return config


def _through_proxy(server: str) -> bool:
    """Whether the environment sends this server's traffic through a proxy (httpx2 sees to it if so)."""
    url = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    return bool(named) and not urllib.request.proxy_bypass(url.hostname or "")

"""From a kubeconfig or a pod's service account to a server that lets us in.

lightkube reads the configuration, the certificates, the tokens (with rotation) and the credential plugins; mistakes in
the file get a clear name here. Requests go over our own connections (`Wire`), which cost a fraction of httpx2's; where
the environment puts a proxy before the server, httpx2 carries them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import re
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from kgwe import errors
from kgwe.kube.transport.pool import Pool, Server, Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from lightkube.config.kubeconfig import SingleConfig

    from kgwe.kube.transport.http1 import Reply
    from kgwe.kube.transport.pool import Stream

# One slow watch must not starve writes: watches hold a connection each for minutes.
_CONNECTIONS = 64
TIMEOUTS = Timeouts()
_TIMEOUT = httpx2.Timeout(TIMEOUTS.read, connect=TIMEOUTS.connect)
_LIMITS = httpx2.Limits(
    max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=TIMEOUTS.idle
)

#: accepted unless somebody wants something else: the API server answers in JSON then
ANYTHING = "*/*"

_PORTS = {"http": 80, "https": 443}
# Nearly every path; others are quoted.
_PLAIN = re.compile(r"[A-Za-z0-9/._~:-]*")
_SAFE = "/:@!$&'()*+,;=%~"
# What would end a header line early, or is no text of HTTP.
_BAD_HEADER = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class Wire:
    """Requests to one server as one user."""

    def __init__(self, pool: Pool, url: urllib.parse.SplitResult, auth: httpx2.Auth | None, user_agent: str) -> None:
        self._pool = pool
        self._url = url.geturl()
        self._prefix = url.path.rstrip("/")
        # The API server compresses big lists only, and those come seldom: not worth a decompressor here.
        common = {"Host": url.netloc, "User-Agent": user_agent, "Accept-Encoding": "identity"}
        self._common = b"".join(_header(name, value) for name, value in common.items())
        self._auth = auth
        self._authorization = b""  # as last given out by `auth`
        self._renewing = asyncio.Lock()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        accept: str = ANYTHING,
    ) -> Reply:
        start = self._start(method, path, params, accept)
        rest = b"\r\n"
        if content is not None:
            rest = f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        sent_as = await self._authorized()
        reply = await self._pool.request(start + sent_as + rest)
        if reply.status_code == http.HTTPStatus.UNAUTHORIZED and await self._renew(sent_as):
            reply = await self._pool.request(start + self._authorization + rest)
        return reply

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ANYTHING
    ) -> AsyncIterator[Stream]:
        """A GET whose answer is read as it comes; `silence_s` is the longest silence tolerated."""
        start = self._start("GET", path, params, accept)
        sent_as = await self._authorized()
        async with contextlib.AsyncExitStack() as stack:
            first = self._pool.stream(start + sent_as + b"\r\n", silence_s=silence_s)
            stream = await stack.enter_async_context(first)
            if stream.status_code == http.HTTPStatus.UNAUTHORIZED and await self._renew(sent_as):
                await stack.aclose()
                again = self._pool.stream(start + self._authorization + b"\r\n", silence_s=silence_s)
                stream = await stack.enter_async_context(again)
            yield stream

    async def close(self) -> None:
        await self._pool.close()

    def _start(self, method: str, path: str, params: Mapping[str, str] | None, accept: str) -> bytes:
        target = path if _PLAIN.fullmatch(path) else urllib.parse.quote(path, safe=_SAFE)
        query = f"?{urllib.parse.urlencode(params, quote_via=urllib.parse.quote)}" if params else ""
        return f"{method} {self._prefix}{target}{query} HTTP/1.1\r\nAccept: {accept}\r\n".encode() + self._common

    async def _authorized(self) -> bytes:
        if self._auth is not None and not self._authorization:
            await self._renew(b"")
        return self._authorization

    async def _renew(self, refused: bytes) -> bool:
        """Whether there are other credentials than those refused; many calls may be refused, one asks for new ones."""
        async with self._renewing:
            if self._auth is not None and self._authorization == refused:
                self._authorization = await _credentials(self._auth, self._url, afresh=bool(refused)) or refused
            return self._authorization != refused


async def _credentials(auth: httpx2.Auth, url: str, *, afresh: bool) -> bytes:
    """What `auth` puts on a request; afresh, what it puts on one that was refused (nothing if it gives up then)."""
    flow = auth.async_auth_flow(httpx2.Request("GET", url))
    try:
        request = await anext(flow)
        if afresh:
            request = await flow.asend(httpx2.Response(http.HTTPStatus.UNAUTHORIZED, request=request))
    except StopAsyncIteration:
        return b""
    except (OSError, ValueError, LookupError, TypeError) as exc:
        # No such program, or not a word of it understood.
        raise ConfigError(f"asking for credentials: {type(exc).__name__}: {exc}") from exc
    finally:
        await flow.aclose()
    return _header("Authorization", request.headers.get("Authorization", ""))


def _header(name: str, value: str) -> bytes:
    if _BAD_HEADER.search(value):
        raise ConfigError(f"{name} has characters that no header can carry")
    return f"{name}: {value}\r\n".encode("latin-1")


def connect(
    kubeconfig: Path | str | None, *, context: str | None, user_agent: str
) -> tuple[httpx2.AsyncClient, Wire | None, str]:
    """Two ways to the server (the second unless a proxy is in between) and the namespace that the configuration names.

    Nothing is opened before the first request of each. Permanent when the configuration cannot be used.
    """
    try:
        config = _load(kubeconfig, context)
        params: dict[str, Any] = ConnectionParams(timeout=_TIMEOUT).httpx_params(config)
        wire = None if _through_proxy(config.cluster.server) else _wire(params, user_agent)
    except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        # lightkube lets some mistakes in the file surface as whatever they break.
        why = str(exc) if isinstance(exc, ConfigError | OSError) else f"{type(exc).__name__}: {exc}"
        raise errors.Permanent(
            f"reading kubeconfig: {why}; pass --kubeconfig, set KUBECONFIG or run inside a cluster"
        ) from exc
    headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
    return httpx2.AsyncClient(**params, limits=_LIMITS, headers=headers), wire, config.namespace


def _wire(params: Mapping[str, Any], user_agent: str) -> Wire | None:
    url = urllib.parse.urlsplit(params["base_url"])
    if url.scheme not in _PORTS or not url.hostname or url.username or url.query:
        return None  # for httpx2 to make sense of, or not
    server = Server(url.hostname, url.port or _PORTS[url.scheme], params["verify"] if url.scheme == "https" else None)
    return Wire(Pool(server, size=_CONNECTIONS, timeouts=TIMEOUTS), url, params["auth"], user_agent)


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

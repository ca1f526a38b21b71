"""`Http1Transport`: requests over our own HTTP/1.1 connections (`kgwe bench client` compares them with httpx2)."""

from __future__ import annotations

import asyncio
import contextlib
import http
import re
import urllib.parse
from typing import TYPE_CHECKING

import httpx2
from lightkube.core.exceptions import ConfigError

from kgwe.kube.transport.transport import ANYTHING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from kgwe.kube.transport.http1 import Reply
    from kgwe.kube.transport.pool import ConnectionPool, Stream

# Nearly every path; others are quoted.
_PLAIN = re.compile(r"[A-Za-z0-9/._~:-]*")
_SAFE = "/:@!$&'()*+,;=%~"
# Characters that would end a header line early, or that HTTP does not allow.
_BAD_HEADER = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class Http1Transport:
    """Implements `Transport` over a pool of our own connections."""

    def __init__(
        self, pool: ConnectionPool, url: urllib.parse.SplitResult, auth: httpx2.Auth | None, user_agent: str
    ) -> None:
        self._pool = pool
        self.url = url.geturl()
        self._prefix = url.path.rstrip("/")
        # The API server compresses only large lists, which are rare: a decompressor does not pay.
        common = {"Host": url.netloc, "User-Agent": user_agent, "Accept-Encoding": "identity"}
        self._common = b"".join(_encode_header(name, value) for name, value in common.items())
        self._auth = auth
        self._authorization = b""  # as `auth` last provided it
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
        head = self._encode_head(method, path, params, accept)
        rest = b"\r\n"
        if content is not None:
            rest = f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        sent = await self._authorization_header()
        reply = await self._pool.request(head + sent + rest)
        if reply.status_code == http.HTTPStatus.UNAUTHORIZED and await self._renew_credentials(sent):
            reply = await self._pool.request(head + self._authorization + rest)
        return reply

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ANYTHING
    ) -> AsyncIterator[Stream]:
        head = self._encode_head("GET", path, params, accept)
        sent = await self._authorization_header()
        async with contextlib.AsyncExitStack() as stack:
            first = self._pool.stream(head + sent + b"\r\n", silence_s=silence_s)
            stream = await stack.enter_async_context(first)
            if stream.status_code == http.HTTPStatus.UNAUTHORIZED and await self._renew_credentials(sent):
                await stack.aclose()
                again = self._pool.stream(head + self._authorization + b"\r\n", silence_s=silence_s)
                stream = await stack.enter_async_context(again)
            yield stream

    async def close(self) -> None:
        await self._pool.close()

    def _encode_head(self, method: str, path: str, params: Mapping[str, str] | None, accept: str) -> bytes:
        target = path if _PLAIN.fullmatch(path) else urllib.parse.quote(path, safe=_SAFE)
        query = f"?{urllib.parse.urlencode(params, quote_via=urllib.parse.quote)}" if params else ""
        return f"{method} {self._prefix}{target}{query} HTTP/1.1\r\nAccept: {accept}\r\n".encode() + self._common

    async def _authorization_header(self) -> bytes:
        if self._auth is not None and not self._authorization:
            await self._renew_credentials(b"")
        return self._authorization

    async def _renew_credentials(self, refused: bytes) -> bool:
        """Return whether newer credentials than the refused ones exist. Concurrent calls share one renewal."""
        async with self._renewing:
            if self._auth is not None and self._authorization == refused:
                self._authorization = await _read_credentials(self._auth, self.url, renew=bool(refused)) or refused
            return self._authorization != refused


async def _read_credentials(auth: httpx2.Auth, url: str, *, renew: bool) -> bytes:
    """Return the header that `auth` adds to a request; with `renew`, the one it adds after a 401 (empty: none)."""
    flow = auth.async_auth_flow(httpx2.Request("GET", url))
    try:
        request = await anext(flow)
        if renew:
            request = await flow.asend(httpx2.Response(http.HTTPStatus.UNAUTHORIZED, request=request))
    except StopAsyncIteration:
        return b""
    except (OSError, ValueError, LookupError, TypeError) as exc:
        # The credential plugin is missing, or its output is unreadable.
        raise ConfigError(f"reading credentials: {type(exc).__name__}: {exc}") from exc
    finally:
        await flow.aclose()
    return _encode_header("Authorization", request.headers.get("Authorization", ""))


def _encode_header(name: str, value: str) -> bytes:
    if _BAD_HEADER.search(value):
        raise ConfigError(f"{name} has characters that no header can carry")
    return f"{name}: {value}\r\n".encode("latin-1")

"""`HttpxTransport`: requests through httpx2, used where a proxy stands before the API server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx2
from lightkube.core.exceptions import ConfigError

from kgwe.kube.transport.transport import ANYTHING, TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping


class HttpxTransport:
    """Implements `Transport` with an httpx2 client, which it closes."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return str(self._client.base_url)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        accept: str = ANYTHING,
    ) -> httpx2.Response:
        headers = {"Accept": accept} if content is None else {"Accept": accept, "Content-Type": content_type}
        with _credential_errors():
            return await self._client.request(method, path, content=content, params=params, headers=headers)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ANYTHING
    ) -> AsyncIterator[httpx2.Response]:
        timeout = httpx2.Timeout(TIMEOUTS.connect, read=silence_s)
        streaming = self._client.stream("GET", path, params=dict(params), timeout=timeout, headers={"Accept": accept})
        async with contextlib.AsyncExitStack() as stack:
            with _credential_errors():
                response = await stack.enter_async_context(streaming)
            yield response

    async def close(self) -> None:
        await self._client.aclose()


@contextlib.contextmanager
def _credential_errors() -> Iterator[None]:
    """Translate what a missing credential plugin, an unreadable token or a bad header raise inside httpx2."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise ConfigError(f"reading credentials: {type(exc).__name__}: {exc}") from exc

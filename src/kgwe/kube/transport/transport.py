"""The contract of a transport: how the client sends requests to the API server.

Two classes implement it. `Http1Transport` is our own and the default. `HttpxTransport` uses httpx2 and is taken where
the environment names a proxy. `tests/unit/kube/transport/test_transport.py` runs the same contract test over both.

Every transport guarantees:

- a failure on the way to the server or back is an `httpx2.TransportError`; bad credentials are a `ConfigError`;
- a reply of any status is returned, never raised;
- a request with 401 as its reply is repeated once if newer credentials exist;
- a write is never sent twice for another reason;
- a stream ends its connection when it is left early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

#: the default of Accept: the API server replies in JSON
ANYTHING = "*/*"

#: One slow watch must not starve writes: each watch occupies a connection for minutes.
MAX_CONNECTIONS = 64


class Timeouts(NamedTuple):
    """Limits in seconds."""

    connect: float = 5.0
    read: float = 15.0  # the longest silence
    total: float = 75.0  # of a request that is no stream; the API server itself gives up after 60
    idle: float = 60.0  # of a kept connection; the API server hangs up after 90


TIMEOUTS = Timeouts()


class Response(Protocol):
    """A complete reply."""

    @property
    def status_code(self) -> int: ...

    @property
    def content(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class StreamingResponse(Protocol):
    """A reply whose body is read as it arrives."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aread(self) -> bytes: ...


class Transport(Protocol):
    """Requests to one server as one user."""

    @property
    def url(self) -> str:
        """The base URL of the server."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        accept: str = ANYTHING,
    ) -> Response:
        """Send one request and return the complete reply."""

    def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ANYTHING
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Send a GET and read its reply as it arrives; `silence_s` is the longest pause between two parts."""

    async def close(self) -> None:
        """Close every connection, including those in use."""

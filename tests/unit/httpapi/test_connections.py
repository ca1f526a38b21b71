"""Slow clients of the API, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from kgwe.httpapi.connections import GuardedConnection
from kgwe.httpapi.server import serving
from kgwe.telemetry import http

if TYPE_CHECKING:
    import pytest

HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n\r\n"
seen: list[str] = []


async def app(scope: Any, receive: Any, send: Any) -> None:
    del receive
    seen.append(scope["client"][0])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def ask(port: int, more: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HALF + more + CLOSE)
    answer = await reader.read()
    writer.close()
    return answer


async def read_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_half_sent_requests_keep_no_client_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedConnection, "most", 8)
    async with serving(app, http.Address("127.0.0.1", 0), None) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in slow:
            writer.write(HALF)
        for _ in range(3):
            assert b"hello" in await ask(port)
        for _, writer in slow:
            writer.close()


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedConnection, "request_s", 0.1)
    async with serving(app, http.Address("127.0.0.1", 0), None) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HALF)
        assert await read_end(reader) == b""
        writer.close()
        # The same after a request: the next one has to come in time.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HALF + b"\r\n" + HALF)
        assert (await read_end(reader)).count(b"hello") == 1
        writer.close()


async def test_a_header_does_not_change_the_address_of_a_client() -> None:
    seen.clear()
    async with serving(app, http.Address("127.0.0.1", 0), None) as port:
        assert b"hello" in await ask(port, b"X-Forwarded-For: 10.0.0.9\r\n")
    assert seen == ["127.0.0.1"]

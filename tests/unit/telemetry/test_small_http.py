"""The small server answers scrapes, and turns away what is no scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from kgwe import errors
from kgwe.telemetry import small_http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


async def app(scope: dict[str, Any], _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    if scope["path"] == "/broken":
        raise RuntimeError("broken")
    body = f"{scope['path']} {scope['query_string'].decode()}".encode() * (200_000 if scope["path"] == "/big" else 1)
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with small_http.serving(app, "127.0.0.1", 0) as listening:
        yield listening


async def raw(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_connection_serves_one_request_after_another(port):
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for path in ("/metrics", "/a%20b?x=1", "/metrics"):
            reply = await client.get(path)
            assert reply.status_code == 200
        assert (await client.get("/a%20b?x=1")).text == "/a b x=1"
        assert len((await client.get("/big")).content) == 10**6
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")


async def test_an_application_that_breaks_is_answered_for(port):
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/broken")).status_code == 500
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"400"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET \xff / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
    ],
)
async def test_what_is_no_scrape_is_turned_away_and_the_connection_closed(port, request_, code):
    assert (await raw(port, request_)).split(b" ", 2)[1] == code


async def test_one_that_hangs_up_disturbs_nobody(port):
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metr")
    writer.close()
    await writer.wait_closed()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_it_ends_though_somebody_is_still_connected():
    async with small_http.serving(app, "127.0.0.1", 0) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_that_is_taken_is_said(port):
    with pytest.raises(errors.Permanent, match=f"cannot listen on 127.0.0.1:{port}"):
        async with small_http.serving(app, "127.0.0.1", port):
            pass

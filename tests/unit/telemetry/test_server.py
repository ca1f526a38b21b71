"""The server answers what is asked of it, and turns away what is no request."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from typing import TYPE_CHECKING

import httpx2
import pytest

from kgwe import errors
from kgwe.local import certificates
from kgwe.telemetry import http
from kgwe.telemetry.http import Reply, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

LARGEST = 100_000
ADDRESS = http.Address("127.0.0.1", 0)


class App:
    """Says what it was asked; /slow only once it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun = asyncio.Event()
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        self.asked.append(request.path)
        match request.path:
            case "/broken":
                raise RuntimeError("broken")
            case "/slow" | "/slow-broken":
                return self._slow(request)
            case "/big":
                return Reply(200, bytes(4_000_000))
            case _ if request.too_large:
                return Reply(413, b"too large")
        return Reply(200, f"{request.method} {request.path} ".encode() + request.body)

    async def _slow(self, request: Request) -> Reply:
        self.begun.set()
        await self.let.wait()
        if request.path == "/slow-broken":
            raise RuntimeError("broken")
        return Reply(200, b"at last")


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def port(app: App) -> AsyncIterator[int]:
    async with http.serving(app, ADDRESS, largest_body=LARGEST) as listening:
        yield listening


@contextlib.asynccontextmanager
async def line(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def raw(port: int, *pieces: bytes) -> bytes:
    """All that is answered until the server hangs up."""
    async with line(port) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read()


async def begun(app: App) -> None:
    while not app.asked:  # noqa: ASYNC110 - bounded by the line's timeout
        await asyncio.sleep(0.001)


def statuses(answered: bytes) -> list[bytes]:
    return [part[:3] for part in answered.split(b"HTTP/1.1 ")[1:]]


# --- what is asked --------------------------------------------------------------------------------------


async def test_a_connection_serves_one_request_after_another(port: int):
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).text == "GET /metrics "
        assert (await client.get("/a%20b?x=1")).text == "GET /a b "
        assert (await client.post("/filter", content=b"x" * LARGEST)).text == "POST /filter " + "x" * LARGEST
        assert len((await client.get("/big")).content) == 4_000_000
        head = await client.head("/metrics")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "14")


async def test_a_request_may_come_byte_by_byte(port: int):
    request = b"POST /filter?x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    answered = await raw(port, *(request[at : at + 1] for at in range(len(request))))
    assert answered.endswith(b"\r\n\r\nPOST /filter abc")


async def test_a_body_may_come_in_chunks(port: int):
    head = b"POST /filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answered = await raw(port, head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\nTrailer: x\r\n\r\n")
    assert answered.endswith(b"POST /filter abcde")


async def test_requests_sent_ahead_are_answered_in_order(port: int, app: App):
    async with line(port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n" + b"GET /next HTTP/1.1\r\n\r\n" * 100)
        await app.begun.wait()
        assert app.asked == ["/slow"]  # the others have to wait
        app.let.set()
        writer.write(b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n")
        answered = await reader.read()
    assert statuses(answered) == [b"200"] * 102
    assert [answered.find(words) for words in (b"at last", b"/next", b"/last")] == sorted(
        answered.find(words) for words in (b"at last", b"/next", b"/last")
    )
    assert app.asked == ["/slow", *["/next"] * 100, "/last"]


async def test_one_that_does_not_read_is_not_answered_further(port: int, app: App):
    async with line(port) as (reader, writer):
        writer.write(b"GET /big HTTP/1.1\r\n\r\n" * 20 + b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n")
        await begun(app)
        async with httpx2.AsyncClient() as other:
            assert (await other.get(f"http://127.0.0.1:{port}/metrics")).status_code == 200
        assert len(app.asked) < 20
        answered = await reader.read()
    assert statuses(answered) == [b"200"] * 21


async def test_one_that_says_no_more_still_hears_the_answer(port: int, app: App):
    async with line(port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
        writer.write_eof()
        await app.begun.wait()
        app.let.set()
        assert (await reader.read()).endswith(b"at last")


async def test_whoever_asks_first_whether_to_send_is_told(port: int):
    async with line(port) as (reader, writer):
        writer.write(b"POST /filter HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.readuntil(b"abc")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_an_application_that_breaks_is_answered_for(port: int, app: App):
    app.let.set()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/broken")).status_code == 500
        assert (await client.get("/slow-broken")).status_code == 500
        assert (await client.get("/metrics")).status_code == 200


# --- what is none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),  # TLS where there is none
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: \x00\r\n\r\n", b"400"),
        (b"GET \xff / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /%ff HTTP/1.1\r\n\r\n", b"400"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\nhello", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 3_000_000, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 500_000, b"431"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 5_000_000, b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 500_000, b"413"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"200"),
    ],
)
async def test_what_is_no_request_is_turned_away_and_the_connection_closed(port: int, request_: bytes, code: bytes):
    answered = await raw(port, request_)
    assert statuses(answered) == [code]
    assert b"\r\nconnection: close\r\n" in answered


async def test_nonsense_behind_a_request_does_not_take_its_answer_away(port: int, app: App):
    async with line(port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
        await app.begun.wait()
        writer.write(b"nonsense\r\n\r\n")
        app.let.set()
        answered = await reader.read()
    assert statuses(answered)[0] == b"200"
    assert statuses(answered)[1:] in ([], [b"400"])


@pytest.mark.parametrize("sent", [b"", b"GET /metr", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"])
async def test_one_that_hangs_up_disturbs_nobody(port: int, sent: bytes):
    async with line(port) as (_, writer):
        writer.write(sent)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_what_was_begun_is_finished_though_the_client_has_gone(port: int, app: App):
    async with line(port) as (_, writer):
        writer.write(b"GET /slow-broken HTTP/1.1\r\n\r\n")
        await app.begun.wait()
        writer.transport.abort()
    app.let.set()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        (b"", []),
        (b"GET / HTTP/1.1\r\nX: ", [b"408"]),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", [b"408"]),
        (b"GET / HTTP/1.1\r\n\r\n", [b"200"]),
        (b"GET /big HTTP/1.1\r\n\r\n" * 9, None),
    ],
)
async def test_one_that_is_silent_is_not_waited_for_for_ever(
    app: App, monkeypatch: pytest.MonkeyPatch, sent: bytes, codes: list[bytes] | None
):
    for name in ("_REQUEST_S", "_IDLE_S", "_LINGER_S"):
        monkeypatch.setattr(http, name, 0.05)
    async with http.serving(app, ADDRESS) as port, line(port) as (reader, writer):
        writer.write(sent)
        if codes is not None:
            assert statuses(await reader.read()) == codes
        else:  # it does not read until the server has given up
            await begun(app)
            await asyncio.sleep(0.5)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < 9 * 4_000_000


async def test_more_connections_than_anybody_needs_are_turned_away(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 2)
    async with http.serving(app, ADDRESS) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            reader, writer = await stack.enter_async_context(line(port))
            writer.write(b"GET /a HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"GET /a ")
        reader, _ = await stack.enter_async_context(line(port))
        assert await reader.read() == b""


# --- beginning and end ----------------------------------------------------------------------------------


async def test_it_ends_though_somebody_is_still_connected(app: App):
    async with http.serving(app, ADDRESS) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_answers_under_way_are_given_before_it_ends(app: App):
    async with contextlib.AsyncExitStack() as stack:
        async with http.serving(app, ADDRESS) as port:
            reader, writer = await stack.enter_async_context(line(port))
            writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
            await app.begun.wait()
            asyncio.get_running_loop().call_later(0.05, app.let.set)
        answered = await reader.read()
    assert answered.endswith(b"at last")
    assert b"connection: close" in answered


async def test_an_answer_that_never_comes_does_not_keep_it_from_ending(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "_GRACE_S", 0.05)
    async with contextlib.AsyncExitStack() as stack:
        async with http.serving(app, ADDRESS) as port:
            reader, writer = await stack.enter_async_context(line(port))
            writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
            await app.begun.wait()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_a_port_that_is_taken_is_said(port: int, app: App):
    with pytest.raises(errors.Permanent, match=f"cannot listen on 127.0.0.1:{port}"):
        async with http.serving(app, http.Address("127.0.0.1", port)):
            pass


async def test_over_tls(app: App, tmp_path: Path):
    made = certificates.ensure(tmp_path, dt.datetime.now(dt.UTC))
    pair = made.pair(certificates.SERVER)
    files = {"certificate": str(pair.certificate), "key": str(pair.key)}
    trust = ssl.create_default_context(cafile=made.authority)
    async with (
        http.serving(app, ADDRESS, **files, largest_body=LARGEST) as port,
        httpx2.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trust) as client,
    ):
        assert (await client.post("/filter", content=b"abc")).text == "POST /filter abc"
        assert (await client.post("/filter", content=b"x" * (LARGEST + 1))).status_code == 413
        assert len((await client.get("/big")).content) == 4_000_000
        async with line(port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")  # without
            with contextlib.suppress(ConnectionError):
                assert b"200" not in await reader.read()
        assert (await client.get("/metrics")).status_code == 200


async def test_a_certificate_that_cannot_be_read_is_said(app: App, tmp_path: Path):
    with pytest.raises(errors.Permanent, match=r"cannot use certificate .*tls\.crt"):
        async with http.serving(app, ADDRESS, certificate=str(tmp_path / "tls.crt"), key="tls.key"):
            pass

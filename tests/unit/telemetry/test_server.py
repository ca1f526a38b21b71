"""The server answers what is asked of it, and turns away what is no request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.telemetry import connection, connection_limiter, http
from kgwe.telemetry.http import Reply, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

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
    async with http.serving(app, ADDRESS, limits=http.Limits(body=LARGEST)) as listening:
        yield listening


@contextlib.asynccontextmanager
async def line(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
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
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n" + b"GET /next HTTP/1.1\r\n\r\n" * 7)
        await app.begun.wait()
        assert app.asked == ["/slow"]  # the others have to wait
        app.let.set()
        writer.write(b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n")
        answered = await reader.read()
    assert statuses(answered) == [b"200"] * 9
    assert [answered.find(words) for words in (b"at last", b"/next", b"/last")] == sorted(
        answered.find(words) for words in (b"at last", b"/next", b"/last")
    )
    assert app.asked == ["/slow", *["/next"] * 7, "/last"]


async def test_other_clients_are_answered_between_two_requests_sent_ahead(port: int, app: App):
    """Ten clients send eight requests each in one write; the last to connect is not answered after all of them."""
    async with contextlib.AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(line(port)) for _ in range(10)]
        for number, (_, writer) in enumerate(lines):
            writer.write(f"GET /{number} HTTP/1.1\r\n\r\n".encode() * 8 + b"GET /end HTTP/1.0\r\n\r\n")
        answered = [await reader.read() for reader, _ in lines]

    assert all(statuses(each) == [b"200"] * 9 for each in answered)
    # One request per connection and turn: no connection has two answers before another that was ready has one.
    assert all(one != other or one == "/end" for one, other in itertools.pairwise(app.asked))


async def test_one_that_sends_too_many_ahead_is_answered_some_and_closed(port: int, app: App):
    answered = await raw(port, b"GET /metrics HTTP/1.1\r\n\r\n" * 400)

    assert statuses(answered) == [b"200"] * 9, "one that is answered at once, and eight that wait"
    assert [part.count(b"connection: close") for part in answered.split(b"HTTP/1.1 ")[1:]] == [0] * 8 + [1]
    assert len(app.asked) == 9
    assert await asked(port) == 200


async def test_requests_sent_ahead_by_one_that_says_no_more_are_answered(port: int):
    async with line(port) as (reader, writer):
        writer.write(b"GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\n")
        writer.write_eof()
        answered = await reader.read()
    assert statuses(answered) == [b"200"] * 2


async def test_requests_sent_ahead_by_one_that_has_gone_are_dropped(port: int, app: App):
    async with line(port) as (_, writer):
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n" + b"GET /next HTTP/1.1\r\n\r\n" * 8)
        await app.begun.wait()
        writer.transport.abort()
    app.let.set()
    assert await asked(port) == 200
    assert app.asked.count("/next") <= 1


async def test_one_that_does_not_read_is_not_answered_further(port: int, app: App):
    async with line(port) as (reader, writer):
        writer.write(b"GET /big HTTP/1.1\r\n\r\n" * 8 + b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n")
        await begun(app)
        async with httpx2.AsyncClient() as other:
            assert (await other.get(f"http://127.0.0.1:{port}/metrics")).status_code == 200
        assert len(app.asked) < 8
        answered = await reader.read()
    assert statuses(answered) == [b"200"] * 9


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
    for name in ("_HEAD_S", "_REQUEST_S", "_IDLE_S", "_LINGER_S"):
        monkeypatch.setattr(connection, name, 0.05)
    async with http.serving(app, ADDRESS) as port, line(port) as (reader, writer):
        writer.write(sent)
        if codes is not None:
            assert statuses(await reader.read()) == codes
        else:  # it does not read until the server has given up
            await begun(app)
            await asyncio.sleep(0.5)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < 9 * 4_000_000


# --- crowds ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def lines(port: int, count: int, sent: bytes) -> AsyncIterator[list[tuple[asyncio.StreamReader, Any]]]:
    """So many connections that have sent that."""
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        for _, writer in made:
            writer.write(sent)
        yield made
    finally:
        for _, writer in made:
            writer.transport.abort()


async def asked(port: int, path: str = "/metrics") -> int:
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code


@pytest.mark.parametrize(
    "sent", [b"", b"POST /filter HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"]
)
async def test_half_sent_requests_lock_nobody_out(port: int, sent: bytes):
    """300 of them: more than there may be connections, from the address of the one that asks."""
    async with line(port) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"GET /a ")
        async with lines(port, 300, sent):
            assert await asked(port) == 200
            writer.write(b"GET /b HTTP/1.1\r\n\r\n")  # a connection that has asked before is kept
            assert b"GET /b " in await reader.readuntil(b"GET /b ")


async def test_one_address_has_no_more_connections_than_its_share(app: App):
    async with http.serving(app, ADDRESS, limits=http.Limits(per_peer=2)) as port, contextlib.AsyncExitStack() as stack:
        held = []
        for _ in range(3):
            reader, writer = await stack.enter_async_context(line(port))
            writer.write(b"GET /a HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"GET /a ")
            held.append((reader, writer))
        with contextlib.suppress(ConnectionError):
            assert await held[0][0].read() == b""  # the one that was idle for longest
        held[1][1].write(b"GET /b HTTP/1.1\r\n\r\n")
        await held[1][0].readuntil(b"GET /b ")


async def test_one_that_is_being_answered_is_never_closed_for_another(app: App):
    async with http.serving(app, ADDRESS, limits=http.Limits(connections=1)) as port, line(port) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n")
        await app.begun.wait()
        async with line(port) as (other, _):
            with contextlib.suppress(ConnectionError):
                assert await other.read() == b""
        app.let.set()
        assert (await reader.read()).endswith(b"at last")


async def test_bodies_that_do_not_come_to_an_end_are_bounded_over_all_connections(app: App):
    limits = http.Limits(body=1_000_000, bodies=3_000_000)
    head = b"POST /filter HTTP/1.1\r\nContent-Length: 999999\r\n\r\n"
    async with (
        http.serving(app, ADDRESS, limits=limits) as port,
        lines(port, 20, head + bytes(900_000)) as made,
        httpx2.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        replies = [asyncio.create_task(reader.read(12)) for reader, _ in made]
        done: set[Any] = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(done) < 17:
                await asyncio.sleep(0.01)
                done = {reply for reply in replies if reply.done()}
        with contextlib.suppress(ConnectionError):
            assert {reply.result() for reply in done} == {b"HTTP/1.1 503"}
        # The largest of the rest makes way for a request that is complete.
        sent = bytes(500_000)
        assert len((await client.post(f"http://127.0.0.1:{port}/filter", content=sent)).content) == len(sent) + 13
        for reply in replies:
            reply.cancel()


async def test_a_request_that_trickles_on_a_connection_that_was_idle_is_cut_off_in_time(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    """The timer was set for the end of the idle time."""
    monkeypatch.setattr(connection, "_HEAD_S", 0.1)
    async with http.serving(app, ADDRESS) as port, line(port) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"GET /a ")
        writer.write(b"GET /b HTTP/1.1\r\nX: ")
        assert statuses(await reader.read()) == [b"408"]


async def test_random_bytes_never_take_the_server_down(port: int):
    """Whole requests with bytes changed, cut and doubled; the server answers the next one."""
    rng = random.Random(11)
    good = b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(bad))
            bad[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 4))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(bad))
        writer.write_eof()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    assert await asked(port) == 200


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
    monkeypatch.setattr(connection_limiter, "_GRACE_S", 0.05)
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

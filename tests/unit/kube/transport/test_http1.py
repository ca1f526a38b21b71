"""One HTTP/1.1 connection against servers that do what servers should not: answers, streams, lines."""

from __future__ import annotations

import asyncio
import random

import httpx2
import pytest
from tests.support.fakes.wire import GET, Peer, answer_all, eventually, get, ok, pooled

from kgwe import errors
from kgwe.kube.transport import http1

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        pytest.param(ok(b"abc"), 200, b"abc", id="with a length"),
        pytest.param(ok(b""), 200, b"", id="empty"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", 200, b"abcde", id="in chunks"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 5\r\n\r\n", 200, b"a", id="with a trailer"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nabc", 200, b"abc", id="until it hangs up"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 200, b"ab", id="of the last century"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="without a body"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"abc"), 200, b"abc", id="after a word of patience"),
        pytest.param(b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\n" * 3 + ok(b"abc"), 200, b"abc", id="after hints"),
        pytest.param(ok(b"no", status="503 Busy"), 503, b"no", id="a refusal"),
    ],
)
@pytest.mark.parametrize("dribbled", [False, True], ids=["at once", "byte by byte"])
async def test_every_way_to_end_an_answer_is_understood(answer, status, body, dribbled):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(*(answer[i : i + 1] for i in range(len(answer))) if dribbled else [answer])

    async with pooled(script) as (pool, _):
        reply = await pool.request(GET)
        async with pool.stream(GET, silence_s=10) as stream:
            streamed = await stream.aread()

    assert (reply.status_code, reply.content) == (status, body)
    assert (stream.status_code, streamed) == (status, body)


async def test_headers_are_those_of_the_final_answer_whatever_their_case():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(
            b"HTTP/1.1 103 Hints\r\nRetry-After: 9\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nretry-after: 5\r\nX-Empty:\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\nRetry-After: 7\r\n\r\n"
        )

    async with pooled(script) as (pool, _):
        headers = (await pool.request(GET)).headers

    assert headers["Retry-After"] == "5"
    assert headers["X-Empty"] == ""


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="another protocol"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x16", id="TLS"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", id="an upgrade"),
        pytest.param(ok(b"abc", "Transfer-Encoding: chunked"), id="two lengths"),
        pytest.param(CHUNKED + b"zz\r\n", id="a chunk of no size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, id="a header without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, id="headers without end"),
        pytest.param(b"HTTP/1.1 102 Wait\r\n\r\n" * 5_000, id="patience without end"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_the_next_request_is_none_the_worse(answer):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(answer if len(bed.peers) == 1 else ok(b"fine"))
        await peer.gone()

    async with pooled(script) as (pool, bed):
        with pytest.raises(httpx2.RemoteProtocolError):
            await pool.request(GET)
        assert (await pool.request(GET)).content == b"fine"
        assert len(bed.peers) == 2


@pytest.mark.parametrize("reset", [False, True], ids=["hung up", "reset"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", id="body"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n", id="chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConte", id="head"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_an_answer_cut_short_is_an_error_and_is_not_asked_for_again(answer, reset):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(answer)
        if reset:
            peer.reset()

    async with pooled(script) as (pool, bed):
        with pytest.raises(httpx2.RemoteProtocolError if not reset else httpx2.TransportError):
            await pool.request(GET)
        assert len(bed.asked) == 1


async def test_a_body_of_many_megabytes_arrives_whole():
    megabyte = random.Random(1).randbytes(1 << 20)

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (24 << 20), *[megabyte] * 24)

    async with pooled(script) as (pool, _):
        assert (await pool.request(GET)).content == megabyte * 24


async def test_a_body_beyond_all_measure_is_refused(monkeypatch):
    monkeypatch.setattr(http1, "_BODY_LIMIT", 1000)

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(ok(b"x" * 2000))

    async with pooled(script) as (pool, _):
        with pytest.raises(httpx2.ReadError, match="more than 1000 bytes"):
            await pool.request(GET)


# --- streams -------------------------------------------------------------------------------------------


async def test_a_stream_gives_what_there_is_before_it_tells_that_it_broke():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"4\r\none\n\r\n", b"5\r\ntwo\nt\r\n")

    async with pooled(script) as (pool, _), pool.stream(GET, silence_s=10) as stream:
        pieces = stream.aiter_bytes()
        received = b""
        while received != b"one\ntwo\nt":
            received += await anext(pieces)
        with pytest.raises(httpx2.RemoteProtocolError, match="in the middle"):
            await anext(pieces)


async def test_a_stream_that_falls_silent_is_given_up_on_but_not_one_nobody_reads():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"1\r\nx\r\n")
        await peer.gone()

    async with pooled(script) as (pool, _), pool.stream(GET, silence_s=0.1) as stream:
        await asyncio.sleep(0.3)
        pieces = stream.aiter_bytes()
        assert await anext(pieces) == b"x"
        with pytest.raises(httpx2.ReadTimeout):
            await anext(pieces)


async def test_a_stream_nobody_reads_holds_the_server_back():
    sent = 0
    size = 64 << 20

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.asked()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            await peer.say(bytes(1 << 16))
            sent += 1 << 16

    async with pooled(script) as (pool, _), pool.stream(GET, silence_s=10) as stream:
        await eventually(lambda: sent)
        before = -1
        while before != sent:  # until it sends no more
            before = sent
            await asyncio.sleep(0.2)
        assert sent < size // 2  # the rest of it fits in buffers of the kernel

        assert sum([len(piece) async for piece in stream.aiter_bytes()]) == size


async def test_a_stream_left_early_takes_its_connection_with_it():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"1\r\nx\r\n")
        await peer.gone()

    async with pooled(script, size=1) as (pool, bed):
        for _ in range(3):
            async with pool.stream(GET, silence_s=10) as stream:
                async for _piece in stream.aiter_bytes():
                    break
        await eventually(lambda: bed.open == 0)
        assert pool._free == 1


async def test_a_stream_read_to_its_end_leaves_its_connection_to_the_next():
    async with pooled(answer_all) as (pool, bed):
        for _ in range(3):
            async with pool.stream(get("/s"), silence_s=10) as stream:
                assert await stream.aread() == b"/s"

        assert len(bed.peers) == 1


# --- lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_are_cut(size):
    text = b"\none\n\ntwo three\nfour\nrest"
    lines = http1.LineSplitter()

    got = [line for i in range(0, len(text), size) for line in lines.feed(text[i : i + size])]

    assert got == [b"", b"one", b"", b"two three", b"four"]


def test_a_line_without_end_is_refused():
    lines = http1.LineSplitter(limit=100)
    lines.feed(b"x" * 90 + b"\n" + b"y" * 90)

    with pytest.raises(errors.Permanent, match="a line of more than 100 bytes"):
        lines.feed(b"y" * 11)

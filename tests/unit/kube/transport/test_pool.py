"""The pool of connections: what is kept, what is sent again, what time is given, and many at once."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time

import httpx2
import pytest
import uvloop
from tests.support.fakes.wire import GET, PATIENT, Peer, answer_all, eventually, get, ok, pooled, serving
from tests.support.patience import PATIENCE_S

from kgwe.kube.transport.pool import ConnectionPool, Server

WRITES = {method: f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode() for method in ("POST", "PATCH", "PUT", "DELETE")}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- connections kept ----------------------------------------------------------------------------------


async def test_a_connection_is_kept_and_used_again():
    async with pooled(answer_all) as (pool, bed):
        for number in range(5):
            assert (await pool.request(get(f"/{number}"))).content == f"/{number}".encode()

        assert len(bed.peers) == 1


@pytest.mark.parametrize(
    "answer", [ok(b"", "Connection: close"), b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"], ids=["close", "1.0"]
)
async def test_a_connection_the_server_will_close_is_not_used_again(answer):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(answer)
        await peer.gone()  # the client must not wait for us to hang up

    async with pooled(script) as (pool, bed):
        for _ in range(3):
            await pool.request(GET)

        assert len(bed.peers) == 3


@pytest.mark.parametrize("stray", [ok(b"stray"), b"HTTP/1.1 200 O", b"\x00"], ids=["an answer", "its start", "noise"])
async def test_words_nobody_asked_for_are_nobodys_answer(stray):
    async def script(peer: Peer) -> None:
        while True:
            request = await peer.asked()
            await peer.say(ok(request.target.encode()) + stray)

    async with pooled(script) as (pool, bed):
        for number in range(3):
            assert (await pool.request(get(f"/{number}"))).content == f"/{number}".encode()
        assert len(bed.peers) == 3


async def test_words_on_an_idle_connection_end_it():
    async with pooled(answer_all) as (pool, bed):
        await pool.request(GET)
        await bed.peers[0].say(ok(b"stray"))
        await eventually(lambda: not pool._idle)

        assert (await pool.request(get("/mine"))).content == b"/mine"


async def test_a_connection_nobody_uses_is_closed_after_a_while():
    async with pooled(answer_all, timeouts=PATIENT._replace(idle=0.05)) as (pool, bed):
        await asyncio.gather(*(pool.request(GET) for _ in range(3)))
        await eventually(lambda: bed.open == 0)

        assert (await pool.request(get("/again"))).content == b"/again"


async def test_an_answer_before_the_request_was_read_costs_the_connection():
    """What is left of the request would be read as the next one."""

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(ok(b"too big", status="413 Too Large"))
        await asyncio.sleep(0.2)  # without reading, as servers do before they hang up

    post = b"POST / HTTP/1.1\r\nContent-Length: 33554432\r\n\r\n" + bytes(32 << 20)
    async with pooled(script) as (pool, bed):
        assert (await pool.request(post)).status_code == 413
        assert pool._idle == []
        assert bed.asked == []


# --- the server hangs up -------------------------------------------------------------------------------


async def answer_once(peer: Peer) -> None:
    """Answers one request, takes another, and hangs up on it."""
    await peer.asked()
    await peer.say(ok(b"first"))
    await peer.asked()


async def test_a_read_that_met_a_hang_up_on_a_kept_connection_is_sent_once_more():
    async with pooled(answer_once) as (pool, bed):
        await pool.request(GET)

        assert (await pool.request(GET)).content == b"first"
        assert [len(bed.peers), len(bed.asked)] == [2, 3]


@pytest.mark.parametrize("method", WRITES)
async def test_a_write_that_met_a_hang_up_is_never_sent_twice(method):
    """The server may have carried it out before it hung up."""
    async with pooled(answer_once) as (pool, bed):
        await pool.request(GET)
        with pytest.raises(httpx2.RemoteProtocolError, match="before answering"):
            await pool.request(WRITES[method])

        assert [request.method for request in bed.asked] == ["GET", method]


async def test_a_read_is_sent_at_most_once_more():
    async def script(peer: Peer) -> None:
        await peer.asked()
        if len(bed.peers) == 1:
            await peer.say(ok())
            await peer.asked()
        peer.reset()

    async with pooled(script) as (pool, bed):
        await pool.request(GET)
        with pytest.raises(httpx2.TransportError):
            await pool.request(GET)

        assert len(bed.asked) == 3


async def test_a_read_whose_answer_had_begun_is_not_sent_again():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(ok())
        await peer.asked()
        await peer.say(b"HTTP/1.1 200")

    async with pooled(script) as (pool, bed):
        await pool.request(GET)
        with pytest.raises(httpx2.RemoteProtocolError, match="in the middle"):
            await pool.request(GET)

        assert len(bed.asked) == 2


def hang_up_after_each(listener: socket.socket, closed: threading.Semaphore, methods: list[bytes]) -> None:
    """Answer one request per connection, hang up, and say so only then."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            methods.append(peer.recv(65536).split()[0])
            peer.sendall(ok())
        closed.release()


async def test_a_hang_up_the_event_loop_has_not_heard_of_costs_no_write():
    """The kernel has: a write is not sent into a connection known to be dead."""
    listener = socket.create_server(("127.0.0.1", 0))
    closed = threading.Semaphore(0)
    methods: list[bytes] = []
    thread = threading.Thread(target=hang_up_after_each, args=(listener, closed, methods))
    thread.start()
    pool = ConnectionPool(Server("127.0.0.1", listener.getsockname()[1]), timeouts=PATIENT)
    try:
        for _ in range(20):
            await pool.request(WRITES["POST"])
            assert closed.acquire(timeout=10)  # the event loop stands still meanwhile, on purpose
    finally:
        await pool.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)

    assert methods == [b"POST"] * 20


async def test_a_connection_lost_while_it_is_handed_over_costs_no_request():
    """Nothing was sent on it, so even a write can go elsewhere."""
    async with pooled(answer_all, size=1) as (pool, bed):
        async with pool.stream(GET, silence_s=10) as stream:
            await stream.aread()
            waiting = asyncio.ensure_future(pool.request(WRITES["POST"]))
            await eventually(lambda: pool._queue)
        # Handed over by leaving the stream; lost before the other task runs.
        (connection,) = pool._open
        connection.abort()

        assert (await waiting).status_code == 200
        assert [request.method for request in bed.asked] == ["GET", "POST"]


# --- time ----------------------------------------------------------------------------------------------


async def silent(peer: Peer) -> None:
    await peer.asked()
    await peer.gone()


async def test_a_silent_server_is_given_up_on_and_its_connection_closed():
    async with pooled(silent, timeouts=PATIENT._replace(read=0.1)) as (pool, bed):
        with pytest.raises(httpx2.ReadTimeout, match="silent"):
            await pool.request(GET)
        await eventually(lambda: bed.open == 0)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_time_in_which_the_loop_is_busy_is_no_silence_of_the_server(loop):
    """The server answers soon; the client's loop reads something else for longer than it waits for answers."""
    near, far = socket.socketpair()

    class SlowReader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            del data
            time.sleep(1.0)

    async def ask(port: int) -> bytes:
        other, _ = await asyncio.get_running_loop().create_connection(SlowReader, sock=near)
        pool = ConnectionPool(Server("127.0.0.1", port), timeouts=PATIENT._replace(read=0.8, total=0.8))
        try:
            await pool.request(GET)  # opens the connection
            far.send(b"x")
            return (await pool.request(GET)).content
        finally:
            other.abort()
            await pool.close()

    def answer_all_of_one(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            while peer.recv(65536):
                time.sleep(0.1)  # until the client reads the other thing
                peer.sendall(ok(b"fine"))

    with near, far, socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_all_of_one, args=(listener,))
        server.start()
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(ask(listener.getsockname()[1])) == b"fine"
        server.join(PATIENCE_S)


async def test_a_server_that_goes_on_talking_is_given_up_on_in_the_end():
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED)
        while True:
            await peer.say(b"1\r\nx\r\n")
            await asyncio.sleep(0.01)

    async with pooled(script, timeouts=PATIENT._replace(total=0.3)) as (pool, _):
        with pytest.raises(httpx2.ReadTimeout, match="in time"):
            await pool.request(GET)


async def test_a_slow_server_that_does_talk_is_heard_out():
    """Each pause is shorter than the longest one allowed; all of them together are not."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED)
        for _ in range(12):
            await peer.say(b"1\r\nx\r\n")
            await asyncio.sleep(0.05)
        await peer.say(b"0\r\n\r\n")

    async with pooled(script, timeouts=PATIENT._replace(read=0.5)) as (pool, _):
        assert (await pool.request(GET)).content == b"x" * 12


async def test_an_address_that_swallows_packets_does_not_hide_the_others(monkeypatch):
    async with serving(answer_all) as bed:
        # A listener with a full queue: its kernel no longer answers.
        deaf = socket.socket()
        deaf.bind(("127.0.0.2", bed.port))
        deaf.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:
            each.settimeout(0)
            each.connect_ex(("127.0.0.2", bed.port))
        loop = asyncio.get_running_loop()
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", bed.port)) for n in (2, 1)]

        async def both(*_: object, **__: object) -> object:
            return addresses

        monkeypatch.setattr(loop, "getaddrinfo", both)
        pool = ConnectionPool(Server("two.example", bed.port), timeouts=PATIENT._replace(connect=0.6))
        try:
            assert (await pool.request(get("/found"))).content == b"/found"
            addresses.pop()
            with pytest.raises(httpx2.ConnectTimeout):
                await asyncio.gather(*(pool.request(GET) for _ in range(2)))
        finally:
            await pool.close()
            for each in (deaf, *crowd):
                each.close()


async def test_nobody_there_and_no_such_name_are_connect_errors():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for server in (Server("127.0.0.1", port), Server("no-such-name.invalid", port)):
        with pytest.raises(httpx2.ConnectError):
            await ConnectionPool(server, timeouts=PATIENT).request(GET)


# --- many at once --------------------------------------------------------------------------------------


async def test_there_are_never_more_connections_than_places():
    async with pooled(answer_all, size=3) as (pool, bed):
        replies = await asyncio.gather(*(pool.request(get(f"/{n}")) for n in range(50)))

        assert [reply.content for reply in replies] == [f"/{n}".encode() for n in range(50)]
        assert bed.most_open == 3


async def test_who_waits_too_long_for_a_place_is_told():
    async with pooled(silent, size=1, timeouts=PATIENT._replace(read=0.2)) as (pool, _):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(outcome(pool, GET))
            await eventually(lambda: pool._free == 0)
            second = group.create_task(outcome(pool, GET))

        assert isinstance(first.result(), httpx2.ReadTimeout)
        assert isinstance(second.result(), httpx2.PoolTimeout | httpx2.ReadTimeout)


async def outcome(pool: ConnectionPool, message: bytes) -> object:
    try:
        return (await pool.request(message)).content
    except httpx2.TransportError as exc:
        return exc


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_given_up_or_breaks_leaves_every_place_usable_and_no_answer_astray(seed):
    luck = random.Random(seed)

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.asked()
            await asyncio.sleep(luck.random() * 0.01)
            match luck.randrange(8):
                case 0:
                    peer.reset()
                case 1:
                    peer.hang_up()
                case 2:
                    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc")
                    peer.hang_up()
                case _:
                    await peer.say(ok(request.target.encode()))

    async def call(pool: ConnectionPool, number: int) -> None:
        try:
            async with asyncio.timeout(luck.choice([0, 0.001, 0.005, 0.02, 10])):
                content = await outcome(pool, get(f"/{number}"))
        except TimeoutError:
            return
        if isinstance(content, bytes):
            assert content == f"/{number}".encode()

    async with pooled(script, size=4) as (pool, bed):
        await asyncio.gather(*(call(pool, number) for number in range(150)))
        await eventually(lambda: pool._free + len(pool._idle) == 4)
        await eventually(lambda: bed.open == len(pool._idle))
        assert not [waiter for waiter in pool._queue if not waiter.done()]


async def test_closing_ends_what_is_under_way_and_what_waits():
    async with pooled(silent, size=1) as (pool, bed):
        calls = [asyncio.ensure_future(outcome(pool, GET)) for _ in range(3)]
        await eventually(lambda: bed.asked and len(pool._queue) == 2)
        await pool.close()

        assert all(isinstance(each, httpx2.TransportError) for each in await asyncio.gather(*calls))
        assert not pool._open
        assert len(bed.peers) == 1
        with pytest.raises(RuntimeError, match="closed"):
            await pool.request(GET)

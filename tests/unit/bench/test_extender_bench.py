"""Calls taken down, sent again, and timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kgwe import errors
from kgwe.bench.extender import benchmark, caller, capture, echo_uvicorn
from kgwe.bench.extender.capture import Payload, Recorder
from kgwe.bench.extender.echo import build_app
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def body(pod: str, *nodes: str) -> bytes:
    return json.dumps({"Pod": {"metadata": {"name": pod, "uid": pod}}, "NodeNames": list(nodes)}).encode()


def ask(recorder: Recorder, path: str, sent: bytes) -> Any:
    reply = recorder(http.Request("POST", path, [], sent, too_large=False))
    assert reply.status == 200
    return json.loads(reply.body)


# --- taking down ----------------------------------------------------------------------------------------


def test_a_pod_counts_once_both_calls_about_it_have_come():
    recorder = Recorder()
    assert ask(recorder, "/filter", body("a", "n1", "n2")) == {"NodeNames": ["n1", "n2"]}
    assert list(recorder.payloads()) == []
    assert ask(recorder, "/prioritize", body("a", "n2")) == []
    assert list(recorder.payloads()) == [Payload(body("a", "n1", "n2"), body("a", "n2"))]


def test_nothing_is_bound_while_calls_are_taken_down():
    assert ask(Recorder(), "/bind", b'{"PodName": "a"}')["Error"]


@pytest.mark.parametrize(("percentage", "said"), [(100, 100), (0, None)])
def test_kube_scheduler_is_told_how_many_nodes_to_name(percentage: int, said: int | None):
    document = yaml.safe_load(capture.build_configuration("http://127.0.0.1:1", percentage))
    assert document.get("percentageOfNodesToScore") == said
    assert document["extenders"][0]["bindVerb"]


# --- calling --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def on_uvicorn() -> AsyncIterator[int]:
    uvicorn = pytest.importorskip("uvicorn")
    app = echo_uvicorn.wrap_asgi(build_app())
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.ensure_future(server._serve([listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@pytest.fixture(params=["own", "uvicorn"])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """The port of the server that decides nothing, on each HTTP server."""
    if request.param == "uvicorn":
        async with on_uvicorn() as port:
            yield port
    else:
        async with http.serving(build_app(), http.Address("127.0.0.1", 0)) as port:
            yield port


async def test_both_calls_of_every_turn_are_timed(echo: int):
    payloads = [Payload(body(pod, "n1", "n2"), body(pod, "n1")) for pod in ("a", "b")]
    spent = caller.Spent()
    await asyncio.to_thread(caller.call, echo, payloads, spent, range(5))
    assert len(spent.filter_ms) == len(spent.prioritize_ms) == len(spent.both_ms()) == 5
    assert all(both > each > 0 for both, each in zip(spent.both_ms(), spent.filter_ms, strict=True))
    assert spent.placed == 5


async def test_the_echo_names_a_node_and_gives_everybody_no_points(echo: int):
    def talk() -> tuple[bytes, bytes]:
        with caller.Caller(echo) as line:
            sent = body("a", "n1", "n2")
            return line.send(line.request("/filter", sent)), line.send(line.request("/prioritize", sent))

    chosen, scores = await asyncio.to_thread(talk)
    assert json.loads(chosen) == {"NodeNames": ["n1"]}
    assert json.loads(scores) == [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}]


async def test_an_answer_that_is_not_200_ends_the_run(echo: int):
    def talk() -> None:
        with caller.Caller(echo) as line:
            line.send(line.request("/no-such", b"{}"))

    with pytest.raises(errors.Permanent, match="404"):
        await asyncio.to_thread(talk)


@contextlib.contextmanager
def replying(*pieces: bytes) -> Iterator[int]:
    """A server for one connection that answers whatever it is sent with these pieces and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                line.recv(1 << 16)
                for piece in pieces:
                    line.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=10)


def test_a_reply_in_pieces_is_read_whole():
    with (
        replying(b"HTTP/1.1 200 OK\r\nContent-", b"Length: 6\r\n\r\nab", b"cd", b"ef") as port,
        caller.Caller(port) as line,
    ):
        assert line.send(line.request("/filter", b"{}")) == b"abcdef"


def test_a_connection_that_ends_before_the_reply_does_is_an_error():
    with (
        replying(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab") as port,
        caller.Caller(port) as line,
        pytest.raises(errors.Transient, match="closed"),
    ):
        line.send(line.request("/filter", b"{}"))


# --- sizes ----------------------------------------------------------------------------------------------


def test_the_sizes_of_the_goals_are_accepted():
    for nodes in (1000, 5000):
        benchmark.Options(nodes=nodes).check()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"nodes": 1}, "--nodes 1"),
        ({"pods": 4}, "--pods 4"),
        ({"calls": 0}, "--calls 0"),
        ({"gang_size": -1}, "--gang-size -1"),
        ({"nodes": 20, "pods": 8, "gang_size": 60}, "room for 58"),
    ],
)
def test_a_size_that_cannot_work_is_refused_before_anything_starts(wrong, complaint: str):
    with pytest.raises(errors.Permanent, match=complaint):
        benchmark.Options(**wrong).check()

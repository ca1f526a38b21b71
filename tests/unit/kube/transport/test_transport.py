"""The contract of `Transport`, run over both implementations."""

from __future__ import annotations

import asyncio
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ConfigError
from tests.support.fakes.wire import Bed, Peer, eventually, ok, serving
from tests.support.patience import PATIENCE_S

from kgwe.kube.transport import kubeconfig
from kgwe.kube.transport.http1_transport import Http1Transport
from kgwe.kube.transport.httpx_transport import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from kgwe.kube.transport.transport import Transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Opener:
    """Opens one implementation through a kubeconfig, as the client does."""

    def __init__(self, directory: Path, kind: type[Transport]) -> None:
        self._directory = directory
        self._kind = kind

    @asynccontextmanager
    async def __call__(
        self, script: Callable[[Peer], Awaitable[None]], user: dict[str, Any] | None = None, path: str = ""
    ) -> AsyncIterator[tuple[Transport, Bed]]:
        async with serving(script) as bed:
            transport = self.open(f"http://127.0.0.1:{bed.port}{path}", user)
            try:
                yield transport, bed
            finally:
                await transport.close()

    def open(self, url: str, user: dict[str, Any] | None = None) -> Transport:
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": user or {}}],
        }
        file = self._directory / "config"
        file.write_text(yaml.safe_dump(document))
        use_httpx = self._kind is HttpxTransport
        transport, _ = kubeconfig.connect(file, context=None, user_agent="tester", use_httpx=use_httpx)
        assert type(transport) is self._kind
        return transport


@pytest.fixture(params=[Http1Transport, HttpxTransport])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    monkeypatch.setenv("NO_PROXY", "*")
    return Opener(tmp_path, request.param)


async def echo(peer: Peer) -> None:
    while True:
        request = await peer.asked()
        await peer.say(ok(f"{request.method} {request.target} ".encode() + request.body, "X-Kind: echo"))


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def test_a_request_carries_method_target_headers_and_body(opened):
    async with opened(echo, {"token": "t"}, path="/prefix") as (transport, bed):
        read = await transport.request("GET", "/api/v1/a b", params={"labelSelector": "a in (b)", "limit": "5"})
        written = await transport.request(
            "PATCH", "/api", content=b"{}", content_type="application/json", accept="application/x"
        )

    target = "/prefix/api/v1/a%20b?labelSelector="
    assert read.content.decode().startswith(f"GET {target}")
    assert read.content.decode().rstrip().endswith("&limit=5")
    assert (written.status_code, written.content, written.headers["x-kind"]) == (200, b"PATCH /prefix/api {}", "echo")
    first, second = (lower(each.headers) for each in bed.asked)
    assert (first["user-agent"], first["authorization"], first["accept"]) == ("tester", "Bearer t", "*/*")
    assert "content-length" not in first
    assert (second["content-type"], second["accept"]) == ("application/json", "application/x")


async def test_the_url_is_the_servers(opened):
    transport = opened.open("https://127.0.0.1:1")
    assert transport.url == "https://127.0.0.1:1"
    await transport.close()


async def test_requests_share_a_kept_connection(opened):
    async with opened(echo) as (transport, bed):
        for _ in range(3):
            await transport.request("GET", "/api")
    assert len(bed.peers) == 1


async def test_concurrent_requests_get_their_own_replies(opened):
    async with opened(echo) as (transport, _):
        replies = await asyncio.gather(*(transport.request("GET", f"/{n}") for n in range(20)))
    assert [reply.content.split()[1] for reply in replies] == [b"/%d" % n for n in range(20)]


@pytest.mark.parametrize("status", ["302 Found", "404 Not Found", "429 Too Many Requests", "500 Internal Server Error"])
async def test_a_reply_of_any_status_is_returned(opened, status):
    async def script(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.say(ok(b"why", "Retry-After: 7", "Location: /elsewhere", status=status))

    async with opened(script) as (transport, _):
        reply = await transport.request("GET", "/api")
        async with transport.stream("/api", params={}, silence_s=10) as stream:
            streamed = (stream.status_code, stream.headers["Retry-After"], await stream.aread())

    code = int(status.split()[0])
    assert (reply.status_code, reply.headers["Retry-After"], reply.content) == (code, "7", b"why")
    assert streamed == (code, "7", b"why")


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"garbage\r\n\r\n"])
async def test_a_broken_reply_is_a_transport_error_and_a_write_is_not_repeated(opened, cut):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(cut)

    async with opened(script) as (transport, bed):
        with pytest.raises(httpx2.TransportError):
            await transport.request("POST", "/api", content=b"{}", content_type="application/json")
        assert len(bed.asked) == 1
        with pytest.raises(httpx2.TransportError):
            async with transport.stream("/api", params={}, silence_s=10) as stream:
                await stream.aread()


async def test_a_write_is_not_repeated_when_the_kept_connection_ends_under_it(opened):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(ok())
        await peer.asked()

    async with opened(script) as (transport, bed):
        await transport.request("GET", "/first")
        with pytest.raises(httpx2.TransportError):
            await transport.request("DELETE", "/second")
    assert [each.method for each in bed.asked] == ["GET", "DELETE"]


async def test_a_connection_closed_while_idle_costs_no_request(opened):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(ok())

    async with opened(script) as (transport, bed):
        for number in range(1, 4):
            await transport.request("POST", "/api", content=b"", content_type="text/plain")
            await eventually(lambda: bed.open == 0)
            assert len(bed.asked) == number


async def test_an_unreachable_server_is_a_transport_error(opened):
    async with serving(echo) as bed:
        port = bed.port
    transport = opened.open(f"http://127.0.0.1:{port}")
    with pytest.raises(httpx2.TransportError):
        await transport.request("GET", "/api")
    with pytest.raises(httpx2.TransportError):
        async with transport.stream("/api", params={}, silence_s=10):
            pass
    await transport.close()


async def test_a_stream_is_read_as_it_arrives(opened):
    further = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"4\r\none\n\r\n")
        await further.wait()
        await peer.say(b"4\r\ntwo\n\r\n0\r\n\r\n")

    async with (
        opened(script) as (transport, bed),
        transport.stream("/api", params={"watch": "true"}, silence_s=10, accept="application/x") as stream,
    ):
        received = []
        async for piece in stream.aiter_bytes():
            received.append(piece)
            further.set()
    assert b"".join(received) == b"one\ntwo\n"
    assert bed.asked[0].target == "/api?watch=true"
    assert lower(bed.asked[0].headers)["accept"] == "application/x"


async def test_a_silent_stream_is_a_transport_error(opened):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"1\r\nx\r\n")
        await peer.gone()

    async with opened(script) as (transport, _):
        with pytest.raises(httpx2.ReadTimeout):
            async with transport.stream("/api", params={}, silence_s=0.05) as stream:
                await stream.aread()


async def test_a_stream_left_early_ends_its_connection(opened):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED, b"1\r\nx\r\n")
        await peer.gone()

    async with opened(script) as (transport, bed):
        async with transport.stream("/api", params={}, silence_s=10) as stream:
            await anext(aiter(stream.aiter_bytes()))
        await eventually(lambda: bed.open == 0)


def admitting(allowed: set[str]) -> Callable[[Peer], Awaitable[None]]:
    async def script(peer: Peer) -> None:
        while True:
            request = await peer.asked()
            good = lower(request.headers).get("authorization") in allowed
            await peer.say(ok() if good else ok(b"{}", status="401 Unauthorized"))

    return script


async def test_refused_credentials_are_read_again_once(opened, tmp_path):
    token = tmp_path / "token"
    token.write_text("old")
    allowed = {"Bearer old"}
    async with opened(admitting(allowed), {"tokenFile": str(token)}) as (transport, bed):
        assert (await transport.request("GET", "/api")).status_code == 200
        token.write_text("new")
        allowed.clear()
        allowed.add("Bearer new")
        assert (await transport.request("PATCH", "/api", content=b"{}", content_type="x/y")).status_code == 200
        async with transport.stream("/api", params={}, silence_s=10) as stream:
            assert stream.status_code == 200
        allowed.clear()
        assert (await transport.request("GET", "/api")).status_code == 401
    assert [each.body for each in bed.asked if each.method == "PATCH"][-1] == b"{}"


async def test_a_credential_plugin_that_is_missing_is_a_config_error(opened, tmp_path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(tmp_path / "nowhere")}}
    async with opened(echo, user) as (transport, bed):
        with pytest.raises(ConfigError):
            await transport.request("GET", "/api")
        with pytest.raises(ConfigError):
            async with transport.stream("/api", params={}, silence_s=10):
                pass
    assert bed.asked == []


@pytest.mark.parametrize("text", ["exit 3", "echo no JSON", "echo '[]'"])
async def test_a_credential_plugin_that_fails_is_a_config_error(opened, tmp_path, text):
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(program)}}
    async with opened(echo, user) as (transport, bed):
        with pytest.raises(ConfigError):
            await transport.request("GET", "/api")
    assert bed.asked == []


async def test_a_token_that_breaks_out_of_its_header_is_not_sent(opened):
    async with opened(echo, {"token": "t\r\nX-Evil: 1"}) as (transport, bed):
        with pytest.raises((ConfigError, httpx2.TransportError)):
            await transport.request("GET", "/api")
    assert bed.asked == []


async def test_closing_ends_a_request_under_way(opened):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.gone()

    async with opened(script) as (transport, bed):
        request = asyncio.ensure_future(transport.request("GET", "/api"))
        await eventually(lambda: bed.asked)
        await transport.close()
        with pytest.raises((httpx2.TransportError, RuntimeError)):
            async with asyncio.timeout(PATIENCE_S):
                await request

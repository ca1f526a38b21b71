"""From a kubeconfig to a client: what is taken from it, and what is said of one that cannot be used."""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml
from tests.support.fakes.wire import Asked, Bed, Peer, ok, serving

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.httpx_transport import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CONTEXT = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: mine}}, {name: nobody, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
"""


async def test_a_kubeconfig_gives_server_and_namespace(tmp_path):
    path = tmp_path / "config"
    path.write_text(CONTEXT + "users: [{name: u, user: {token: t}}]")

    async with KubeClient.connect(path, field_manager="tester") as client:
        assert client.namespace == "mine"
        assert client.transport.url == "https://127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "context", "says"),
    [
        pytest.param(None, None, "not found", id="no such file"),
        pytest.param("{", None, "kubeconfig", id="not YAML"),
        pytest.param("[]", None, "is not a kubeconfig: expected a YAML mapping", id="not a mapping"),
        pytest.param("just words", None, "config is not a kubeconfig: expected a YAML mapping", id="plain text"),
        pytest.param("a: b", None, "it has no list of clusters and no list of contexts", id="no clusters"),
        pytest.param("a: b\nc: [", None, "is not a kubeconfig: it is not valid YAML (line 2)", id="a broken line"),
        pytest.param("\x00\x01", None, "kubeconfig", id="not text"),
        pytest.param(CONTEXT + "users: []", None, "names 'u', which the file does not define", id="unknown user"),
        pytest.param(CONTEXT, "nobody", "names no user", id="no user"),
        pytest.param(CONTEXT, "elsewhere", "elsewhere", id="unknown context"),
        pytest.param(
            CONTEXT + "users: [{name: u, user: {client-certificate: no.crt, client-key: no.key}}]",
            None,
            "No such file",
            id="certificate missing",
        ),
        pytest.param(
            CONTEXT + "users: [{name: u, user: {client-certificate: config, client-key: config}}]",
            None,
            "kubeconfig",
            id="certificate unreadable",
        ),
        pytest.param(
            CONTEXT + "users: [{name: u, user: {auth-provider: {name: gcp}}}]", None, "auth-provider", id="old provider"
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_a_clear_error(tmp_path, text, context, says):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)

    with pytest.raises(errors.Permanent, match="kubeconfig") as caught:
        KubeClient.connect(path, context=context)

    assert says in str(caught.value)
    assert "--kubeconfig" in str(caught.value)


@pytest.mark.parametrize("given", [".", "", None])
def test_an_empty_kubeconfig_variable_is_named(monkeypatch, given):
    monkeypatch.setenv("KUBECONFIG", "")
    with pytest.raises(errors.Permanent, match=r"^KUBECONFIG is empty or names no file; pass --kubeconfig"):
        KubeClient.connect(given)


async def test_a_cluster_that_cannot_be_reached_is_named_with_the_reason(tmp_path):
    path = tmp_path / "config"
    path.write_text(CONTEXT.replace("https:", "http:") + "users: [{name: u, user: {token: t}}]")
    async with KubeClient.connect(path) as client:
        with pytest.raises(errors.Unreachable) as caught:
            await client.request("GET", "/api")
        assert str(caught.value) == "cannot reach the cluster at http://127.0.0.1:1 (connection refused)"
        with pytest.raises(errors.Unreachable, match="connection refused"):
            async with client.stream("/api", params={}, read_timeout_s=1):
                pass


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, False),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, True),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "127.0.0.1,.svc"}, False),
    ],
)
async def test_a_proxy_of_the_environment_is_still_used(tmp_path, monkeypatch, environment, proxied):
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "config"
    path.write_text(CONTEXT + "users: [{name: u, user: {token: t}}]")

    async with KubeClient.connect(path) as client:
        assert isinstance(client.transport, HttpxTransport) is proxied
        if isinstance(client.transport, HttpxTransport):
            below = client.transport._client._transport_for_url(httpx2.URL("https://127.0.0.1:1/api"))
            pool = getattr(below, "_pool")  # noqa: B009 - private to httpx2, and no type of its own
            assert "Proxy" in type(pool).__name__


# --- on the wire ----------------------------------------------------------------------------------------


def allowing(*tokens: str) -> Any:
    """A server that lets these tokens in (anybody, if none), with an empty object or a watch of one line."""

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.asked()
            if tokens and request.headers.get("Authorization") not in tokens:
                await peer.say(ok(b'{"message": "Unauthorized"}', status="401 Unauthorized"))
            elif "watch" in request.target:
                await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n")
            else:
                await peer.say(ok(b"{}"))

    return script


@asynccontextmanager
async def connected(
    tmp_path: Path, script: Any, user: dict[str, Any], *, path: str = ""
) -> AsyncIterator[tuple[KubeClient, Bed]]:
    async with serving(script) as bed:
        document = yaml.safe_load(CONTEXT) | {"users": [{"name": "u", "user": user}]}
        document["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{bed.port}{path}"
        config = tmp_path / "config"
        config.write_text(yaml.safe_dump(document))
        async with KubeClient.connect(config, field_manager="tester") as client:
            yield client, bed


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def tokens_of(asked: list[Asked]) -> list[str]:
    return [request.headers.get("Authorization", "").removeprefix("Bearer ") for request in asked]


async def test_a_request_is_what_the_server_expects(tmp_path):
    async with connected(tmp_path, allowing(), {"token": "t"}, path="/k8s/clusters/c-1/") as (client, bed):
        await client.request(
            "GET", "/api/v1/nodes/a b\r\nX: y", params={"labelSelector": "a in (b, c),d!=é", "limit": "5"}
        )
        await client.request("POST", "/api/v1/pods", body={"a": "é"})
        await client.request("DELETE", "/api/v1/pods/a")

    got, made, deleted = bed.asked
    assert got.line == (
        "GET /k8s/clusters/c-1/api/v1/nodes/a%20b%0D%0AX:%20y"
        "?labelSelector=a%20in%20%28b%2C%20c%29%2Cd%21%3D%C3%A9&limit=5 HTTP/1.1"
    )
    assert got.headers == {
        "Host": f"127.0.0.1:{bed.port}",
        "User-Agent": "tester",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Authorization": "Bearer t",
    }
    assert (made.headers["Content-Type"], json.loads(made.body)) == ("application/json", {"a": "é"})
    assert "Content-Length" not in deleted.headers
    assert len(bed.peers) == 1


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
        ({}, None),
    ],
    ids=["token", "password", "nothing"],
)
async def test_credentials_that_do_not_change_are_tried_once(tmp_path, user, header):
    async with connected(tmp_path, allowing("another"), user) as (client, bed):
        for _ in range(2):
            with pytest.raises(errors.Transient, match="Unauthorized"):
                await client.request("GET", "/api")

    assert [request.headers.get("Authorization") for request in bed.asked] == [header] * 2


async def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path):
    token = tmp_path / "token"
    token.write_text("old\n")
    allowed = {"Bearer old"}
    async with connected(tmp_path, allowing_from(allowed), {"tokenFile": str(token)}) as (client, bed):
        await client.request("GET", "/api")
        token.write_text("new\n")
        await client.request("GET", "/api")
        allowed.clear()
        allowed.add("Bearer new")
        await client.request("PATCH", "/api", body={"a": 1})
        await client.request("GET", "/api")
        allowed.clear()
        with pytest.raises(errors.Transient, match="Unauthorized"):
            await client.request("GET", "/api")
        token.unlink()
        with pytest.raises(errors.Transient, match="not found"):
            await client.request("GET", "/api")

    assert tokens_of(bed.asked) == ["old", "old", "old", "new", "new", "new", "new"]
    assert [request.body for request in bed.asked[2:4]] == [b'{"a":1}'] * 2


def allowing_from(allowed: set[str]) -> Any:
    async def script(peer: Peer) -> None:
        while True:
            request = await peer.asked()
            good = request.headers["Authorization"] in allowed
            await peer.say(ok(b"{}") if good else ok(b'{"message": "Unauthorized"}', status="401 Unauthorized"))

    return script


def plugin(tmp_path: Path, text: str) -> dict[str, Any]:
    """A user whose credentials come from a program, which counts its runs by the bytes of a file."""
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\nprintf x >> {tmp_path}/runs\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(program)}}


async def test_a_credential_plugin_is_run_once_for_many_calls_and_again_when_they_are_refused(tmp_path):
    user = plugin(tmp_path, f"""echo '{{"status": {{"token": "t'$(wc -c < {tmp_path}/runs | tr -d ' ')'"}}}}'""")
    allowed = {"Bearer t1"}
    async with connected(tmp_path, allowing_from(allowed), user) as (client, bed):
        await asyncio.gather(*(client.request("GET", "/api") for _ in range(5)))
        assert tokens_of(bed.asked) == ["t1"] * 5
        allowed.clear()
        allowed.add("Bearer t2")
        await asyncio.gather(*(client.request("POST", "/api", body={}) for _ in range(5)))

    assert (tmp_path / "runs").read_text() == "xx"
    assert sorted(tokens_of(bed.asked)[5:]) == ["t1"] * 5 + ["t2"] * 5


@pytest.mark.parametrize("text", ["exit 3", "echo no JSON", "echo '{}'", "echo '[]'"])
async def test_a_credential_plugin_that_fails_is_worth_another_try(tmp_path, text):
    async with connected(tmp_path, allowing(), plugin(tmp_path, text)) as (client, bed):
        for _ in range(2):
            with pytest.raises(errors.Transient):
                await client.request("GET", "/api")

    assert bed.asked == []


async def test_a_credential_plugin_that_is_not_there_is_worth_another_try(tmp_path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(tmp_path / "nowhere")}}
    async with connected(tmp_path, allowing(), user) as (client, _):
        with pytest.raises(errors.Transient, match="credentials"):
            await client.request("GET", "/api")


async def test_a_token_that_would_break_out_of_its_header_is_not_sent(tmp_path):
    async with connected(tmp_path, allowing(), {"token": "t\r\nX-Evil: 1"}) as (client, bed):
        with pytest.raises(errors.Transient, match="no header can carry"):
            await client.request("GET", "/api")

    assert bed.asked == []


async def test_a_watch_renews_its_credentials_too(tmp_path):
    token = tmp_path / "token"
    token.write_text("old")
    async with connected(tmp_path, allowing("Bearer new"), {"tokenFile": str(token)}) as (client, bed):
        with pytest.raises(errors.Transient, match="Unauthorized"):
            await client.request("GET", "/api")
        token.write_text("new")
        async with client.stream("/api/v1/pods", params={"watch": "true"}, read_timeout_s=10) as stream:
            assert await stream.aread() == b"{}\n"

    assert tokens_of(bed.asked) == ["old", "old", "new"]


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"garbage\r\n\r\n"])
async def test_what_breaks_on_the_wire_is_worth_another_try(tmp_path, cut):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(cut)

    async with connected(tmp_path, script, {"token": "t"}) as (client, _):
        with pytest.raises(errors.Transient, match="GET /api/v1/nodes/a: RemoteProtocolError"):
            await client.get(resources.NODE, "a")
        with pytest.raises(errors.Transient, match="streaming /api/v1/nodes: RemoteProtocolError"):
            async with client.stream("/api/v1/nodes", params={}, read_timeout_s=10) as stream:
                await stream.aread()


async def test_a_busy_server_says_on_the_wire_when_to_come_back(tmp_path):
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say(ok(b'{"message": "later"}', "Retry-After: 7", status="429 Too Many Requests"))

    async with connected(tmp_path, script, {"token": "t"}) as (client, _):
        with pytest.raises(errors.Transient, match="later") as caught:
            await client.get(resources.NODE, "a")

    assert caught.value.retry_after_s == 7


async def test_event_hooks_of_httpx2_see_every_request():
    seen = []

    async def note(request: httpx2.Request) -> None:
        seen.append(request.url.path)

    async with serving(allowing()) as bed:
        http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{bed.port}", event_hooks={"request": [note]})
        async with KubeClient(HttpxTransport(http)) as client:
            await client.request("GET", "/api")
            async with client.stream("/apis", params={"watch": "true"}, read_timeout_s=10):
                pass

    assert seen == ["/api", "/apis"]

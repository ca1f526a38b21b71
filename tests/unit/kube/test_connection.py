"""From a kubeconfig to a client: what is taken from it, and what is said of one that cannot be used."""

from __future__ import annotations

import httpx2
import pytest

from kgwe import errors
from kgwe.kube.client import KubeClient

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
        assert str(client.http.base_url) == "https://127.0.0.1:1"
        assert client.http.headers["User-Agent"] == "tester"


@pytest.mark.parametrize(
    ("text", "context", "says"),
    [
        pytest.param(None, None, "not found", id="no such file"),
        pytest.param("{", None, "kubeconfig", id="not YAML"),
        pytest.param("[]", None, "kubeconfig", id="not a mapping"),
        pytest.param("a: b", None, "clusters", id="no clusters"),
        pytest.param("\x00\x01", None, "kubeconfig", id="not text"),
        pytest.param(CONTEXT + "users: []", None, "u", id="unknown user"),
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

    with pytest.raises(errors.Permanent, match="reading kubeconfig") as caught:
        KubeClient.connect(path, context=context)

    assert says in str(caught.value)
    assert "--kubeconfig" in str(caught.value)


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
        transport = client.http._transport_for_url(httpx2.URL("https://127.0.0.1:1/api"))
        pool = getattr(transport, "_pool")  # noqa: B009 - private to httpx2, and no type of its own
        assert ("Proxy" in type(pool).__name__) is proxied

"""Metrics are served to clients whose token may get /metrics; probes to all."""

from __future__ import annotations

import prometheus_client
import pytest

from kgwe import errors
from kgwe.apps import metrics_access
from kgwe.apps.metrics_access import MetricsGuard
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import TokenAuthenticator, User
from kgwe.telemetry.messages import Request
from kgwe.telemetry.probes import ProbeApp


class Kubernetes:
    """Says who a token belongs to, and which users may read metrics."""

    def __init__(self, failure=None):
        self.failure = failure
        self.asked = []

    async def authenticate_token(self, token, _address):
        if self.failure is not None:
            raise self.failure
        if token not in {"prometheus", "tenant"}:
            raise problems.unauthorized("the token is not valid")
        return User(token)

    async def may(self, user, right):
        self.asked.append((right.verb, right.path))
        return user.name == "prometheus"


async def ask(path="/metrics", token="", failure=None, *, is_strict=True):
    cluster = Kubernetes(failure)
    guard = MetricsGuard(cluster, cluster, is_strict=is_strict)
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("secret_number", "Not for tenants", registry=registry).set(7)
    app = ProbeApp(registry, live=lambda: None, ready=lambda: "still reading", guard=guard)
    headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
    reply = app(Request("GET", path, headers, b"", too_large=False))
    return (reply if isinstance(reply, tuple) else await reply), cluster


async def test_a_client_with_the_right_gets_metrics():
    reply, cluster = await ask(token="prometheus")
    assert reply.status == 200
    assert b"secret_number 7.0" in reply.body
    assert cluster.asked == [("get", "/metrics")]


@pytest.mark.parametrize(("token", "status"), [("", 401), ("stolen", 401), ("tenant", 403)])
async def test_other_clients_get_no_metrics(token, status):
    reply, _ = await ask(token=token)
    assert reply.status == status
    assert b"secret_number" not in reply.body
    assert reply.body.endswith(b"\n")


async def test_probes_need_no_token_and_say_why():
    assert (await ask("/healthz"))[0] == (200, b"ok\n", "text/plain; charset=utf-8")
    reply, _ = await ask("/readyz")
    assert (reply.status, reply.body) == (503, b"still reading\n")


@pytest.mark.parametrize("failure", [errors.Transient("no answer"), errors.Permanent("forbidden")])
async def test_if_kubernetes_cannot_be_asked_nothing_is_served(failure):
    reply, _ = await ask(token="prometheus", failure=failure)
    assert reply.status == 503
    assert b"system:auth-delegator" in reply.body


async def test_without_the_setting_a_missing_right_of_the_process_loses_no_metrics():
    reply, _ = await ask(token="any", failure=errors.Permanent("forbidden"), is_strict=False)
    assert reply.status == 200
    reply, _ = await ask(token="any", failure=errors.Transient("no answer"), is_strict=False)
    assert reply.status == 503


def test_metrics_are_guarded_in_a_cluster_unless_the_setting_says_none(tmp_path):
    inside = tmp_path / "token"
    inside.write_text("x")
    outside = tmp_path / "missing"

    def is_guarded(mode, pod_token):
        environment = {metrics_access.VARIABLE: mode} if mode else {}
        return metrics_access.make_guard(None, environment, pod_token) is not None  # type: ignore[arg-type] # not asked

    assert [is_guarded("", inside), is_guarded("token", outside)] == [True, True]
    assert [is_guarded("", outside), is_guarded("none", inside)] == [False, False]
    with pytest.raises(errors.Permanent, match="must be token or none"):
        is_guarded("nome", inside)


async def test_clients_that_guess_tokens_do_not_keep_prometheus_away():
    class Server:
        async def create(self, _resource, body):
            is_valid = body["spec"]["token"] == "prometheus"  # noqa: S105 - a test's token
            return {"status": {"authenticated": is_valid, "user": {"username": "prometheus"} if is_valid else {}}}

    now = [0.0]
    tokens = TokenAuthenticator(Server(), clock=lambda: now[0])  # type: ignore[arg-type] # the one call it makes
    guard = MetricsGuard(tokens, Kubernetes(), is_strict=True)

    async def read(token, peer):
        reply = await guard(
            Request("GET", "/metrics", [(b"Authorization", f"Bearer {token}".encode())], b"", False, peer)  # noqa: FBT003
        )
        return reply.status if reply is not None else 200

    async def guess(peer):
        return [await read(f"bad{now[0]}{number}", peer) for number in range(25)]

    found = await guess("10.0.0.9")
    assert (found[0], found[-1]) == (401, 429)
    assert await read("prometheus", "10.0.0.1") == 200
    # The same address: a token that was valid some minutes ago is no guess.
    now[0] = 60.0
    await guess("10.0.0.1")
    assert await read("prometheus", "10.0.0.1") == 200

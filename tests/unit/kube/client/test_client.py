"""The client's side of the wire: what it sends, and what it makes of every kind of answer."""

from __future__ import annotations

import datetime as dt
import email.utils
import json
import ssl
from typing import Any

import httpx2
import pytest
from lightkube.core.exceptions import ConfigError

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import client as kube_client
from kgwe.kube.client.client import KubeClient, retry_conflict
from kgwe.kube.transport.httpx_transport import HttpxTransport

CONFIG_MAP: resources.Resource[Any] = resources.Resource(
    "", "v1", "configmaps", "ConfigMap", namespaced=True, type=dict[str, Any]
)


def answering(answer) -> KubeClient:
    """A client whose requests are answered by a function of the request."""
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="https://cluster.example")
    return KubeClient(HttpxTransport(http), field_manager="tester", namespace="home")


def replying(code: int, body: Any = None, headers: dict[str, str] | None = None) -> KubeClient:
    content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return answering(lambda _: httpx2.Response(code, content=content, headers=headers))


def status(code: int, reason: str, message: str = "the server's own words") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (409, "", errors.Conflict),
        (410, "Expired", errors.Expired),
        (410, "Gone", errors.Expired),
        (400, "BadRequest", errors.Permanent),
        (403, "Forbidden", kube_client.Forbidden),
        (405, "MethodNotAllowed", errors.Permanent),
        (406, "NotAcceptable", kube_client.NotAcceptable),
        (413, "RequestEntityTooLarge", errors.Permanent),
        (422, "Invalid", errors.Permanent),
        (302, "", errors.Permanent),
        (401, "Unauthorized", errors.Transient),
        (408, "Timeout", errors.Transient),
        (429, "TooManyRequests", errors.Transient),
        (500, "InternalError", errors.Transient),
        (502, "", errors.Transient),
        (503, "ServiceUnavailable", errors.Transient),
        (504, "Timeout", errors.Transient),
    ],
)
async def test_every_status_becomes_the_error_that_says_what_to_do(code, reason, expected):
    with pytest.raises(errors.KgweError) as caught:
        await replying(code, status(code, reason)).get(CONFIG_MAP, "a")

    assert type(caught.value) is expected
    assert str(caught.value) == "GET /api/v1/namespaces/home/configmaps/a: the server's own words"


@pytest.mark.parametrize(
    ("code", "more", "expected"),
    [
        # As the API server of Kubernetes 1.34 answers.
        (429, {"details": {"causes": [{"reason": "DisruptionBudget"}]}}, kube_client.DisruptionBudgetRefused),
        (429, {"details": {"retryAfterSeconds": 1}}, errors.Transient),
        (429, {"message": "too many requests", "details": None}, errors.Transient),
        (
            500,
            {"message": "This pod has more than one PodDisruptionBudget, which is not supported."},
            kube_client.DisruptionBudgetRefused,
        ),
        (403, {"message": 'pods "p" is forbidden: exceeded quota: q, requested: pods=1'}, kube_client.QuotaExceeded),
        (403, {"message": 'User "u" cannot create resource "pods"'}, kube_client.Forbidden),
    ],
)
async def test_a_quota_and_a_disruption_budget_have_errors_of_their_own(code, more, expected):
    with pytest.raises(errors.KgweError) as caught:
        await replying(code, status(code, "") | more).get(CONFIG_MAP, "a")
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"<html>bad gateway</html>", id="html"),
        pytest.param(b'{"message": 5}', id="wrong types"),
        pytest.param(b'["message"]', id="not an object"),
        pytest.param(b'{"message": "\xff\xfe"}', id="not UTF-8 inside JSON"),
        pytest.param(b"\xff\xfe\x00" * 200, id="bytes of something else"),
        pytest.param(b'{"message": "cut o', id="cut off"),
    ],
)
@pytest.mark.parametrize(("code", "expected"), [(404, errors.NotFound), (502, errors.Transient)])
async def test_an_error_without_a_readable_body_is_still_that_error(code, body, expected):
    with pytest.raises(expected) as caught:
        await replying(code, body).get(CONFIG_MAP, "a")

    assert str(caught.value).startswith("GET /api/v1/namespaces/home/configmaps/a: ")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("0", 0.0),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("Wed, 32 Foo 2026 99:99:99 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
    ],
)
async def test_retry_after_is_a_number_a_date_or_ignored(text, seconds):
    with pytest.raises(errors.Transient) as caught:
        await replying(429, status(429, "TooManyRequests"), {"Retry-After": text}).get(CONFIG_MAP, "a")

    assert caught.value.retry_after_s == seconds


async def test_a_date_in_retry_after_becomes_the_time_until_then():
    until = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    header = {"Retry-After": email.utils.format_datetime(until, usegmt=True)}

    with pytest.raises(errors.Transient) as caught:
        await replying(503, {}, header).get(CONFIG_MAP, "a")

    assert caught.value.retry_after_s is not None
    assert 3000 < caught.value.retry_after_s <= 3600


@pytest.mark.parametrize(
    "broken",
    [
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout("silence"),
        httpx2.PoolTimeout("too many"),
        httpx2.RemoteProtocolError("disconnected"),
        httpx2.DecodingError("bad gzip"),
        ssl.SSLError("bad record mac"),
        ConfigError("exec plugin returned 1"),
    ],
    ids=lambda exc: type(exc).__name__,
)
async def test_whatever_breaks_on_the_way_is_worth_another_try(broken):
    def answer(_: httpx2.Request) -> httpx2.Response:
        raise broken

    client = answering(answer)

    with pytest.raises(errors.Transient):
        await client.get(CONFIG_MAP, "a")
    with pytest.raises(errors.Transient):
        async with client.stream("/api/v1/configmaps", params={}, read_timeout_s=1):
            pass


async def test_a_success_that_is_not_json_is_worth_another_try():
    for body in (b"<html>log in first</html>", b'{"metadata": {"na', b'{"a": "\xff"}'):
        with pytest.raises(errors.Transient):
            await replying(200, body).get(CONFIG_MAP, "a")


async def test_a_success_of_another_shape_is_permanent_and_says_where():
    with pytest.raises(errors.Permanent, match=r"leases/a: .*metadata\.name"):
        await replying(200, {"metadata": {"name": 5}}).get(resources.LEASE, "a")


async def test_a_refused_watch_raises_like_any_other_call():
    client = replying(410, status(410, "Expired", "too old resource version: 5 (7)"))

    with pytest.raises(errors.Expired, match="too old resource version"):
        async with client.stream("/api/v1/pods", params={"watch": "true"}, read_timeout_s=1):
            pass


# --- requests -------------------------------------------------------------------------------------------


class Recorder:
    """Answers everything with an empty object and remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(200, json={})

    @property
    def last(self) -> httpx2.Request:
        return self.requests[-1]


async def test_apply_names_the_kind_the_manager_and_whether_it_insists():
    sent = Recorder()

    await answering(sent).apply(CONFIG_MAP, {"metadata": {"name": "a"}}, "there", force=False)

    assert sent.last.method == "PATCH"
    assert sent.last.url.path == "/api/v1/namespaces/there/configmaps/a"
    assert dict(sent.last.url.params) == {"fieldManager": "tester", "force": "false"}
    assert sent.last.headers["Content-Type"] == kube_client.APPLY_PATCH
    assert json.loads(sent.last.content) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


async def test_delete_can_be_tied_to_one_very_object():
    sent = Recorder()

    await answering(sent).delete(CONFIG_MAP, "a", uid="u-1", propagation="Foreground", grace_s=0)

    assert json.loads(sent.last.content) == {
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "u-1"},
        "gracePeriodSeconds": 0,
    }


async def test_a_namespace_is_the_callers_else_the_configured_one_and_none_for_cluster_scoped_kinds():
    sent = Recorder()
    client = answering(sent)

    await client.create(CONFIG_MAP, {})
    await client.create(CONFIG_MAP, {}, "there")
    await client.create(resources.NAMESPACE, {})

    assert [request.url.path for request in sent.requests] == [
        "/api/v1/namespaces/home/configmaps",
        "/api/v1/namespaces/there/configmaps",
        "/api/v1/namespaces",
    ]


async def test_a_guarded_client_asks_before_every_write_and_never_before_a_read():
    sent = Recorder()

    def refuse() -> None:
        raise errors.Transient("no longer the leader")

    client = answering(sent).with_guard(refuse)
    await client.get(CONFIG_MAP, "a")
    writes = [
        client.create(CONFIG_MAP, {}),
        client.replace(CONFIG_MAP, "a", {}),
        client.patch(CONFIG_MAP, "a", {}),
        client.apply(CONFIG_MAP, {"metadata": {"name": "a"}}),
        client.delete(CONFIG_MAP, "a"),
    ]
    for write in writes:
        with pytest.raises(errors.Transient, match="no longer the leader"):
            await write

    assert [request.method for request in sent.requests] == ["GET"]


# --- lists ----------------------------------------------------------------------------------------------


def page(names: str, continue_: str = "") -> httpx2.Response:
    items = [{"metadata": {"name": name}} for name in names]
    return httpx2.Response(200, json={"items": items, "metadata": {"continue": continue_}})


async def test_a_list_is_put_together_from_its_pages():
    pages = {None: page("ab", "2"), "2": page("cd", "3"), "3": page("e")}
    client = answering(lambda request: pages[request.url.params.get("continue")])

    found = await client.list(CONFIG_MAP)

    assert [item["metadata"]["name"] for item in found] == list("abcde")


async def test_a_list_that_outlived_its_version_is_taken_again_whole():
    asked: list[dict[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(dict(request.url.params))
        if "continue" in request.url.params:
            return httpx2.Response(410, json=status(410, "Expired"))
        return page("ab", "2") if "limit" in request.url.params else page("cde")

    found = await answering(answer).list(CONFIG_MAP, labelSelector="x=y")

    assert [item["metadata"]["name"] for item in found] == list("cde")
    assert asked[-1] == {"labelSelector": "x=y"}


async def test_a_list_refused_from_the_start_is_not_tried_again():
    with pytest.raises(errors.Expired):
        await replying(410, status(410, "Expired")).list(CONFIG_MAP)


# --- conflicts ------------------------------------------------------------------------------------------


async def fail_times(failures: list[Exception]) -> str:
    if failures:
        raise failures.pop()
    return "written"


async def test_a_lost_race_is_run_again():
    failures: list[Exception] = [errors.Conflict("stale")] * 4

    assert await retry_conflict(lambda: fail_times(failures)) == "written"


async def test_a_race_lost_too_often_is_reported():
    failures: list[Exception] = [errors.Conflict("stale")] * 9

    with pytest.raises(errors.Conflict):
        await retry_conflict(lambda: fail_times(failures), attempts=3)
    assert len(failures) == 6


@pytest.mark.parametrize("error", [errors.AlreadyExists("a"), errors.NotFound("a"), errors.Transient("a")])
async def test_other_failures_are_not_the_business_of_conflict_retries(error):
    failures: list[Exception] = [error, error]

    with pytest.raises(type(error)):
        await retry_conflict(lambda: fail_times(failures))
    assert len(failures) == 1

"""The HTTP API of costs and budgets: what a user may not read is neither shown nor counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from starlette.requests import Request
from tests.support.fakes.asgi import get

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.books import Books, Dimension, Sums
from kgwe.costing.charges import Attribution
from kgwe.costing.segments import Account, Bucket
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import TokenAuthenticator, User
from kgwe.httpapi.authorization import AccessReviewer, Right
from kgwe.httpapi.cost_api import make_cost_api
from kgwe.httpapi.cost_reader import LedgerAccess
from kgwe.httpapi.limits import ConcurrencyLimiter, RateLimiter
from kgwe.kube.api.kgwe.gpubudget import GPUBudget, GPUBudgetSpec
from kgwe.kube.api.meta import ObjectMeta

if TYPE_CHECKING:
    from kgwe.httpapi.app import Api

NOW = 1_800_000_000
DOLLAR = money.MICROS * money.TICKS
HOUR = 3600 * 10**6


class FakeLedger:
    """Two namespaces, of two teams."""

    def sum_accounts(self, start_s: int, end_s: int) -> dict[Account, Sums]:
        part = (end_s - start_s) / (7 * 86_400)
        return {
            Account("vision", "a"): Sums(
                round(30 * DOLLAR * part), ppm_s=round(20 * HOUR * part), unpriced_ppm_s=round(2 * HOUR * part)
            ),
            Account("speech", "b"): Sums(round(12 * DOLLAR * part), ppm_s=round(8 * HOUR * part)),
            Account("speech", "a"): Sums(round(5 * DOLLAR * part), ppm_s=0),
        }

    def read(self, start_s: int, end_s: int, by: Dimension) -> Attribution:
        del start_s, end_s
        books = Books({Bucket.FLEET: Sums(50 * DOLLAR), Bucket.ALLOCATED: Sums(47 * DOLLAR)})
        books.open_line(Bucket.UNALLOCATED).ticks = 3 * DOLLAR
        lines = {"vision/Job/x": Sums(30 * DOLLAR), "speech/Job/y": Sums(17 * DOLLAR)}
        if by in {Dimension.NODE, Dimension.MODEL}:
            lines = {"n1": Sums(47 * DOLLAR)}
        return Attribution(books, lines)


class Tokens:
    async def authenticate(self, request: Request) -> User:
        kind, _, name = request.headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or not name:
            raise problems.unauthorized("no token")
        return User(name)


class Rights:
    """The administrator may read everything, others the namespace of their name."""

    async def may(self, user: User, right: Right) -> bool:
        return user.name in {"admin", right.namespace}


def budget(namespace: str) -> GPUBudget:
    return GPUBudget(metadata=ObjectMeta(name="b", namespace=namespace), spec=GPUBudgetSpec(limit="10"))


def make_api(**changes: Any) -> Api:
    budgets = {f"{each}/b": budget(each) for each in ("vision", "speech")}
    access = LedgerAccess(FakeLedger(), "market", "USD")
    parts: dict[str, Any] = {"access": lambda: access, "budgets": lambda: budgets} | changes
    return make_cost_api(**parts, authenticator=Tokens(), authorizer=Rights(), clock=lambda: float(NOW))


async def ask(url: str, user: str = "admin", api: Api | None = None) -> Any:
    answer = await get((api or make_api()).asgi, url, {"Authorization": f"Bearer {user}"})
    return answer.json() | {"_status": answer.status}


async def test_costs_by_namespace_with_the_books_for_an_administrator() -> None:
    found = await ask("/api/v1/cost?window=7d")
    assert [(line["name"], line["cost"]) for line in found["lines"]] == [
        ("vision", "30.000000"),
        ("speech", "17.000000"),
    ]
    assert found["total"] == "47.000000"
    assert found["splitMethod"] == "market"
    assert found["unpricedGpuHours"] == 2.0
    assert found["books"] == {
        "fleet": "50.000000",
        "allocated": "47.000000",
        "idle": "0.000000",
        "unallocated": "3.000000",
        "reservedIdle": "0.000000",
    }


@pytest.mark.parametrize(
    ("query", "lines", "total"),
    [
        ("by=namespace", [("speech", "17.000000")], "17.000000"),
        ("by=team", [("b", "12.000000"), ("a", "5.000000")], "17.000000"),
        ("by=team&team=a", [("a", "5.000000")], "5.000000"),
        ("by=workload", [("speech/Job/y", "17.000000")], "17.000000"),
        ("by=namespace&namespace=vision", [], "0.000000"),
    ],
)
async def test_a_tenant_sees_and_counts_the_own_namespace_only(
    query: str, lines: list[tuple[str, str]], total: str
) -> None:
    found = await ask(f"/api/v1/cost?window=7d&{query}", "speech")
    assert [(line["name"], line["cost"]) for line in found["lines"]] == lines
    assert found["total"] == total
    assert found["unpricedGpuHours"] == 0
    assert "books" not in found


async def test_costs_of_nodes_are_for_those_who_may_read_all_namespaces() -> None:
    assert (await ask("/api/v1/cost?by=node", "speech"))["_status"] == 403
    assert (await ask("/api/v1/cost?by=node"))["lines"][0]["name"] == "n1"


async def test_budgets_of_other_namespaces_are_not_found() -> None:
    found = await ask("/api/v1/budgets", "speech")
    assert [each["namespace"] for each in found["budgets"]] == ["speech"]
    assert (await ask("/api/v1/budgets/speech/b", "speech"))["spec"]["limit"] == "10"
    hidden, absent = await ask("/api/v1/budgets/vision/b", "speech"), await ask("/api/v1/budgets/vision/x", "speech")
    assert hidden == absent
    assert hidden["_status"] == 404


async def test_lists_come_in_pages() -> None:
    first = await ask("/api/v1/cost?limit=1")
    assert [line["name"] for line in first["lines"]] == ["vision"]
    assert first["total"] == "47.000000"
    second = await ask(f"/api/v1/cost?limit=1&continue={first['continue']}")
    assert [line["name"] for line in second["lines"]] == ["speech"]
    assert "continue" not in second
    assert (await ask("/api/v1/cost?continue=zzz"))["_status"] == 400


async def test_opencost_clients_get_sets_by_step() -> None:
    found = await ask("/allocation/compute?window=7d&aggregate=label:team&step=1d&includeIdle=true")
    assert (found["code"], found["status"], len(found["data"])) == (200, "success", 7)
    line = found["data"][0]["a"]
    assert line["properties"] == {"cluster": "cluster", "team": "a"}
    assert line["totalCost"] == pytest.approx(5)
    assert line["gpuHours"] == pytest.approx(20 / 7)
    assert found["data"][0]["__idle__"]["totalCost"] == pytest.approx(3)
    whole = await ask("/allocation/compute?window=7d&aggregate=cluster&accumulate=true", "speech")
    assert whole["data"][0]["cluster"]["totalCost"] == pytest.approx(17)
    assert "__idle__" not in whole["data"][0]


@pytest.mark.parametrize(
    ("url", "detail"),
    [
        ("/api/v1/cost?window=soon", "window is a length"),
        ("/api/v1/cost?window=2026-01-02,2026-01-01", "its end comes after its start"),
        ("/api/v1/cost?by=color", "Invalid enum value"),
        ("/api/v1/cost?windows=7d", "unknown field `windows`"),
        ("/api/v1/cost?window=7d&window=8d", "window is given twice"),
        ("/api/v1/cost?limit=0", ">= 1"),
        ("/allocation/compute", "missing required field `window`"),
        ("/allocation/compute?window=365d&step=1m", "at most 400 steps"),
        ("/allocation/compute?window=7d&step=often", "step is a length"),
    ],
)
async def test_a_bad_request_says_what_is_wrong(url: str, detail: str) -> None:
    found = await ask(url)
    assert found["_status"] == 400
    assert detail in found["detail"]


async def test_without_a_token_nothing_is_shown() -> None:
    answer = await get(make_api().asgi, "/api/v1/cost")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (await get(make_api().asgi, "/api/v1/nothing")).status == 404
    assert (await get(make_api().asgi, "/api/v1/cost", method="POST")).status == 405
    assert (await get(make_api().asgi, "/openapi.json")).json()["openapi"] == "3.1.0"


async def test_large_bodies_and_many_requests_are_refused() -> None:
    answer = await get(make_api().asgi, "/api/v1/cost", {"content-length": "9999999"})
    assert answer.status == 413
    now = 0.0
    limiter = RateLimiter(1.0, 2, clock=lambda: now)
    limiter.take("a")
    limiter.take("a")
    with pytest.raises(problems.Problem) as refused:
        limiter.take("a")
    assert refused.value.status == 429
    limiter.take("b")
    now = 1.0
    limiter.take("a")


async def test_a_ledger_that_is_away_is_a_503_with_the_reason() -> None:
    def away() -> LedgerAccess:
        raise errors.Transient("the store cost.db does not exist yet")

    found = await ask("/api/v1/cost", api=make_api(access=away))
    assert (found["_status"], found["detail"]) == (503, "the store cost.db does not exist yet")


class Reviewer:
    """An API server that reviews tokens and rights, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def create(self, _resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(body)
        if body["kind"] == "TokenReview":
            is_valid = body["spec"]["token"] == "good"  # noqa: S105 -- a test's token
            user = {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}}
            return {"status": {"authenticated": is_valid, "user": user if is_valid else {}}}
        return {"status": {"allowed": body["spec"]["resourceAttributes"].get("namespace") == "ml"}}


def make_request(authorization: str) -> Request:
    headers = [(b"authorization", authorization.encode("latin-1"))]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers})


async def test_tokens_and_rights_are_asked_about_once_in_a_while() -> None:
    server, now = Reviewer(), [0.0]
    tokens = TokenAuthenticator(server, clock=lambda: now[0])  # type: ignore[arg-type]  # the one call it makes
    rights = AccessReviewer(server, clock=lambda: now[0])  # type: ignore[arg-type]  # same
    for _ in range(3):
        user = await tokens.authenticate(make_request("Bearer good"))
        assert await rights.may(user, Right("get", "g", "r", "ml"))
        assert not await rights.may(user, Right("get", "g", "r", "other"))
    assert user == User("ann", "", ("g",), (("k", ("v",)),))
    assert len(server.calls) == 3
    assert server.calls[1]["spec"]["extra"] == {"k": ["v"]}
    now[0] = 60.0
    await tokens.authenticate(make_request("Bearer good"))
    assert len(server.calls) == 4
    for bad in ("Bearer wrong", "Basic good", "Bearer", "Bearer a\x00b", "Bearer " + "x" * 20_000):
        with pytest.raises(problems.Problem, match="Unauthorized"):
            await tokens.authenticate(make_request(bad))


def test_no_request_that_the_document_allows_causes_a_server_error() -> None:
    api = make_api()
    api._users = RateLimiter(1e9, 10**9)
    schema = schemathesis.openapi.from_asgi("/openapi.json", api.asgi)
    for result in schema.get_all_operations():
        operation: Any = result

        @given(case=operation.ok().as_strategy())
        @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def check(case: Any) -> None:
            case.call_and_validate(headers={"Authorization": "Bearer admin"}, checks=[not_a_server_error])

        check()


def test_the_document_names_every_parameter_and_reply() -> None:
    document = make_api().document
    cost = document["paths"]["/api/v1/cost"]["get"]
    assert [each["name"] for each in cost["parameters"]] == ["window", "by", "namespace", "team", "limit", "continue"]
    one = document["paths"]["/api/v1/budgets/{namespace}/{name}"]["get"]
    assert {each["in"] for each in one["parameters"]} == {"path"}
    assert msgspec.json.encode(document)
    assert {"CostReply", "BudgetView", "AllocationReply", "ProblemDocument"} <= document["components"]["schemas"].keys()


def test_a_user_has_some_requests_at_a_time() -> None:
    limiter = ConcurrencyLimiter(2)
    with limiter.hold("a"), limiter.hold("a"), limiter.hold("b"), pytest.raises(problems.Problem) as refused:
        limiter.hold("a").__enter__()
    assert refused.value.status == 429
    with limiter.hold("a"):
        pass


async def test_a_team_named_like_idle_hides_no_cost() -> None:
    class Hiding(FakeLedger):
        def sum_accounts(self, start_s: int, end_s: int) -> dict[Account, Sums]:
            del start_s, end_s
            return {Account("vision", "__idle__"): Sums(30 * DOLLAR), Account("speech", ""): Sums(12 * DOLLAR)}

    access = LedgerAccess(Hiding(), "market", "USD")
    api = make_api(access=lambda: access)
    found = await ask("/allocation?window=7d&aggregate=label:team&includeIdle=true", api=api)
    assert {name: line["totalCost"] for name, line in found["data"][0].items()} == {
        "__unallocated__": 42.0,
        "__idle__": 3.0,
    }

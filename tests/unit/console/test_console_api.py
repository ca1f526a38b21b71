"""The console's API: what it answers, and that it shows what a user may list and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.support.fakes.asgi import Answer
from tests.support.fakes.console_bed import make_fleet, make_pod, make_workload, open_console, put

from kgwe.apps.console.identity import CSRF_HEADER
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.fakes.console_bed import ConsoleBed

WAITS = "0/2 nodes available: <script>alert(1)</script>"
ANN = frozenset({("pods", "vision"), ("gpuworkloads.kgwe.nvidia.io", "vision"), ("nodes", "")})


@pytest_asyncio.fixture
async def bed() -> AsyncIterator[ConsoleBed]:
    objects = [
        *make_fleet(2),
        make_pod("vision", "a", 2, "h100-0000"),
        make_pod("speech", "b", 4, "h100-0000"),
        make_pod("speech", "late", 8),
        make_workload("vision", "train", phase="Pending", message=WAITS),
        make_workload("speech", "secret", phase="Pending", message="waits"),
    ]
    async with open_console(objects) as found:
        found.rights.grants["ann"] = ANN
        yield found


async def test_an_administrator_sees_the_fleet_and_its_free_gpus(bed: ConsoleBed) -> None:
    fleet = await bed.read("/api/v1/fleet")
    assert [each["name"] for each in fleet["nodes"]] == ["h100-0000", "h100-0001"]
    held = [pod for gpu in fleet["nodes"][0]["gpus"] for pod in gpu.get("pods", [])]
    assert (held.count("vision/a"), held.count("speech/b")) == (2, 4)
    use = (await bed.read("/api/v1/overview"))["fleet"]
    assert (use["gpus"], use["held"], use["free"]) == (16, 6.0, 10.0)


async def test_pods_of_other_namespaces_are_neither_shown_nor_counted(bed: ConsoleBed) -> None:
    fleet = await bed.read("/api/v1/fleet", "ann")
    assert not fleet["complete"]
    assert {pod for node in fleet["nodes"] for gpu in node["gpus"] for pod in gpu.get("pods", [])} == {"vision/a"}
    overview = await bed.read("/api/v1/overview", "ann")
    assert (overview["fleet"]["held"], overview["fleet"]["free"]) == (2.0, None)
    assert overview["phases"] == {"Pending": 1, "Running": 1}
    work = await bed.read("/api/v1/workloads", "ann")
    assert (work["total"], work["namespaces"]) == (2, ["vision"])
    assert (await bed.read("/api/v1/queue", "ann"))["shares"] == {}
    for path in ("/api/v1/overview", "/api/v1/fleet", "/api/v1/workloads", "/api/v1/queue", "/api/v1/health"):
        assert b"speech" not in (await bed.get(path, "ann")).body


async def test_a_user_without_rights_sees_nothing(bed: ConsoleBed) -> None:
    assert (await bed.read("/api/v1/fleet", "eve"))["nodes"] == []
    assert (await bed.read("/api/v1/fleet", "eve"))["levels"] == []
    overview = await bed.read("/api/v1/overview", "eve")
    assert (overview["phases"], overview["fleet"]) == ({}, None)
    assert (await bed.get("/api/v1/fleet/h100-0000", "eve")).status == 404
    assert (await bed.get("/api/v1/explain/vision/train", "eve")).status == 404
    assert not (await bed.read("/api/v1/autoscaler", "eve"))["visible"]


async def test_a_workload_that_exists_and_one_that_does_not_look_equal_without_rights(bed: ConsoleBed) -> None:
    hidden = await bed.get("/api/v1/explain/speech/secret", "ann")
    missing = await bed.get("/api/v1/explain/speech/nothing", "ann")
    assert (hidden.status, hidden.body) == (missing.status, missing.body)


async def test_why_a_workload_waits_is_explained(bed: ConsoleBed) -> None:
    told = await bed.read("/api/v1/explain/speech/late?kind=pod")
    assert told["state"] == "Waiting"
    limited = await bed.read("/api/v1/explain/vision/train", "ann")
    assert WAITS in limited["summary"]
    assert b"speech" not in json.dumps(limited).encode()


async def test_a_list_is_filtered_sorted_paged_and_reduced(bed: ConsoleBed) -> None:
    page = await bed.read("/api/v1/workloads?limit=2&sort=-name&fields=name,phase")
    assert [each["name"] for each in page["items"]] == ["train", "secret"]
    assert all(set(each) == {"name", "phase"} for each in page["items"])
    rest = await bed.read(f"/api/v1/workloads?limit=10&sort=-name&continue={page['continue']}")
    assert [each["name"] for each in rest["items"]] == ["late", "b", "a"]
    assert [each["name"] for each in (await bed.read("/api/v1/workloads?search=SECR"))["items"]] == ["secret"]
    assert (await bed.read("/api/v1/workloads?phase=Running"))["total"] == 2
    for wrong in ("fields=nope", "sort=nope", "limit=0", "kind=x", "continue=!!", "unknown=1"):
        assert (await bed.get(f"/api/v1/workloads?{wrong}")).status == 400
    found = await bed.read("/api/v1/fleet?search=0001&fields=name")
    assert found["nodes"] == [{"name": "h100-0001"}]


@pytest.mark.parametrize(
    ("reason", "message", "is_stuck"),
    [
        ("TooLarge", "it asks for 999 GPUs", True),
        ("CostLimitExceeded", "it costs $9", True),
        ("BudgetExceeded", "Budget small is too small: the workload costs up to $9", True),
        ("BudgetExceeded", "Budget month has $1 left", False),
        ("InsufficientGPU", "0/2 nodes available", False),
    ],
)
async def test_workloads_that_waiting_does_not_help_need_attention(
    bed: ConsoleBed, reason: str, message: str, *, is_stuck: bool
) -> None:
    said = {"type": "Scheduled", "status": "False", "reason": reason, "message": message}
    put(bed.api, make_workload("vision", "stuck", phase="Pending", message=message, conditions=[said]))
    await bed.wait(lambda: len(bed.watch.stores.get(resources.GPU_WORKLOAD, {})) == 3)
    [row] = [each for each in (await bed.read("/api/v1/queue"))["items"] if each["name"] == "stuck"]
    assert (row["reason"], row.get("hopeless", False)) == (reason, is_stuck)
    alerts = (await bed.read("/api/v1/overview"))["alerts"]
    assert [(each["title"], each["text"]) for each in alerts] == [
        ("1 workload will not start by waiting", "vision/stuck")
    ] * is_stuck


async def test_decisions_of_one_second_are_shown_newest_first(tmp_path: Path) -> None:
    def write(name: str, *decisions: tuple[float, str]) -> None:
        lines = [{"kind": "decision", "at_s": at_s, "by": "plan", "ask": {"name": ask}} for at_s, ask in decisions]
        (tmp_path / name).write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")

    write("1.jsonl", (100.1, "first"), (100.2, "second"))
    write("2.jsonl", (100.2, "third"), (100.2, "fourth"), (99.0, "old"))
    os.utime(tmp_path / "1.jsonl", (1000, 1000))
    async with open_console([], records=str(tmp_path)) as found:
        items = (await found.read("/api/v1/decisions"))["items"]
    assert [each["name"] for each in items] == ["fourth", "third", "second", "first", "old"]


async def test_a_focus_file_needs_rights_in_all_namespaces(bed: ConsoleBed) -> None:
    assert (await bed.get("/api/v1/cost/focus", "ann")).status == 403
    # This console has no ledger.
    assert (await bed.get("/api/v1/cost/focus")).status == 503


async def test_a_plan_needs_rights_on_the_whole_cluster(bed: ConsoleBed) -> None:
    manifest = json.dumps(make_workload("vision", "new", 8))
    assert (await post(bed, "/api/v1/what-if", {"manifest": manifest}, "ann")).status == 403
    told = (await post(bed, "/api/v1/what-if", {"manifest": manifest})).json()
    assert told["results"][0]["state"] == "WouldStart"
    for wrong in ("", "a: [", "kind: Pod", "a: &x [1]\nb: *x", "x" * 70_000):
        answer = await post(bed, "/api/v1/what-if", {"manifest": wrong})
        assert answer.status in {400, 413}, answer.body


async def post(bed: ConsoleBed, path: str, body: Any, user: str = "admin", **headers: str) -> Answer:
    sent: list[dict[str, Any]] = []
    encoded = json.dumps(body).encode()
    raw = [(b"content-type", b"application/json"), *((k.encode(), v.encode()) for k, v in headers.items())]
    raw += [(b"authorization", f"Bearer {user}".encode())] if user else []
    scope = {
        "type": "http", "method": headers.pop("method", "POST"), "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": raw, "client": ("127.0.0.1", 1), "scheme": "https",
        "http_version": "1.1", "server": ("127.0.0.1", 8443), "state": {},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": encoded, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await bed.console.api.asgi(scope, receive, send)
    body_ = b"".join(each.get("body", b"") for each in sent[1:])
    return Answer(sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, body_)


async def test_a_code_signs_a_browser_in_once(bed: ConsoleBed) -> None:
    code = (await post(bed, "/api/v1/session/code", {}, "ann")).json()["code"]
    first = await post(bed, "/api/v1/session", {"code": code}, user="")
    cookie = first.headers["set-cookie"]
    assert all(word in cookie for word in ("__Host-kgwe=", "HttpOnly", "Secure", "SameSite=strict", "Path=/"))
    assert (await post(bed, "/api/v1/session", {"code": code}, user="")).status == 401
    session = {"cookie": cookie.partition(";")[0]}
    assert (await bed.get("/api/v1/session", "", **session)).json()["user"] == "ann"
    # What changes something needs the token of the session, which pages of other sites cannot read.
    assert (await post(bed, "/api/v1/what-if", {"manifest": ""}, user="", **session)).status == 403
    csrf = {CSRF_HEADER: first.json()["csrf"]}
    refused = await post(bed, "/api/v1/what-if", {"manifest": ""}, user="", **session, **csrf)
    assert b"whole cluster" in refused.body
    # A session makes no other sessions.
    assert (await post(bed, "/api/v1/session/code", {}, user="", **session, **csrf)).status == 401


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example", "host": "console"}, {"sec-fetch-site": "cross-site"}]
)
async def test_another_site_does_not_sign_a_browser_in(bed: ConsoleBed, headers: dict[str, str]) -> None:
    assert (await post(bed, "/api/v1/session", {"token": "ann"}, user="", **headers)).status == 403


async def test_an_expired_token_ends_the_session(bed: ConsoleBed) -> None:
    assert (await post(bed, "/api/v1/session", {"token": "expired"}, user="")).status == 401
    assert (await bed.get("/api/v1/fleet", "expired")).status == 401
    assert (await bed.get("/api/v1/fleet", "", cookie="__Host-kgwe=forged")).status == 401


async def test_changes_are_streamed_to_users_who_may_see_them(bed: ConsoleBed) -> None:
    async with streaming(bed, "admin") as all_events, streaming(bed, "ann") as own_events:
        put(bed.api, make_pod("speech", "new", 1, "h100-0001"))
        await bed.wait(lambda: any(each.metadata.name == "new" for each in bed.watch.state.pods.values()))
        bed.console.hub.flush()
        change = await all_events.get()
        assert change["nodes"][0]["name"] == "h100-0001"
        assert change["lists"] == ["work"]
        put(bed.api, make_pod("vision", "mine", 1, "h100-0001"))
        await bed.wait(lambda: any(each.metadata.name == "mine" for each in bed.watch.state.pods.values()))
        bed.console.hub.flush()
        # The first change was of another namespace: not even its time is visible.
        seen = await own_events.get()
        assert seen["version"] == 2
        assert "speech" not in json.dumps(seen)


@contextlib.asynccontextmanager
async def streaming(bed: ConsoleBed, user: str) -> AsyncIterator[asyncio.Queue[Any]]:
    """Yield the changes that a user gets."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    ready = asyncio.Event()
    stop = asyncio.Event()
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/stream", "raw_path": b"/api/v1/stream", "query_string": b"",
        "root_path": "", "headers": [(b"authorization", f"Bearer {user}".encode())], "client": ("127.0.0.1", 1),
        "scheme": "https", "http_version": "1.1", "server": ("127.0.0.1", 8443), "state": {},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await stop.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        for text in message.get("body", b"").split(b"\n\n"):
            if text.startswith(b"event: change"):
                events.put_nowait(json.loads(text.partition(b"data: ")[2]))
            elif text:
                ready.set()

    task = asyncio.create_task(bed.console.api.asgi(scope, receive, send))
    await ready.wait()
    try:
        yield events
    finally:
        stop.set()
        await task

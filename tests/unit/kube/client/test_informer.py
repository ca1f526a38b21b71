"""What an informer tells its handlers, and what it makes of objects and lines it cannot read.

`tests/integration/test_informer.py` has a real server.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import structlog
from tests.support.builders.things import Json
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.client import informer as informer_module
from kgwe.kube.transport.encoding import PROTOBUF

if TYPE_CHECKING:
    from kgwe.kube.client.informer import Change


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off shortened; its shape is tested by itself."""
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (0.005, 0.02))


# --- changes --------------------------------------------------------------------------------------------


async def test_an_event_may_arrive_in_any_number_of_pieces(things, server, seen, running):
    async with running(things):
        await things.synced.wait()
        events = b"".join(server.encoding.event("ADDED", server.thing(name)) for name in ("a", "b", "c"))
        for start in range(0, len(events), 7):
            server.send_bytes(events[start : start + 7])

        assert await seen.until(3) == ["new n/a", "new n/b", "new n/c"]


async def test_a_handler_added_late_hears_of_everything_known(things, server, running):
    server.thing("a")
    async with running(things):
        await things.synced.wait()
        told: list[Change[Any]] = []
        things.on_change(told.append)

        assert [(change.key, change.old) for change in told] == [("n/a", None)]


async def test_the_same_version_is_reported_once_however_often_it_arrives(things, server, seen, running):
    state = server.thing("a")
    async with running(things):
        await seen.until(1)
        server.send("ADDED", state)
        server.send("MODIFIED", state)
        server.send("MODIFIED", server.thing("a"))

        assert await seen.until(2) == ["new n/a", "changed n/a"]


async def test_a_namesake_is_the_end_of_one_object_and_the_start_of_another(things, server, seen, running):
    server.thing("a", uid="first")
    async with running(things):
        await seen.until(1)
        server.thing("a", uid="second")
        await things.resync()

    assert seen.words == ["new n/a", "gone n/a", "new n/a"]


async def test_deletions_are_told_before_additions_when_a_list_is_compared(things, server, seen, running):
    """Whoever counts room must not count the new object on top of the old."""
    server.thing("a")
    async with running(things):
        await seen.until(1)
        del server.objects["a"]
        server.thing("b")
        await things.resync()

    assert seen.words == ["new n/a", "gone n/a", "new n/b"]


async def test_a_bookmark_moves_the_version_that_a_watch_goes_on_from(things, server, running, eventually):
    async with running(things):
        await things.synced.wait()
        server.send("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": "777", "creationTimestamp": None}})
        server.end()
        await eventually(lambda: server.watches == 2)

    assert server.queries[-1]["resourceVersion"] == "777"
    assert server.lists == 1


async def test_an_unknown_kind_of_event_is_passed_over(things, server, seen, running):
    async with running(things):
        await things.synced.wait()
        server.send("SURPRISE", server.thing("x"))
        server.send("ADDED", server.thing("a"))

        assert await seen.until(1) == ["new n/a"]


@pytest.mark.parametrize("error", [errors.Permanent("bad quantity"), errors.InvariantBroken("no"), ValueError("no")])
async def test_a_handler_that_fails_on_one_object_hears_of_the_others(things, server, seen, error, running):
    """One object that nobody thought of must not stop a process that all others depend on."""
    failing = ["n/a"]
    heard: list[str] = []

    def fail(change: Change[Any]) -> None:
        if change.key in failing:
            raise error
        heard.append(change.key)

    reported: list[str] = []
    things._on_error = lambda key, _error: reported.append(key)
    things.on_change(fail)
    async with running(things):
        await things.synced.wait()
        server.send("ADDED", server.thing("a"))
        server.send("ADDED", server.thing("b"))
        assert await seen.until(2) == ["new n/a", "new n/b"], "other handlers hear of both"
        assert heard == ["n/b"]
        assert reported == ["n/a"]
        failing.clear()
        async with asyncio.timeout(PATIENCE_S):
            await things.resync()

    assert heard == ["n/b", "n/a"], "what failed is handed out again with the next list"
    assert things.failed == 1


# --- unreadable -----------------------------------------------------------------------------------------


async def test_an_unreadable_object_in_a_list_hides_no_other(things, server, running):
    for name in ("a", "b", "c"):
        server.thing(name)
    server.objects["b"]["size"] = "huge"
    async with running(things):
        await things.synced.wait()

        assert sorted(things.store) == ["n/a", "n/c"]
        assert things.skipped == 1


async def test_an_object_that_becomes_unreadable_keeps_its_last_state_also_through_a_list(
    things, server, seen, running
):
    server.thing("a", size=3)
    async with running(things):
        await seen.until(1)
        server.send("MODIFIED", server.thing("a", size="huge"))
        server.send("ADDED", server.thing("b"))
        await seen.until(2)
        await things.resync()

        assert things.store["n/a"].size == 3
        server.send("MODIFIED", server.thing("a", size=4))
        assert await seen.until(3) == ["new n/a", "new n/b", "changed n/a"]
        assert things.store["n/a"].size == 4


async def test_the_deletion_of_an_unreadable_object_is_seen(things, server, seen, running):
    server.thing("a")
    async with running(things):
        await seen.until(1)
        server.send("DELETED", server.thing("a", size="huge"))

        assert await seen.until(2) == ["new n/a", "gone n/a"]


async def test_an_unreadable_namesake_does_not_pass_for_the_object_known(things, server, seen, running):
    server.thing("a", uid="first")
    async with running(things):
        await seen.until(1)
        server.thing("a", uid="second", size="huge")
        await things.resync()

    assert seen.words == ["new n/a", "gone n/a"]


async def test_an_event_that_makes_no_sense_leads_to_a_new_list_because_what_it_said_is_lost(
    things, server, seen, running
):
    async with running(things):
        await things.synced.wait()
        for count, event in enumerate(server.encoding.garbled_events, start=1):
            server.thing(f"a{count}")
            server.send_bytes(event)

            assert (await seen.until(count))[-1] == f"new n/a{count}", event
            assert server.lists == 1 + count


async def test_a_list_that_makes_no_sense_is_tried_again(things, server, running):
    server.thing("a")
    garbled = server.encoding.garbled_lists
    server.answers += [functools.partial(_answer, body) for body in garbled]
    async with running(things):
        async with asyncio.timeout(PATIENCE_S):
            await things.synced.wait()

        assert list(things.store) == ["n/a"]
        assert server.lists == len(garbled) + 1


def _answer(body: bytes, _: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, content=body)


# --- encodings ------------------------------------------------------------------------------------------


async def test_a_server_may_answer_in_json_whatever_was_asked_for(things, server, seen, running):
    server.encoding, asked = Json(), server.encoding
    server.thing("a", size=3)
    async with running(things):
        await seen.until(1)
        server.send("MODIFIED", server.thing("a", size=4))

        assert await seen.until(2) == ["new n/a", "changed n/a"]
        assert things.store["n/a"].size == 4
    assert all(asked.content_type in accept for accept in server.accepted)


@pytest.mark.parametrize("refused", ["list", "watch"])
async def test_a_server_that_refuses_protobuf_is_asked_for_json(things, server, refused, seen, running, eventually):
    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        server.encoding = Json()
        if PROTOBUF not in request.headers["Accept"]:
            return None
        return httpx2.Response(406, json={"message": "only the following media types are accepted"})

    server.thing("a")
    server.answers += [refuse] if refused == "list" else [lambda _: None, refuse]
    async with running(things):
        await eventually(lambda: server.watches and PROTOBUF not in server.accepted[-1])
        server.send("ADDED", server.thing("b"))

        assert await seen.until(2) == ["new n/a", "new n/b"]
    assert things._failures == 0, "without a pause"


async def test_a_refusal_is_understood_in_either_encoding(things, server, running, monkeypatch):
    # A logger of its own: one that a test before this has used keeps the configuration of that time.
    monkeypatch.setattr("kgwe.kube.client.informer.log", structlog.get_logger())
    said = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "things is forbidden"}
    server.answers.append(lambda _: httpx2.Response(403, content=server.encoding.status(said)))
    with structlog.testing.capture_logs() as logs:
        async with running(things):
            await things.synced.wait()

    assert [entry["error"] for entry in logs if entry["event"] == "watch_interrupted"] == [
        "GET /apis/things.example/v1/things: things is forbidden"
    ]


async def test_bytes_are_kept_of_objects_that_somebody_wants_to_write_back(server, running, eventually):
    things = server.informer(keep=lambda thing: thing.size == 1)
    listed = server.thing("a", size=1)
    async with running(things):
        await things.synced.wait()
        assert server.kept(things, "a") == server.encoding.bare(listed)
        changed = server.thing("a", size=1)
        server.send("MODIFIED", changed)
        old = things.store["n/a"]
        await eventually(lambda: things.store["n/a"] is not old)
        assert server.kept(things, "a") == server.encoding.bare(changed)
        assert things.bytes_of(old) == b"", "of another state than the one known"
        server.send("MODIFIED", server.thing("a", size=2))
        await eventually(lambda: things.store["n/a"].size == 2)
        assert server.kept(things, "a") == b""
        server.send("ADDED", server.thing("b", size=1))
        await eventually(lambda: "n/b" in things.store)
        last = things.store["n/b"]
        server.send("DELETED", server.thing("b", size=1))
        await eventually(lambda: "n/b" not in things.store)
        assert things.bytes_of(last) == b""
    assert things._kept == {}


async def test_not_everything_is_kept_however_much_there_is(server, running, monkeypatch):
    monkeypatch.setattr(informer_module, "_KEPT", 2)
    for number in range(5):
        server.thing(f"a{number}")
    things = server.informer(keep=lambda _: True)
    async with running(things):
        await things.synced.wait()

    assert len(things.store) == 5
    assert len(things._kept) == (2 if server.encoding.bare(server.thing("a0")) else 0)

"""What an informer tells its handlers, and what it makes of objects and lines it cannot read.

`tests/integration/test_informer.py` has a real server.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from kgwe import errors
from kgwe.kube import informer as informer_module

if TYPE_CHECKING:
    from kgwe.kube.informer import Change


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off shortened; its shape is tested by itself."""
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (0.005, 0.02))


# --- changes --------------------------------------------------------------------------------------------


async def test_a_line_may_arrive_in_any_number_of_pieces(things, server, seen, running):
    async with running(things):
        await things.synced.wait()
        lines = b"".join(
            json.dumps({"type": "ADDED", "object": server.thing(name)}).encode() + b"\n" for name in ("a", "b", "c")
        )
        for start in range(0, len(lines), 7):
            server.send_bytes(lines[start : start + 7])

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


@pytest.mark.parametrize("error", [errors.Permanent("bad quantity"), ValueError("a mistake")])
async def test_a_handler_that_fails_ends_the_informer(things, server, error, running):
    """Tried again it would be skipped, because the store already has that version; memory would be short of it."""

    def fail(change: Change[Any]) -> None:
        del change
        raise error

    things.on_change(fail)
    async with running(things) as task:
        await things.synced.wait()
        server.send("ADDED", server.thing("a"))
        async with asyncio.timeout(10):
            with pytest.raises((errors.InvariantBroken, ValueError)) as caught:
                await task

    assert not isinstance(caught.value, errors.Permanent)


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


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"<html>\n", id="not JSON"),
        pytest.param(b'{"type": 5, "object": {}}\n', id="another shape"),
        pytest.param(b'{"type": "ADDED", "object": {"spec": {}}}\n', id="no metadata"),
        pytest.param(b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}\n', id="not text"),
        pytest.param(b'{"type": "ERROR", "object": 5}\n', id="an error that says nothing"),
    ],
)
async def test_a_line_that_makes_no_sense_leads_to_a_new_list_because_what_it_said_is_lost(
    things, server, line, seen, running
):
    async with running(things):
        await things.synced.wait()
        server.thing("a")
        server.send_bytes(line)

        assert await seen.until(1) == ["new n/a"]
        assert server.lists == 2


@pytest.mark.parametrize("body", [b"<html>", b'{"items": 5}', b'{"items": ["\xff"]}', b'{"items": []}', b""])
async def test_a_list_that_makes_no_sense_is_tried_again(things, server, body, running):
    server.thing("a")
    server.answers.append(lambda _: httpx2.Response(200, content=body))
    async with running(things):
        async with asyncio.timeout(10):
            await things.synced.wait()

        assert list(things.store) == ["n/a"]

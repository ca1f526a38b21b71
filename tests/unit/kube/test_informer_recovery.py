"""How an informer goes on after cuts, expiries, refusals and calls for a fresh list.

`tests/integration/test_informer.py` has a real server.
"""

from __future__ import annotations

import asyncio
import functools

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.client import informer as informer_module


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off shortened; its shape is tested by itself."""
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (0.005, 0.02))


# --- interruptions --------------------------------------------------------------------------------------


async def test_a_cut_connection_is_taken_up_from_the_last_version_without_a_list(
    things, server, seen, running, eventually
):
    async with running(things):
        await things.synced.wait()
        state = server.thing("a")
        server.send("ADDED", state)
        await seen.until(1)
        half = server.encoding.event("ADDED", state)
        server.send_bytes(half[: len(half) // 2])  # then nothing
        server.cut()
        await eventually(lambda: server.watches == 2)
        server.send("ADDED", server.thing("b"))
        await seen.until(2)

    assert server.lists == 1
    assert server.queries[-1]["resourceVersion"] == state["metadata"]["resourceVersion"]


async def test_an_expired_version_is_answered_by_a_list_whose_difference_is_reported(things, server, seen, running):
    server.thing("a")
    async with running(things):
        await seen.until(1)
        del server.objects["a"]
        server.thing("b")
        server.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})

        assert await seen.until(3) == ["new n/a", "gone n/a", "new n/b"]


async def test_a_server_that_expires_every_version_is_not_asked_without_pause(
    things, server, monkeypatch, running, eventually
):
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (30.0, 30.0))
    for _ in range(50):
        server.send("ERROR", {"kind": "Status", "code": 410})
        server.end()
    async with running(things):
        await eventually(lambda: things._failures == 2)

    assert server.lists == 2


async def test_a_server_that_hangs_up_at_once_is_not_asked_without_pause(
    things, server, monkeypatch, running, eventually
):
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (30.0, 30.0))
    for _ in range(50):
        server.end()
    async with running(things):
        await eventually(lambda: things._failures == 1)

    assert server.watches == 1


async def test_a_watch_that_worked_starts_the_back_off_anew(things, server, seen, running, eventually):
    def watched(times: int) -> bool:
        return bool(server.watches == times)

    async with running(things):
        await things.synced.wait()
        for count in range(1, 8):
            server.send("ADDED", server.thing(f"a{count}"))
            await seen.until(count)
            server.cut()
            await eventually(functools.partial(watched, count + 1))
            assert things._failures <= 1


@pytest.mark.parametrize("code", [403, 404, 422])
async def test_what_may_still_be_granted_or_installed_is_asked_for_again(things, server, code, running):
    server.thing("a")
    server.answers += [lambda _: httpx2.Response(code, json={"message": "not yet"})] * 3
    async with running(things):
        assert not things.has_synced
        async with asyncio.timeout(PATIENCE_S):
            await things.synced.wait()

    assert server.lists == 4


async def test_a_kind_that_vanished_and_came_back_is_listed_anew(things, server, seen, running):
    server.thing("a")
    async with running(things):
        await seen.until(1)
        server.objects.clear()
        server.answers.append(lambda _: httpx2.Response(404, json={"message": "the server could not find it"}))
        server.cut()

        assert await seen.until(2) == ["new n/a", "gone n/a"]


async def test_a_list_that_outlives_its_version_is_taken_whole(things, server, running):
    server.thing("a")
    server.answers += [
        lambda _: httpx2.Response(200, content=server.encoding.page([server.thing("stale")], "5", more="more")),
        lambda _: httpx2.Response(410, json={"reason": "Expired"}),
    ]
    async with running(things):
        async with asyncio.timeout(PATIENCE_S):
            await things.synced.wait()
        assert server.queries[1]["continue"] == "more"
        assert server.queries[2] == {}


def test_back_off_doubles_with_failures_listens_to_the_server_and_has_a_ceiling(things, monkeypatch):
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (0.2, 10.0))

    def waits(exc: errors.KgweError, failures: int) -> float:
        things._failures = failures
        wait_s: float = things._backoff_s(exc)
        return wait_s

    lost = errors.Transient("reset")
    assert 0.1 <= waits(lost, 0) <= 0.2
    assert 0.4 <= waits(lost, 2) <= 0.8
    assert 5 <= waits(lost, 500) <= 10
    assert 5 <= waits(errors.NotFound("no CRD yet"), 500) <= 10
    assert 3 <= waits(errors.Transient("busy", retry_after_s=3), 0) <= 3.3
    assert waits(errors.Transient("closed until next year", retry_after_s=3e7), 0) <= 66


# --- resync ---------------------------------------------------------------------------------------------


async def test_resync_during_a_watch_returns_with_what_is_there_now(things, server, running):
    async with running(things):
        await things.synced.wait()
        server.thing("a")
        async with asyncio.timeout(PATIENCE_S):
            await things.resync()

        assert "n/a" in things.store


async def test_resync_during_a_list_waits_for_another_list(things, server, running, eventually):
    """The read under way may have begun before what the caller must see."""
    server.hold_list = asyncio.Event()
    async with running(things):
        await eventually(lambda: server.lists == 1)
        server.thing("a")  # after the server has read, before it has answered
        waiting = asyncio.ensure_future(things.resync())
        await asyncio.sleep(0)
        server.hold_list.set()
        async with asyncio.timeout(PATIENCE_S):
            await waiting

        assert "n/a" in things.store
        assert server.lists == 2


async def test_resync_cuts_a_back_off_short(things, server, monkeypatch, running, eventually):
    monkeypatch.setattr(informer_module, "_BACKOFF_S", (60.0, 60.0))
    server.answers.append(lambda _: httpx2.Response(500))
    async with running(things):
        await eventually(lambda: things._failures == 1)
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await things.resync()

    assert server.lists == 2


async def test_resync_outlasts_failures_without_hammering(things, server, running):
    server.answers += [lambda _: httpx2.Response(500)] * 4
    async with running(things):
        async with asyncio.timeout(PATIENCE_S):
            await things.resync()

    assert server.lists == 5


async def test_many_resyncs_at_once_share_a_list(things, server, running):
    async with running(things):
        await things.synced.wait()
        before = server.lists
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(things.resync() for _ in range(20)))

    assert server.lists == before + 1


async def test_a_resync_given_up_by_its_caller_leaves_the_informer_watching(things, server, seen, running, eventually):
    async with running(things):
        await things.synced.wait()
        waiting = asyncio.ensure_future(things.resync())
        await asyncio.sleep(0)
        waiting.cancel()
        await eventually(lambda: server.lists == 2 and server.watches >= 1)
        server.send("ADDED", server.thing("a"))

        assert await seen.until(1) == ["new n/a"]


async def test_whoever_waits_for_a_resync_hears_that_the_informer_was_stopped(things, server, running, eventually):
    server.hold_list = asyncio.Event()
    async with running(things) as task:
        waiting = asyncio.ensure_future(things.resync())
        await eventually(lambda: server.lists == 1)
        late = asyncio.ensure_future(things.resync())
        await asyncio.sleep(0)
        task.cancel()
        for waiter in (waiting, late):
            with pytest.raises(errors.Transient, match="stopped"):
                await waiter


async def test_an_informer_stopped_in_any_state_stops_at_once(things, server, running, eventually):
    server.hold_list = asyncio.Event()
    async with running(things) as listing:
        await eventually(lambda: server.lists == 1)
    assert listing.cancelled()

    server.hold_list = None
    async with running(things) as watching:
        async with asyncio.timeout(PATIENCE_S):
            await server.watching.wait()
    assert watching.cancelled()


async def test_an_informer_started_again_goes_on_where_it_stopped(things, server, seen, running, eventually):
    server.thing("a")
    async with running(things):
        await seen.until(1)
        await server.watching.wait()
    async with running(things):
        await eventually(lambda: server.watches == 2)

    assert seen.words == ["new n/a"]
    assert server.lists == 1

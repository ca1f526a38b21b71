"""Which events are written, which only counted, and which are let go; on a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client import events
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import Event, EventRecorder
from kgwe.kube.transport.httpx_transport import HttpxTransport


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class EventServer:
    """Stores Events; answers in a given way when told to."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self.answers: list[int] = []
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.writes += 1
        if self.answers and (code := self.answers.pop(0)) != 200:
            return httpx2.Response(code, json={"message": "no"})
        body = json.loads(request.content)
        name = request.url.path.rpartition("/")[2]
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.stored:
                return httpx2.Response(409, json={"reason": "AlreadyExists"})
            self.stored[name] = body
        elif name not in self.stored:
            return httpx2.Response(404)
        else:
            self.stored[name] |= body
        self.arrived.set()
        if self.hold is not None:
            await self.hold.wait()
        return httpx2.Response(200, json=self.stored[name])

    @property
    def only(self) -> dict[str, Any]:
        (event,) = self.stored.values()
        return event


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> EventServer:
    return EventServer()


@pytest.fixture
def recorder(server: EventServer, clock: Clock) -> EventRecorder:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="https://cluster.example")
    return EventRecorder(
        KubeClient(HttpxTransport(http)),
        controller="kgwe.io/tester",
        instance="tester-1",
        quiet_s=300,
        backlog=5,
        clock=clock,
    )


def waiting(note: str = "no room", *, name: str = "job", uid: str = "u-1", reason: str = "NoRoom") -> Event:
    about = ObjectMeta(name=name, namespace="n", uid=uid, resourceVersion="7")
    return Event(resources.JOB, about, "Warning", reason, note, "Scheduling")


async def test_an_event_says_what_happened_to_what_and_who_says_so(recorder, server):
    recorder.record(waiting())
    await recorder.flush()

    event = server.only
    assert event["metadata"]["name"].startswith("job.")
    assert event["metadata"]["namespace"] == "n"
    assert event["regarding"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "job",
        "namespace": "n",
        "uid": "u-1",
        "resourceVersion": "7",
    }
    said = {key: event[key] for key in ("type", "reason", "note", "action", "reportingController")}
    assert said == {
        "type": "Warning",
        "reason": "NoRoom",
        "note": "no room",
        "action": "Scheduling",
        "reportingController": "kgwe.io/tester",
    }


async def test_repeats_cost_nothing_before_and_after_the_first_was_written(recorder, server, clock):
    for _ in range(10):
        recorder.record(waiting())
    await recorder.flush()
    for _ in range(10):
        clock.now += 10
        recorder.record(waiting())
    await recorder.flush()

    assert server.writes == 1
    assert recorder.suppressed == 19


async def test_a_repeat_after_the_quiet_time_raises_the_count_of_the_event_there_is(recorder, server, clock):
    for _ in range(3):
        recorder.record(waiting())
    await recorder.flush()
    clock.now += 301
    recorder.record(waiting())
    await recorder.flush()

    assert server.only["series"]["count"] == 4
    assert server.writes == 2
    clock.now += 299
    recorder.record(waiting())
    await recorder.flush()
    assert server.writes == 2


async def test_another_note_reason_or_object_is_another_event(recorder, server):
    for event in (waiting(), waiting("other"), waiting(reason="Other"), waiting(uid="u-2"), waiting(name="b", uid="")):
        recorder.record(event)
    await recorder.flush()

    assert len(server.stored) == 5


async def test_objects_without_a_uid_are_told_apart_by_name(recorder, server):
    recorder.record(waiting(name="a", uid=""))
    recorder.record(waiting(name="b", uid=""))
    await recorder.flush()

    assert len(server.stored) == 2


async def test_a_full_backlog_drops_and_counts_and_can_be_told_again_later(recorder, server):
    for number in range(8):
        recorder.record(waiting(f"note {number}"))
    assert recorder.dropped == 3
    await recorder.flush()
    assert len(server.stored) == 5

    recorder.record(waiting("note 7"))
    await recorder.flush()

    assert len(server.stored) == 6


@pytest.mark.parametrize("code", [403, 404, 429, 500])
async def test_a_refused_event_is_let_go_and_the_next_one_like_it_is_tried(recorder, server, code):
    server.answers = [code]
    recorder.record(waiting())
    await recorder.flush()
    assert recorder.dropped == 1

    recorder.record(waiting())
    await recorder.flush()

    assert server.only["note"] == "no room"


async def test_an_event_the_server_has_forgotten_is_started_anew(recorder, server, clock):
    recorder.record(waiting())
    await recorder.flush()
    (first,) = server.stored
    server.stored.clear()
    clock.now += 301
    recorder.record(waiting())
    await recorder.flush()

    (second,) = server.stored
    assert second != first
    assert "series" not in server.only


async def test_a_write_cut_off_by_the_stop_is_finished_by_flush_and_not_doubled(recorder, server):
    server.hold = asyncio.Event()
    recorder.record(waiting())
    recorder.record(waiting("another"))
    running = asyncio.ensure_future(recorder.run())
    async with asyncio.timeout(PATIENCE_S):
        await server.arrived.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    server.hold = None

    await recorder.flush()

    assert sorted(event["note"] for event in server.stored.values()) == ["another", "no room"]
    assert recorder.dropped == 0


async def test_flush_gives_up_in_time_and_says_what_was_lost(recorder, server):
    server.hold = asyncio.Event()
    for number in range(3):
        recorder.record(waiting(f"note {number}"))

    await recorder.flush(timeout_s=0.01)

    assert recorder.dropped == 3


async def test_what_the_server_would_refuse_for_its_length_is_cut(server, clock):
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="https://cluster.example")
    recorder = EventRecorder(
        KubeClient(HttpxTransport(http)), controller="kgwe.io/tester", instance="i" * 300, clock=clock
    )
    recorder.record(waiting("ü" * 2000, name="a" * 199 + "-" + "b" * 40, reason="R" * 300))
    await recorder.flush()

    event = server.only
    assert len(event["note"].encode()) == 1024
    assert len(event["reason"]) == 128
    assert len(event["reportingInstance"]) == 128
    assert event["metadata"]["name"].startswith("a" * 199 + ".")
    assert len(event["metadata"]["name"]) <= 253


async def test_memory_of_what_was_written_is_bounded(recorder, server, monkeypatch):
    monkeypatch.setattr(events, "_REMEMBERED", 3)
    for number in range(10):
        recorder.record(waiting(f"note {number}"))
        await recorder.flush()

    assert len(recorder._written) == 3
    assert server.writes == 10


async def test_an_event_does_not_control_the_terminal_of_a_reader(recorder, server):
    recorder.record(waiting("no class \x1b[2J\u202e"))
    await recorder.flush()

    assert server.only["note"] == r"no class \u001b[2J\u202e"

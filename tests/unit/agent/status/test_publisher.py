"""The GPUNode is written when something changed, and at no other time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.fakes.one_node import NODE, OneNode
from tests.support.machines import memory_driver
from tests.support.patience import PATIENCE_S

from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.agent.status import publisher as publishing
from kgwe.apps.agent.status.publisher import DRIVER_READY, StatusPublisher
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.meta import Condition
from kgwe.kube.client.informer import Change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

STATUS = gpunode_status.build_status(memory_driver.machine(memory_driver.node()))
READY = (Condition(DRIVER_READY, "True", "Ready"),)
NOT_READY = (Condition(DRIVER_READY, "False", "Unavailable", "no library"),)
BROKEN = msgspec.structs.replace(STATUS, healthyGPUs=7)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_SPACING_S", 0.0)
    monkeypatch.setattr(publishing, "_RETRY_S", 0.001)
    monkeypatch.setattr(publishing, "_REFUSED_RETRY_S", 0.001)


@contextlib.asynccontextmanager
async def running(
    server: OneNode, heartbeat_s: float = 3600.0, on_write: Callable[[str, int], None] = lambda _kind, _size: None
) -> AsyncIterator[StatusPublisher]:
    async with server.client() as client:
        publisher = StatusPublisher(client, NODE, heartbeat_s=heartbeat_s, on_write=on_write)
        task = asyncio.create_task(publisher.run())
        try:
            yield publisher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - counters set no event
            await asyncio.sleep(0.002)


async def settle() -> None:
    """Long enough for anything that wants to write to do so."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_the_first_report_makes_the_object_and_its_status():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        assert server.kinds == ["object", "status"]
        assert server.writes[0][1]["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid"}
        ]
        assert server.writes[0][1]["spec"] == {"source": "Agent"}
        status = server.writes[1][1]["status"]
        assert (status["gpuCount"], status["healthyGPUs"], len(status["gpus"])) == (8, 8, 8)
        assert status["conditions"][0]["lastTransitionTime"] == status["heartbeatTime"]


async def test_the_same_again_is_not_written_and_a_change_is():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        for _ in range(5):
            publisher.set_status(STATUS, READY)
            await settle()
        assert len(server.writes) == 2
        publisher.set_status(BROKEN, READY)
        await until(lambda: len(server.writes) == 3)
        assert server.kinds[2:] == ["status"]
        publisher.set_status(BROKEN, NOT_READY)
        await until(lambda: len(server.writes) == 4)


async def test_a_restarted_agent_that_finds_what_it_knows_writes_nothing():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        there = publisher.stored
    async with running(server) as again:
        again.on_change(Change(NODE, None, there))
        again.set_status(STATUS, READY)
        await settle()
        assert len(server.writes) == 2


async def test_conditions_keep_the_time_of_their_last_change():
    server = OneNode()
    times = iter(dt.datetime(2026, 11, 16, hour, tzinfo=dt.UTC) for hour in range(24))
    async with running(server) as publisher:
        publisher._now = lambda: next(times)
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        publisher.set_status(BROKEN, READY)
        await until(lambda: len(server.writes) == 3)
        first, second = (body["status"] for kind, body in server.writes if kind == "status")
        assert first["conditions"] == second["conditions"]
        assert first["heartbeatTime"] != second["heartbeatTime"]
        publisher.set_status(BROKEN, NOT_READY)
        await until(lambda: len(server.writes) == 4)
        third = server.writes[-1][1]["status"]
        assert third["conditions"][0]["lastTransitionTime"] == third["heartbeatTime"]


async def test_while_the_server_is_away_the_newest_report_is_kept():
    server = OneNode()
    async with running(server) as publisher:
        server.failing = 10**9
        publisher.set_status(STATUS, READY)
        await until(lambda: bool(publisher.problem))
        publisher.set_status(BROKEN, READY)
        await settle()
        server.failing = 0
        await until(lambda: len(server.writes) == 2)
        assert server.writes[1][1]["status"]["healthyGPUs"] == 7
        await until(lambda: not publisher.problem)


@pytest.mark.parametrize("code", [401, 403, 404, 409, 422, 429, 500])
async def test_no_refusal_ends_it(code):
    server = OneNode()
    server.code, server.failing = code, 5
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: server.kinds == ["object", "status"])


async def test_without_its_node_it_waits():
    server = OneNode()
    server.has_node = False
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: "not found" in publisher.problem)
        assert not server.writes
        server.has_node = True
        await until(lambda: server.kinds == ["object", "status"])


async def test_a_deleted_object_is_made_anew():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        server.obj = None
        publisher.on_change(Change(NODE, publisher.stored, None))
        await until(lambda: server.kinds[2:] == ["object", "status"])


async def test_what_somebody_wrote_over_is_written_again_with_the_next_report():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        assert publisher.stored is not None
        metadata = msgspec.structs.replace(publisher.stored.metadata, resourceVersion="99")
        other = msgspec.structs.replace(publisher.stored, metadata=metadata, status=gpunode.GPUNodeStatus())
        publisher.on_change(Change(NODE, publisher.stored, other))
        publisher.set_status(STATUS, READY)
        await until(lambda: server.kinds[2:] == ["status"])


async def test_a_late_word_of_the_watch_is_no_news():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        assert publisher.stored is not None
        metadata = msgspec.structs.replace(publisher.stored.metadata, resourceVersion="3")
        old = msgspec.structs.replace(publisher.stored, metadata=metadata, status=gpunode.GPUNodeStatus())
        publisher.on_change(Change(NODE, None, old))
        publisher.set_status(STATUS, READY)
        await settle()
        assert len(server.writes) == 2


async def test_conditions_of_others_are_none_of_its_business():
    server = OneNode()
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        assert publisher.stored is not None
        status = publisher.stored.status
        more = msgspec.structs.replace(status, conditions=(*status.conditions, Condition("Other", "True")))
        publisher.stored = msgspec.structs.replace(publisher.stored, status=more)
        publisher.set_status(STATUS, READY)
        await settle()
        assert len(server.writes) == 2


async def test_a_server_with_an_older_definition_is_not_written_to_for_ever():
    server = OneNode()
    server.unknown = ("cudaVersion",)
    async with running(server) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: len(server.writes) == 2)
        for _ in range(3):
            publisher.set_status(STATUS, READY)
            await settle()
        assert len(server.writes) == 2


async def test_the_heartbeat_is_one_field():
    server = OneNode()
    sizes: list[tuple[str, int]] = []
    on_write = lambda kind, size: sizes.append((kind, size))  # noqa: E731 - one line
    async with running(server, heartbeat_s=0.05, on_write=on_write) as publisher:
        publisher.set_status(STATUS, READY)
        await until(lambda: server.kinds[2:4] == ["heartbeat", "heartbeat"])
        assert next(list(body["status"]) for kind, body in server.writes if kind == "heartbeat") == ["heartbeatTime"]
        assert dict(sizes)["heartbeat"] < 100
        assert publisher.stored is not None
        assert publisher.stored.status.gpuCount == 8

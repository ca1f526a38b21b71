"""Events as the real API server stores them and `kubectl describe` finds them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.events import Event, EventRecorder

pytestmark = pytest.mark.cluster

CONFIG_MAP: Resource[Any] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=dict[str, Any])


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(client, clock) -> EventRecorder:
    return EventRecorder(client, controller="kgwe.io/tester", instance="tester-1", quiet_s=300, clock=clock)


async def config_map(client, namespace: str, name: str = "subject") -> ObjectMeta:
    stored = await client.create(CONFIG_MAP, {"metadata": {"name": name}}, namespace)
    return msgspec.convert(stored["metadata"], ObjectMeta)


def happened(about: ObjectMeta, note: str = "it waits", resource: Resource[Any] = CONFIG_MAP) -> Event:
    return Event(resource, about, "Warning", "Waiting", note, "Scheduling")


async def described(client, about: ObjectMeta) -> list[dict[str, Any]]:
    """The Events that `kubectl describe` lists below an object."""
    selector = f"involvedObject.name={about.name},involvedObject.uid={about.uid}"
    body = await client.request(
        "GET", f"/api/v1/namespaces/{about.namespace or 'default'}/events", params={"fieldSelector": selector}
    )
    items: list[dict[str, Any]] = msgspec.json.decode(body)["items"]
    return items


async def test_repeats_are_one_event_whose_count_is_raised_after_the_quiet_time(client, namespace, recorder, clock):
    about = await config_map(client, namespace)
    for _ in range(5):
        recorder.record(happened(about))
    await recorder.flush(30)
    (event,) = await described(client, about)
    assert event["reason"] == "Waiting"
    assert event["message"] == "it waits"
    assert event["type"] == "Warning"
    assert event["reportingComponent"] == "kgwe.io/tester"
    assert "series" not in event

    clock.now += 301
    recorder.record(happened(about))
    await recorder.flush(30)

    (event,) = await described(client, about)
    assert event["series"]["count"] == 6
    assert event["series"]["lastObservedTime"] > event["eventTime"]
    assert recorder.dropped == 0


async def test_events_of_different_kinds_are_written_in_order_while_running(client, namespace, recorder):
    about = await config_map(client, namespace)
    for number in range(5):
        recorder.record(happened(about, f"step {number}"))
    running = asyncio.ensure_future(recorder.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await described(client, about)) < 5:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert [e["message"] for e in sorted(found, key=lambda e: str(e["eventTime"]))] == [f"step {n}" for n in range(5)]


async def test_an_event_deleted_meanwhile_is_started_anew(client, namespace, recorder, clock):
    about = await config_map(client, namespace)
    recorder.record(happened(about))
    await recorder.flush(30)
    (event,) = await described(client, about)
    await client.delete(resources.EVENT, event["metadata"]["name"], namespace)
    clock.now += 301

    recorder.record(happened(about))
    await recorder.flush(30)

    (event,) = await described(client, about)
    assert "series" not in event


async def test_events_about_cluster_scoped_objects_are_accepted(client, recorder):
    """They live in the namespace `default`."""
    stored = await client.create(resources.NODE, {"metadata": {"name": f"event-node-{uuid.uuid4().hex[:8]}"}})
    try:
        recorder.record(happened(stored.metadata, "the fan is loud", resources.NODE))
        await recorder.flush(30)

        (event,) = await described(client, stored.metadata)
        assert event["message"] == "the fan is loud"
        assert recorder.dropped == 0
        await client.delete(resources.EVENT, event["metadata"]["name"], "default")
    finally:
        await client.delete(resources.NODE, stored.metadata.name)


async def test_the_longest_of_everything_is_accepted(client, namespace):
    recorder = EventRecorder(client, controller="kgwe.io/tester", instance="i" * 300)
    about = await config_map(client, namespace, "a" * 199 + "-" + "b" * 40)
    recorder.record(
        Event(CONFIG_MAP, about, "Normal", "Reason" * 40, "long note: " + "ü€" * 2000, "action " + "word " * 60)
    )
    await recorder.flush(30)

    assert recorder.dropped == 0
    assert len(await described(client, about)) == 1


async def test_a_namespace_that_is_going_away_costs_the_event_and_nothing_else(client, recorder):
    name = f"going-{uuid.uuid4().hex[:8]}"
    await client.create(resources.NAMESPACE, {"metadata": {"name": name}})
    body = {"metadata": {"name": "subject", "finalizers": ["kgwe.io/test-holds-it"]}}
    stored = await client.create(CONFIG_MAP, body, name)
    about = msgspec.convert(stored["metadata"], ObjectMeta)
    await client.delete(resources.NAMESPACE, name)
    try:
        recorder.record(happened(about))
        await recorder.flush(30)

        assert recorder.dropped == 1
        assert await described(client, about) == []
    finally:
        await client.patch(CONFIG_MAP, "subject", {"metadata": {"finalizers": None}}, name)


async def test_a_namespace_that_never_was_costs_the_event_and_nothing_else(recorder):
    recorder.record(happened(ObjectMeta(name="nobody", namespace="nowhere-at-all", uid="u")))
    await recorder.flush(30)

    assert recorder.dropped == 1

"""Telemetry that clients push: bounded, checked, and never lost silently."""

import asyncio
import math

import pytest

from kgwe import errors
from kgwe.apps.optimizer.inbox import TelemetryInbox, read_samples
from kgwe.metrics.fields import Field
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc.server import Exhausted

NOW_S = 1_800_000_000.0


class Sink:
    def __init__(self):
        self.taken = []

    def push(self, scrape, at_s):
        self.taken.append((scrape, at_s))


def find_node(pod):
    return {"train-0": "n1", "pending": None}.get(pod.name)


def _message(**changes):
    sample = pb.DeviceSample(uuid="GPU-1", namespace="ml", pod="train-0", activity=0.5, memory_used_mib=100)
    return pb.Telemetry(**{"node": "n1", "at_s": NOW_S, "devices": [sample], **changes})


async def _send(inbox, *messages):
    async def stream():
        for each in messages:
            yield each

    task = asyncio.create_task(inbox.run())
    try:
        return await inbox.receive(stream())
    finally:
        await asyncio.sleep(0)
        task.cancel()


async def test_samples_reach_the_sink():
    sink = Sink()
    inbox = TelemetryInbox(sink, size=10, find_node=find_node, now=lambda: NOW_S)
    reply = await _send(inbox, _message(), _message(at_s=NOW_S - 15))
    assert (reply.accepted, dict(reply.rejected)) == (2, {})
    (scrape, at_s), _ = sink.taken
    assert at_s == NOW_S
    assert scrape.devices[0].key.pod == ("ml", "train-0")
    assert scrape.values[0, Field.ENGINE] == 0.5
    assert math.isnan(scrape.values[0, Field.POWER])


async def test_bad_messages_are_counted_and_the_rest_is_taken():
    inbox = TelemetryInbox(Sink(), size=10, find_node=find_node, now=lambda: NOW_S)
    bad = [_message(node=""), _message(at_s=math.nan), _message(at_s=-1), _message(at_s=NOW_S + 3600)]
    reply = await _send(inbox, *bad, _message())
    assert reply.accepted == 1
    assert dict(reply.rejected) == {"malformed": 3, "out_of_order": 1}


def test_bad_values_are_unknown_and_counted():
    samples = [
        pb.DeviceSample(uuid="GPU-1", activity=math.nan),
        pb.DeviceSample(uuid="GPU-2", activity=-1),
        pb.DeviceSample(uuid="GPU-3", power_w=1e9, activity=0.25),
        pb.DeviceSample(uuid="GPU-3", activity=0.5),
        pb.DeviceSample(),
    ]
    scrape = read_samples(_message(devices=samples))
    assert scrape.rejected["negative"] == 1
    assert scrape.rejected["out_of_range"] == 1
    assert scrape.rejected["duplicate"] == 1
    assert scrape.rejected["malformed"] == 1
    assert scrape.values[2, Field.ENGINE] == 0.25
    assert math.isnan(scrape.values[2, Field.POWER])


TEXTS = [each.name for each in pb.DeviceSample.DESCRIPTOR.fields if each.type == each.TYPE_STRING]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_too_long_is_counted_and_skipped(name):
    sample = pb.DeviceSample(uuid="GPU-1", pod="p")
    setattr(sample, name, "x" * 254)
    scrape = read_samples(_message(devices=[sample, pb.DeviceSample(uuid="GPU-2")]))
    assert [each.key.uuid for each in scrape.devices] == ["GPU-2"]
    assert scrape.rejected == {"malformed": 1}


def test_a_profile_has_at_most_64_characters():
    samples = [pb.DeviceSample(uuid=str(length), mig_profile="9" * length) for length in (64, 65)]
    assert [each.key.uuid for each in read_samples(_message(devices=samples)).devices] == ["64"]


async def test_a_large_message_is_counted_and_skipped():
    inbox = TelemetryInbox(Sink(), size=10, find_node=find_node, now=lambda: NOW_S)
    reply = await _send(inbox, _message(devices=[pb.DeviceSample(uuid="x" * (1 << 20))]), _message())
    assert (reply.accepted, dict(reply.rejected)) == (1, {"too_large": 1})


async def test_the_messages_that_wait_are_bounded_in_bytes(monkeypatch):
    size = _message().ByteSize()
    monkeypatch.setattr("kgwe.apps.optimizer.inbox._MAX_WAITING", 3 * size)
    sink, sent = Sink(), []
    inbox = TelemetryInbox(sink, size=1000, find_node=find_node, now=lambda: NOW_S)

    async def stream():
        for number in range(10):
            sent.append(number)
            yield _message()

    receiving = asyncio.create_task(inbox.receive(stream()))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(sent) == 4  # three wait, and one is held by its stream
    running = asyncio.create_task(inbox.run())
    assert (await receiving).accepted == 10
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    assert len(sink.taken) == 10


async def test_a_device_has_so_many_samples_per_minute():
    now, sink = [NOW_S], Sink()
    inbox = TelemetryInbox(sink, size=1000, find_node=find_node, now=lambda: now[0])
    other = pb.DeviceSample(uuid="GPU-2")
    many = [_message(at_s=NOW_S - number / 10) for number in range(100)]
    reply = await _send(inbox, *many, _message(devices=[other]))
    assert (reply.accepted, dict(reply.rejected)) == (61, {"too_many": 40})
    now[0] += 60
    assert (await _send(inbox, _message())).accepted == 1


async def test_all_devices_together_have_so_many_samples_per_minute(monkeypatch):
    monkeypatch.setattr("kgwe.apps.optimizer.inbox._PER_MINUTE", 5)
    inbox = TelemetryInbox(Sink(), size=1000, find_node=find_node, now=lambda: NOW_S)
    reply = await _send(inbox, _message(devices=[pb.DeviceSample(uuid=f"GPU-{number}") for number in range(8)]))
    assert (reply.accepted, dict(reply.rejected)) == (5, {"too_many": 3})


async def test_a_client_that_stalls_is_ended_and_others_are_served():
    inbox = TelemetryInbox(Sink(), size=10, find_node=find_node, now=lambda: NOW_S, silence_s=0.01)

    async def stall():
        yield _message()
        await asyncio.Event().wait()

    stalled = asyncio.create_task(inbox.receive(stall()))
    assert (await _send(inbox, _message())).accepted == 1
    with pytest.raises(Exhausted, match="no telemetry"):
        await stalled


async def test_samples_of_pods_that_are_not_on_the_node_are_counted_and_skipped():
    sink = Sink()
    inbox = TelemetryInbox(sink, size=10, find_node=find_node, now=lambda: NOW_S)
    pods = ("train-0", "pending", "invented", "")
    devices = [pb.DeviceSample(uuid=f"GPU-{pod}", namespace="ml", pod=pod, activity=0.0) for pod in pods]
    reply = await _send(inbox, _message(devices=devices), _message(node="ghost", devices=devices[:1]))
    assert (reply.accepted, dict(reply.rejected)) == (2, {"misplaced": 3})
    taken = [each.key.uuid for scrape, _ in sink.taken for each in scrape.devices]
    assert taken == ["GPU-train-0", "GPU-"]


async def test_nothing_is_taken_where_usage_comes_from_prometheus():
    inbox = TelemetryInbox(None, size=10, find_node=find_node, now=lambda: NOW_S)
    with pytest.raises(errors.Permanent, match="Prometheus"):
        await _send(inbox, _message())

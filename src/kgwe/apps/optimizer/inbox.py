"""Telemetry that clients push over gRPC, on its way to the same buffer as scraped samples.

The agents of KGWE do not push; exporters are scraped. This is for nodes that cannot be scraped. Bad samples are counted
and skipped. What waits is bounded in messages and in bytes: a client that sends faster than samples are taken in has to
wait, and the others do not. What is kept is bounded too: samples of a device and of all devices per minute.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe import errors
from kgwe.metrics.exposition import Scrape
from kgwe.metrics.fields import Field, merge_rejected, reject_bad_samples
from kgwe.model.usage.window import Device, DeviceKey, PodKey
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc.server import Exhausted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_MAX_DEVICES: Final = 1024
_MAX_TEXT: Final = 253
# Text fields with another limit than the name of an object.
_MAX_TEXTS: Final = {"mig_profile": 64, "instance": 64}
_TEXTS: Final = {
    each.name: _MAX_TEXTS.get(each.name, _MAX_TEXT)
    for each in pb.DeviceSample.DESCRIPTOR.fields
    if each.type == each.TYPE_STRING
}
# A node with 1024 devices sends about 200 kB.
_MAX_MESSAGE: Final = 1 << 20
# Bytes of all messages that wait.
_MAX_WAITING: Final = 16 << 20
_MINUTE_S: Final = 60.0
# Samples that are taken in per minute: of one device, and of all. Raw samples are kept for half an hour.
_PER_DEVICE: Final = 60
_PER_MINUTE: Final = 120_000
# Samples from the future are refused: they would hide later ones. Clocks of nodes differ by seconds.
_AHEAD_S: Final = 30.0
# Streams at a time: other calls need their share of the server.
_MAX_STREAMS: Final = 64
# A stream that sends nothing for this long is ended, so that it does not keep a place.
_SILENCE_S: Final = 300.0


class SampleSink(Protocol):
    """Takes samples in, such as the embedded source."""

    def push(self, scrape: Scrape, at_s: float) -> None: ...


class TelemetryInbox:
    """Takes in streams of samples."""

    def __init__(
        self,
        sink: SampleSink | None,
        *,
        size: int,
        find_node: Callable[[PodKey], str | None],
        now: Callable[[], float],
        silence_s: float = _SILENCE_S,
    ) -> None:
        """`sink`: None where usage comes from Prometheus; then nothing is taken in. `size`: messages that wait.

        `find_node`: the node that the cluster shows for a pod; None if it shows none.
        """
        self._sink = sink
        self._find_node = find_node
        self._now = now
        self._silence_s = silence_s
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(size)
        self._waiting = 0
        """Bytes in the queue."""
        self._room = asyncio.Condition()
        self._rates = _Rates()
        self._streams = 0
        self.accepted = 0
        self.rejected: dict[str, int] = {}

    async def run(self) -> None:
        """Take samples in until cancelled."""
        while True:
            waiting = await self._queue.get()
            self._waiting -= waiting.size
            async with self._room:
                self._room.notify_all()
            if self._sink is not None:
                self._sink.push(waiting.scrape, waiting.at_s)

    async def receive(self, messages: AsyncIterator[pb.Telemetry]) -> pb.IngestReply:
        """Receive one stream; return what was accepted and what was skipped."""
        if self._sink is None:
            raise errors.Permanent("usage is read from Prometheus; telemetry that is pushed is not taken in")
        if self._streams >= _MAX_STREAMS:
            raise Exhausted(f"{_MAX_STREAMS} streams of telemetry are open, which is the most")
        self._streams += 1
        try:
            return await self._receive(messages)
        finally:
            self._streams -= 1

    async def _receive(self, messages: AsyncIterator[pb.Telemetry]) -> pb.IngestReply:
        accepted, rejected = 0, dict[str, int]()
        iterator = aiter(messages)
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    message = await anext(iterator)
            except StopAsyncIteration:
                break
            except TimeoutError as exc:
                raise Exhausted(f"no telemetry for {self._silence_s:.0f} s; send it in another stream") from exc
            problem = self._check(message)
            if problem:
                rejected[problem] = rejected.get(problem, 0) + max(len(message.devices), 1)
                continue
            scrape = self._rates.limit(self._drop_misplaced(read_samples(message)), self._now())
            accepted += len(scrape.devices)
            rejected = merge_rejected(rejected, scrape.rejected)
            await self._put(_Waiting(scrape, message.at_s, message.ByteSize()))
        self.accepted += accepted
        self.rejected = merge_rejected(self.rejected, rejected)
        return pb.IngestReply(accepted=accepted, rejected=rejected)

    def _check(self, message: pb.Telemetry) -> str:
        """Return why a message is skipped; empty if it is taken."""
        if message.ByteSize() > _MAX_MESSAGE:
            return "too_large"
        if not message.node or len(message.node) > _MAX_TEXT or len(message.devices) > _MAX_DEVICES:
            return "malformed"
        if not math.isfinite(message.at_s) or message.at_s <= 0:
            return "malformed"
        return "out_of_order" if message.at_s > self._now() + _AHEAD_S else ""

    def _drop_misplaced(self, scrape: Scrape) -> Scrape:
        """Return the samples of pods on the node that the cluster shows for them.

        Under the name of another node, a client could add idle devices to a pod whose own node is scraped.
        """
        keys = [device.key for device in scrape.devices]
        rows = [row for row, key in enumerate(keys) if key.pod is None or self._find_node(key.pod) == key.node]
        return scrape.select(rows, "misplaced")

    async def _put(self, waiting: _Waiting) -> None:
        async with self._room:
            await self._room.wait_for(lambda: self._waiting + waiting.size <= _MAX_WAITING)
            self._waiting += waiting.size
        try:
            await self._queue.put(waiting)
        except asyncio.CancelledError:
            self._waiting -= waiting.size
            raise


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Samples of a message that wait to be taken in."""

    scrape: Scrape
    at_s: float
    size: int
    """Bytes of the message."""


class _Rates:
    """Counts the samples of each device in the minute in which they arrive."""

    def __init__(self) -> None:
        self._minute = 0
        self._total = 0
        self._taken: Counter[DeviceKey] = Counter()

    def limit(self, scrape: Scrape, now_s: float) -> Scrape:
        """Return the samples that are within the limits; the others are counted as `too_many`."""
        minute = int(now_s // _MINUTE_S)
        if minute != self._minute:
            self._minute, self._total = minute, 0
            self._taken.clear()
        rows = []
        for row, device in enumerate(scrape.devices):
            if self._total < _PER_MINUTE and self._taken[device.key] < _PER_DEVICE:
                self._taken[device.key] += 1
                self._total += 1
                rows.append(row)
        return scrape.select(rows, "too_many")


def read_samples(message: pb.Telemetry) -> Scrape:
    """Return the samples of a message; bad values are unknown and counted."""
    devices: dict[Device, list[float]] = {}
    rejected: dict[str, int] = {}
    for each in message.devices:
        if not each.uuid or any(len(getattr(each, name)) > limit for name, limit in _TEXTS.items()):
            rejected["malformed"] = rejected.get("malformed", 0) + 1
            continue
        pod = PodKey(each.namespace, each.pod) if each.pod else None
        key = DeviceKey(message.node, each.uuid, each.instance, pod, each.container)
        device = Device(key, each.model, each.mig_profile)
        if device in devices:
            rejected["duplicate"] = rejected.get("duplicate", 0) + 1
            continue
        devices[device] = _read_values(each)
    values = np.array(list(devices.values()), dtype=np.float64).reshape(-1, len(Field))
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    bad = reject_bad_samples(floats, ~np.isnan(values))
    return Scrape(tuple(devices), floats, message.at_s, merge_rejected(rejected, bad))


def _read_values(sample: pb.DeviceSample) -> list[float]:
    row = [math.nan] * len(Field)
    fields = {
        Field.ENGINE: "activity",
        Field.TENSOR: "tensor",
        Field.DRAM: "dram",
        Field.USED: "memory_used_mib",
        Field.TOTAL: "memory_total_mib",
        Field.POWER: "power_w",
    }
    for column, name in fields.items():
        if sample.HasField(name):
            row[column] = getattr(sample, name)
    return row

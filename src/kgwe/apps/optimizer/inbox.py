"""Telemetry that clients push over gRPC, on its way to the same buffer as scraped samples.

The agents of KGWE do not push; exporters are scraped. This is for nodes that cannot be scraped. Bad samples are counted
and skipped. The buffer is bounded: a client that sends faster than samples are taken in has to wait, and the others do
not.
"""

from __future__ import annotations

import asyncio
import math
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
        self, sink: SampleSink | None, *, size: int, now: Callable[[], float], silence_s: float = _SILENCE_S
    ) -> None:
        """`sink`: None where usage comes from Prometheus; then nothing is taken in. `size`: messages that wait."""
        self._sink = sink
        self._now = now
        self._silence_s = silence_s
        self._queue: asyncio.Queue[pb.Telemetry] = asyncio.Queue(size)
        self._streams = 0
        self.accepted = 0
        self.rejected: dict[str, int] = {}

    async def run(self) -> None:
        """Take samples in until cancelled."""
        while True:
            self._take(await self._queue.get())

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
            else:
                accepted += len(message.devices)
                await self._queue.put(message)
        self.accepted += accepted
        self.rejected = merge_rejected(self.rejected, rejected)
        return pb.IngestReply(accepted=accepted, rejected=rejected)

    def _check(self, message: pb.Telemetry) -> str:
        """Return why a message is skipped; empty if it is taken."""
        if not message.node or len(message.node) > _MAX_TEXT or len(message.devices) > _MAX_DEVICES:
            return "malformed"
        if not math.isfinite(message.at_s) or message.at_s <= 0:
            return "malformed"
        return "out_of_order" if message.at_s > self._now() + _AHEAD_S else ""

    def _take(self, message: pb.Telemetry) -> None:
        scrape = read_samples(message)
        self.rejected = merge_rejected(self.rejected, scrape.rejected)
        if self._sink is not None:
            self._sink.push(scrape, message.at_s)


def read_samples(message: pb.Telemetry) -> Scrape:
    """Return the samples of a message; bad values are unknown and counted."""
    devices: dict[Device, list[float]] = {}
    rejected: dict[str, int] = {}
    for each in message.devices:
        texts = (each.uuid, each.instance, each.model, each.namespace, each.pod, each.container)
        if not each.uuid or any(len(text) > _MAX_TEXT for text in texts):
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

"""Lists and watches in protobuf.

A whole answer, like the object of an event, is four bytes that say so and an envelope that names the kind and holds the
object; a watch is a row of events, each behind its length in four bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from kgwe import errors
from kgwe.kube.transport import protobuf
from kgwe.kube.transport.encoding import MAGIC, Event, Garbled, Identity, Page, Status, Unreadable
from kgwe.proto import kubernetes_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LENGTH: Final = 4


class _Anything(msgspec.Struct):
    metadata: Identity


_ANYTHING: Final = protobuf.reader(_Anything, "kgwe.kubernetes.Object")
_STATUS: Final = protobuf.reader(Status, "kgwe.kubernetes.Status")


class Frames:
    """Puts events together from pieces, in time linear in their length and in memory bounded by `limit`."""

    def __init__(self, limit: int = 32 * 1024 * 1024) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = _LENGTH  # bytes until there is anything to say

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < self._wanted:
            return []
        data = piece if len(self._parts) == 1 else b"".join(self._parts)
        frames, start = [], 0
        while True:
            begin = start + _LENGTH
            end = begin + self._length(data[start:begin]) if begin <= len(data) else begin
            if begin > len(data) or end > len(data):
                break
            frames.append(data[begin:end])
            start = end
        self._parts, self._size, self._wanted = [data[start:]], len(data) - start, end - start
        return frames

    def _length(self, prefix: bytes) -> int:
        length = int.from_bytes(prefix, "big")
        if length > self._limit:
            raise errors.Permanent(f"an event of {length} bytes")
        return length


class ProtobufCodec(Generic[T]):
    def __init__(self, struct: type[T], name: str) -> None:
        self._reader = protobuf.reader(struct, name)

    def frames(self) -> Frames:
        return Frames()

    def page(self, body: bytes) -> Page[T]:
        try:
            envelope = kubernetes_pb2.Envelope.FromString(body.removeprefix(MAGIC))
            found = kubernetes_pb2.List.FromString(envelope.raw)
        except DecodeError as exc:
            raise Garbled(str(exc)) from exc
        items: list[tuple[T, bytes]] = []
        unreadable = []
        for raw in found.items[:]:
            try:
                items.append((self._reader.read(raw), raw))
            except protobuf.UNREADABLE as exc:
                unreadable.append((_identify(raw), str(exc)))
        return Page(items, unreadable, found.metadata.resourceVersion, found.metadata.more)

    def event(self, frame: bytes) -> Event:
        try:
            event = kubernetes_pb2.WatchEvent.FromString(frame)
        except DecodeError as exc:
            raise Garbled(str(exc)) from exc
        raw = event.object.raw
        if not raw.startswith(MAGIC):
            raise Unreadable(f"the object of an event is not an object: {raw[:20]!r}")
        return Event(event.type, raw[len(MAGIC) :])

    def object(self, raw: bytes) -> T:
        return _attempt(self._reader.open, raw)

    def identity(self, raw: bytes) -> Identity:
        return _attempt(_ANYTHING.open, raw).metadata

    def status(self, raw: bytes) -> Status:
        return status(raw)

    def extract_object(self, raw: bytes) -> bytes:
        return kubernetes_pb2.Envelope.FromString(raw).raw


def status(raw: bytes) -> Status:
    return _attempt(_STATUS.open, raw)


def _identify(raw: bytes) -> Identity | None:
    try:
        return _ANYTHING.read(raw).metadata
    except protobuf.UNREADABLE:
        return None


def _attempt(read: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return read(raw)
    except protobuf.UNREADABLE as exc:
        raise Unreadable(str(exc)) from exc

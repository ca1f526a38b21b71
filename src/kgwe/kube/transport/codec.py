"""Reads lists and watches of the API server, as JSON or as protobuf.

Both codecs give the same objects. An object that cannot be read, or is nested too deeply (`nesting.py`), does not hide
the others. Protobuf costs the API server less: it encodes a change once for all clients that watch in the same
encoding, and Kubernetes' own components use protobuf. The content type of the answer selects the codec, so a server
without protobuf may answer in JSON.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from kgwe.kube.transport import nesting
from kgwe.kube.transport.encoding import (
    JSON,
    MAGIC,
    PROTOBUF,
    PROTOBUF_OR_JSON,
    Codec,
    Event,
    Garbled,
    Identity,
    Page,
    Status,
    Unreadable,
)
from kgwe.kube.transport.http1 import LineSplitter

if TYPE_CHECKING:
    from kgwe.kube.api.resources import Resource

T = TypeVar("T")


class Codecs(Generic[T]):
    """Of one kind: what to ask for, and who reads what came."""

    def __init__(self, resource: Resource[T]) -> None:
        self._json: Codec[T] = JsonCodec(resource.type)
        self._protobuf: Codec[T] | None = _protobuf(resource)
        self.accept = PROTOBUF_OR_JSON if self._protobuf else JSON

    def of_list(self, body: bytes) -> Codec[T]:
        return self._protobuf if self._protobuf and body.startswith(MAGIC) else self._json

    def of_watch(self, content_type: str) -> Codec[T]:
        return self._protobuf if self._protobuf and content_type.startswith(PROTOBUF) else self._json

    def without_protobuf(self) -> bool:
        """Ask for JSON from now on; False when that was asked for already."""
        asked, self._protobuf, self.accept = self._protobuf, None, JSON
        return asked is not None


def _protobuf(resource: Resource[T]) -> Codec[T] | None:
    if not resource.message:
        return None
    try:
        # Only here: several megabytes, for processes that watch one of these kinds.
        from kgwe.kube.transport.protobuf_codec import ProtobufCodec  # noqa: PLC0415
    except ImportError:
        return None  # not installed
    return ProtobufCodec(resource.type, resource.message)


def identify(codec: Codec[Any], raw: bytes) -> Identity | None:
    try:
        return codec.identity(raw)
    except Unreadable:
        return None


def read_status(body: bytes) -> Status:
    """What a refusal says, in either encoding."""
    if not body.startswith(MAGIC):
        return _decode(_STATUS, body)
    from kgwe.kube.transport import protobuf_codec  # noqa: PLC0415 - only where this encoding is used

    return protobuf_codec.status(body.removeprefix(MAGIC))


# --- JSON -----------------------------------------------------------------------------------------------

# Not JSON, or not even text. A RecursionError is left only if the caller itself is almost at the limit.
# ValidationError, which is also a DecodeError: of another shape.
_GARBLED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T]):
    """One page of a list reply."""

    items: list[T]
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Anything(msgspec.Struct):
    metadata: Identity


_STATUS = msgspec.json.Decoder(Status)


class JsonCodec(Generic[T]):
    def __init__(self, struct: type[T]) -> None:
        self._page = msgspec.json.Decoder(ListPage[struct])  # type: ignore[valid-type] # a run-time type
        self._raw_page = msgspec.json.Decoder(ListPage[msgspec.Raw])
        self._object = msgspec.json.Decoder(struct)
        self._event = msgspec.json.Decoder(_Event)
        self._anything = msgspec.json.Decoder(_Anything)

    def frames(self) -> LineSplitter:
        return LineSplitter()

    def page(self, body: bytes) -> Page[T]:
        try:
            page: ListPage[T] = nesting.decode(self._page.decode, body)
        except msgspec.ValidationError:
            pass  # one object we cannot read must not hide the others
        except _GARBLED as exc:
            raise Garbled(str(exc)) from exc
        else:
            return Page([(obj, b"") for obj in page.items], [], *_meta(page.metadata))
        raws = _decode(self._raw_page, body)
        items: list[tuple[T, bytes]] = []
        unreadable = []
        for raw in typing.cast("list[bytes]", raws.items):  # Raw is read like bytes
            try:
                items.append((self.object(raw), b""))
            except Unreadable as exc:
                unreadable.append((identify(self, raw), str(exc)))
        return Page(items, unreadable, *_meta(raws.metadata))

    def event(self, frame: bytes) -> Event:
        event = _decode(self._event, frame)
        return Event(event.type, typing.cast("bytes", event.object))

    def object(self, raw: bytes) -> T:
        return _decode(self._object, raw)

    def identity(self, raw: bytes) -> Identity:
        return _decode(self._anything, raw).metadata

    def status(self, raw: bytes) -> Status:
        return _decode(_STATUS, raw)

    def extract_object(self, raw: bytes) -> bytes:
        del raw
        return b""


def _meta(meta: ListMeta) -> tuple[str, str]:
    return meta.resource_version, meta.continue_


def _decode(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return nesting.decode(decoder.decode, data)
    except msgspec.ValidationError as exc:
        raise Unreadable(str(exc)) from exc
    except _GARBLED as exc:
        raise Garbled(str(exc)) from exc

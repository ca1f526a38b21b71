"""A kind that exists in both encodings, and how a server writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time
from kgwe.kube.api.resources import Resource
from kgwe.kube.transport import encoding
from kgwe.proto import kubernetes_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

THING = "kgwe.tests.Thing"


class Shape(msgspec.Struct, frozen=True):
    sides: int = 0


class Thing(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    size: int = 0
    shape: Shape = Shape()


def _message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="kgwe/tests/thing.proto", package="kgwe.tests", syntax="proto3")
    file.dependency.append(kubernetes_pb2.DESCRIPTOR.name)
    thing = file.message_type.add(name="Thing")
    meta = thing.field.add(name="metadata", number=1)
    meta.type, meta.type_name, meta.label = meta.TYPE_MESSAGE, ".kgwe.kubernetes.ObjectMeta", meta.LABEL_OPTIONAL
    size = thing.field.add(name="size", number=2)
    size.type, size.label = size.TYPE_INT64, size.LABEL_OPTIONAL
    shape = thing.field.add(name="shape", number=3)
    shape.type, shape.type_name, shape.label = shape.TYPE_MESSAGE, ".kgwe.tests.Shape", shape.LABEL_OPTIONAL
    sides = file.message_type.add(name="Shape").field.add(name="sides", number=1)
    sides.type, sides.label = sides.TYPE_INT64, sides.LABEL_OPTIONAL
    pool = descriptor_pool.Default()  # where readers look for messages
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(THING))


_THING = _message()
_TRUNCATED = b"\x1a\x05cut"  # a field of five bytes that has three
_BAD_SHAPE = b"\x1a\x01\x08"  # a whole field 3, which begins a field and does not end it


class Encoding(Protocol):
    @property
    def content_type(self) -> str: ...
    @property
    def garbled_events(self) -> Sequence[bytes]: ...
    @property
    def garbled_lists(self) -> Sequence[bytes]: ...
    def resource(self) -> Resource[Thing]: ...
    def event(self, type_: str, obj: dict[str, Any]) -> bytes: ...
    def page(self, items: list[dict[str, Any]], version: str, more: str = "") -> bytes: ...
    def status(self, status: dict[str, Any]) -> bytes: ...
    def bare(self, obj: dict[str, Any]) -> bytes: ...


class Json:
    content_type = "application/json"
    garbled_events = (
        b"<html>\n",
        b'{"type": 5, "object": {}}\n',
        b'{"type": "ADDED", "object": {"spec": {}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}\n',
        b'{"type": "ERROR", "object": 5}\n',
    )
    garbled_lists = (b"<html>", b'{"items": 5}', b'{"items": ["\xff"]}', b'{"items": []}', b"")

    def resource(self) -> Resource[Thing]:
        return Resource("things.example", "v1", "things", "Thing", namespaced=True, type=Thing)

    def event(self, type_: str, obj: dict[str, Any]) -> bytes:
        return json.dumps({"type": type_, "object": obj}).encode() + b"\n"

    def page(self, items: list[dict[str, Any]], version: str, more: str = "") -> bytes:
        return json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()

    def status(self, status: dict[str, Any]) -> bytes:
        return json.dumps(status).encode()

    def bare(self, obj: dict[str, Any]) -> bytes:
        del obj
        return b""


class Protobuf:
    content_type = "application/vnd.kubernetes.protobuf"

    def resource(self) -> Resource[Thing]:
        return Resource("things.example", "v1", "things", "Thing", namespaced=True, type=Thing, message=THING)

    def event(self, type_: str, obj: dict[str, Any]) -> bytes:
        raw = _status(obj) if obj.get("kind") == "Status" else _thing(obj)
        return _event(type_, encoding.MAGIC + _envelope(raw))

    def page(self, items: list[dict[str, Any]], version: str, more: str = "") -> bytes:
        found = kubernetes_pb2.List(metadata=kubernetes_pb2.ListMeta(resourceVersion=version, more=more))
        found.items.extend(_thing(item) for item in items)
        return encoding.MAGIC + _envelope(found.SerializeToString())

    def status(self, status: dict[str, Any]) -> bytes:
        return encoding.MAGIC + _envelope(_status(status))

    def bare(self, obj: dict[str, Any]) -> bytes:
        return _thing(obj)

    @property
    def garbled_events(self) -> list[bytes]:
        nameless = _envelope(b"")
        not_text = _envelope(b"\x0a\x03\x0a\x01\xff")
        return [
            b"<html>" * 100,  # a length of a gigabyte
            _frame(b"<html>"),
            _event("ADDED", b"{}"),
            _event("ADDED", encoding.MAGIC + nameless),
            _event("ADDED", encoding.MAGIC + not_text),
            _event("ERROR", encoding.MAGIC + _TRUNCATED),
        ]

    @property
    def garbled_lists(self) -> list[bytes]:
        whole = self.page([], "7")
        return [encoding.MAGIC, encoding.MAGIC + _TRUNCATED, whole[:-1], self.page([], ""), *Json.garbled_lists]


ENCODINGS: tuple[Encoding, ...] = (Json(), Protobuf())


def _thing(obj: dict[str, Any]) -> bytes:
    unreadable = isinstance(obj.get("size"), str)
    known: dict[str, Any] = {
        name: obj[name] for name in ("metadata", "size") if name in obj and not (unreadable and name == "size")
    }
    raw: bytes = json_format.ParseDict(known, _THING(), ignore_unknown_fields=True).SerializeToString()
    return raw + _BAD_SHAPE if unreadable else raw


def _status(status: dict[str, Any]) -> bytes:
    said = json_format.ParseDict(status, kubernetes_pb2.Status(), ignore_unknown_fields=True)
    return said.SerializeToString()


def _envelope(raw: bytes) -> bytes:
    kind = kubernetes_pb2.TypeMeta(apiVersion="things.example/v1", kind="Thing")
    return kubernetes_pb2.Envelope(typeMeta=kind, raw=raw).SerializeToString()


def _event(type_: str, raw: bytes) -> bytes:
    said = kubernetes_pb2.WatchEvent(type=type_, object=kubernetes_pb2.RawExtension(raw=raw))
    return _frame(said.SerializeToString())


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data

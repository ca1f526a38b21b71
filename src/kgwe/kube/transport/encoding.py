"""What reading an answer of the API server gives, in either encoding: pages, events, statuses, and why it failed."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")

JSON: Final = "application/json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
#: how every whole answer in protobuf begins
MAGIC: Final = b"k8s\x00"
#: what a reader who would rather have protobuf asks for
PROTOBUF_OR_JSON: Final = f"{PROTOBUF}, {JSON};q=0.9"


class Unreadable(Exception):
    """Bytes that are not what they should be."""


class Garbled(Unreadable):
    """Not even of the encoding they claim: another server wrote them, or they were cut off."""


class Identity(msgspec.Struct, frozen=True):
    """What can be read of any object, also of one whose own struct does not fit."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the name of the manifest

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class StatusCause(msgspec.Struct, frozen=True):
    """One of several causes of a failed request."""

    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True):
    """What the API server adds to some of its refusals."""

    causes: tuple[StatusCause, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """Why the server gives no answer, or ends a watch."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    def has_cause(self, reason: str) -> bool:
        return self.details is not None and any(cause.reason == reason for cause in self.details.causes)


class Page(NamedTuple, Generic[T]):
    """One page of a list."""

    #: each object with its bytes (`Codec.extract_object`)
    items: list[tuple[T, bytes]]
    #: those that could not be read, and why
    unreadable: list[tuple[Identity | None, str]]
    version: str
    more: str


class Event(NamedTuple):
    type: str
    object: bytes


class Frames(Protocol):
    """Puts the events of a watch together from the pieces they arrive in."""

    def feed(self, piece: bytes) -> list[bytes]: ...


class Codec(Protocol[T]):
    """Reads one kind; every method but `frames` raises Unreadable."""

    def frames(self) -> Frames: ...
    def page(self, body: bytes) -> Page[T]: ...
    def event(self, frame: bytes) -> Event: ...
    def object(self, raw: bytes) -> T: ...
    def identity(self, raw: bytes) -> Identity: ...
    def status(self, raw: bytes) -> Status: ...
    def extract_object(self, raw: bytes) -> bytes:
        """The object of an event in protobuf, to be changed and written back; nothing of one in JSON."""
        ...

"""Binding times from the API server's audit log.

Pods have timestamps in whole seconds; the audit log has microseconds from one clock. Reading it costs the API server
nothing. A line is written when the response is sent.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 -- msgspec resolves annotations at run time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK_BYTES = 1 << 22
#: verbs of requests that may write a seat
SEATING = ("patch", "update")


class ObjectRef(msgspec.Struct, frozen=True):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True):
    code: int = 0


class User(msgspec.Struct, frozen=True):
    username: str = ""


class Entry(msgspec.Struct, frozen=True):
    """One request with the API server's response."""

    verb: str
    received: dt.datetime = msgspec.field(name="requestReceivedTimestamp")
    answered: dt.datetime = msgspec.field(name="stageTimestamp")
    object: ObjectRef = msgspec.field(name="objectRef", default=ObjectRef())
    response: ResponseStatus = msgspec.field(name="responseStatus", default=ResponseStatus())
    user: User = User()

    @property
    def succeeded(self) -> bool:
        return 200 <= self.response.code < 300  # noqa: PLR2004 -- HTTP

    @property
    def is_binding(self) -> bool:
        return self.object.resource == "pods" and self.object.subresource == "binding"


class AuditTail:
    """Reads the lines added to the log since the last read, for some verbs in one namespace."""

    def __init__(self, path: Path, namespace: str, *verbs: str) -> None:
        """Without verbs, only creates are read."""
        self._path = path
        self._decoder = msgspec.json.Decoder(Entry)
        # Most lines are not relevant; a substring search is much cheaper than decoding.
        self._mark = b'"namespace":"%s"' % namespace.encode()
        self._verbs = frozenset(verbs or ("create",))
        self._verb_marks = [b'"verb":"%s"' % verb.encode() for verb in self._verbs]
        self._namespace = namespace
        self._position = 0
        self._rest = b""

    def read(self) -> list[Entry]:
        """Return the new entries in the order of their responses."""
        entries = []
        with self._path.open("rb") as file:
            file.seek(self._position)
            while chunk := file.read(_CHUNK_BYTES):
                self._position += len(chunk)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                entries += [self._decoder.decode(line) for line in lines if self._may_matter(line)]
        return [each for each in entries if each.verb in self._verbs and each.object.namespace == self._namespace]

    def _may_matter(self, line: bytes) -> bool:
        return self._mark in line and any(mark in line for mark in self._verb_marks)

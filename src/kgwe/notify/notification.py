"""A notification: what KGWE tells people, without the format of any channel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Annotation of a workload or namespace that names where its owner wants to be notified.
OWNER_ANNOTATION: Final = "kgwe.nvidia.io/notify"


class Severity(StrEnum):
    """How soon people should look."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that a notification is about."""

    kind: str
    name: str
    namespace: str = ""
    """Empty for an object of the cluster, such as a node."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.namespace, self.kind, self.name) if part)


@dataclass(frozen=True, slots=True)
class Link:
    """A page that says more."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Notification:
    """One message. Two with the same key and severity are the same message again."""

    kind: str
    """One CamelCase word, such as `IdleGPU` or `Preempted`."""
    severity: Severity
    title: str
    """One line."""
    text: str
    subject: Subject
    key: str
    """Identity for de-duplication, such as `IdleGPU/team/train-0`."""
    at_s: float
    """Unix time of the event."""
    links: tuple[Link, ...] = ()
    owner: str = ""
    """Value of the owner's annotation; empty: the owner is not notified."""
    is_for_owner: bool = False
    """Whether only the owner gets it: routes are not followed."""

    @property
    def id(self) -> str:
        """Return an identity that is the same in every attempt to deliver this message."""
        text = repr((self.kind, self.severity.value, str(self.subject), self.key, self.at_s))
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()

"""The exceptions KGWE raises on purpose.

KgweError
├── Transient         worth trying again (carries retry_after_s when the other side named one)
├── Conflict          somebody else wrote first; read again and decide again
│   └── AlreadyExists a create found the name taken; for an idempotent create that is success
├── NotFound          the thing is gone; for a delete that is success
├── Expired           the version asked for is no longer kept (HTTP 410): list again
├── Permanent         trying again cannot help: bad input, no permission
│   └── UnknownTopologyLevel  a request names a network level that the cluster does not have
└── InvariantBroken   our own book-keeping is wrong: stop rather than act on it

A business "no" (no node has room) is a value with a reason, never an exception.
"""

from __future__ import annotations


class KgweError(Exception):
    """Base of every error raised on purpose."""


class Transient(KgweError):
    """Worth trying again."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Conflict(KgweError):
    """Somebody else wrote first."""


class AlreadyExists(Conflict):
    """A create found the name taken."""


class NotFound(KgweError):
    """The thing is gone."""


class Expired(KgweError):
    """The resource version asked for is no longer kept; list again."""


class Permanent(KgweError):
    """Trying again cannot help."""


class UnknownTopologyLevel(Permanent):
    """A request names a network level that the cluster does not have."""


class InvariantBroken(KgweError):
    """Our own book-keeping is wrong."""

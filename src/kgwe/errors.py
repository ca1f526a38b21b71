"""The exceptions of KGWE.

KgweError
├── Transient         a retry may succeed (retry_after_s is set if the server sent it)
│   └── Unreachable   no connection to the API server
├── Conflict          another client wrote first; read again and decide again
│   └── AlreadyExists the name exists; for an idempotent create that is success
├── NotFound          the object does not exist; for a delete that is success
├── Expired           the resource version is no longer kept (HTTP 410): list again
├── Permanent         a retry cannot succeed: bad input, no permission
│   └── UnknownTopologyLevel  a request names a network level that the cluster does not have
└── InvariantBroken   internal data is inconsistent: stop rather than act on it

A refusal (no node has room) is a value with a reason, never an exception.
"""

from __future__ import annotations


class KgweError(Exception):
    """Base class of all errors of KGWE."""


class Transient(KgweError):
    """A retry may succeed."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreachable(Transient):
    """No connection to the API server."""


class Conflict(KgweError):
    """Another client wrote first."""


class AlreadyExists(Conflict):
    """A create found an object with the same name."""


class NotFound(KgweError):
    """The object does not exist."""


class Expired(KgweError):
    """The resource version is no longer kept; list again."""


class Permanent(KgweError):
    """A retry cannot succeed."""


class UnknownTopologyLevel(Permanent):
    """A request names a network level that the cluster does not have."""


class InvariantBroken(KgweError):
    """Internal data is inconsistent."""

"""From a cloud's error codes to kinds: one table per cloud, and rules for codes that are in no table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.cloud.provider import LaunchError, LaunchErrorKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind = LaunchErrorKind

_SERVER_ERROR: Final = 500
_BY_STATUS: Final = {
    400: Kind.BAD_TEMPLATE,
    401: Kind.AUTHENTICATION,
    403: Kind.AUTHENTICATION,
    404: Kind.BAD_TEMPLATE,
    408: Kind.TRANSIENT,
    409: Kind.TRANSIENT,
    412: Kind.TRANSIENT,
    422: Kind.BAD_TEMPLATE,
    429: Kind.THROTTLED,
}
#: Of several errors of one launch, the first of these is reported: it needs an operator, or another pool.
_ORDER: Final = (
    Kind.AUTHENTICATION,
    Kind.BAD_TEMPLATE,
    Kind.QUOTA,
    Kind.LIMIT,
    Kind.NO_CAPACITY,
    Kind.THROTTLED,
    Kind.TRANSIENT,
)


def find_kind(code: str, table: Mapping[str, LaunchErrorKind], status: int = 0) -> LaunchErrorKind:
    """Return the kind of a code. Codes in no table are judged by their words, then by the HTTP status."""
    if code in table:
        return table[code]
    words = code.lower()
    if words.startswith(("insufficient", "zone_resource_pool")) or "stockout" in words:
        return Kind.NO_CAPACITY
    if "throttl" in words or "ratelimit" in words:
        return Kind.THROTTLED
    if words.endswith("limitexceeded") or "quota" in words:
        return Kind.QUOTA
    if words.startswith("invalid") or words.endswith("notfound"):
        return Kind.BAD_TEMPLATE
    if status >= _SERVER_ERROR:
        return Kind.TRANSIENT
    return _BY_STATUS.get(status, Kind.TRANSIENT)


def choose_error(found: Iterable[LaunchError]) -> LaunchError | None:
    """Return the error to report of several, or None without any."""
    return min(found, key=lambda error: _ORDER.index(error.kind), default=None)

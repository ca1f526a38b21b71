"""What a metadata service announces about the instance it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx2

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cloud.provider import NoticeKind

_TIMEOUT_S: Final = 2.0
_LARGEST: Final = 1 << 20
_NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_FIRST_ERROR: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One announcement. Two readings of the same announcement are equal but for a deadline that the reader made."""

    notice_id: str
    kind: NoticeKind
    reason: str
    """One CamelCase word for the condition of the node."""
    message: str
    deadline_at: float | None = None
    """Unix time; None if the cloud names none."""


class NoticeSource(Protocol):
    """Reads the notices of this machine."""

    async def read(self, now: float) -> tuple[Notice, ...]:
        """Return the present notices. Raises Transient if the service does not answer as documented."""


class Unauthorized(errors.Transient):
    """A session token has ended."""


class MetadataClient:
    """Short requests to a link-local service: no proxies, no redirects, bounded answers."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def request(self, method: str, path: str, headers: Mapping[str, str]) -> str | None:
        """Return the body; None for 404."""
        try:
            # The service is local and asked every few seconds: no connection is kept. It speaks no TLS.
            async with httpx2.AsyncClient(
                base_url=self._url, timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False, verify=False
            ) as client:
                answer = await client.request(method, path, headers=dict(headers))
        except (httpx2.HTTPError, OSError) as exc:
            raise errors.Transient(f"the metadata service does not answer: {str(exc) or type(exc).__name__}") from exc
        if answer.status_code == _NOT_FOUND:
            return None
        if answer.status_code == _UNAUTHORIZED:
            raise Unauthorized(f"{path}: 401")
        if answer.status_code >= _FIRST_ERROR or len(answer.content) > _LARGEST:
            raise errors.Transient(f"the metadata service answers {path} with {answer.status_code}")
        return answer.text


def read_field(value: Any, name: str) -> str:
    """Return a text field of a decoded answer; empty if it is absent or of another type."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""

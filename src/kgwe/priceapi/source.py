"""A price list: what a cloud asks for its GPU nodes now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx2
import msgspec

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.costing.prices.book import Price

_MAX_BYTES: Final = 32 << 20
_TIMEOUT_S: Final = 30.0


class PriceList(Protocol):
    """One cloud and region."""

    @property
    def name(self) -> str:
        """Return a word for messages: `azure eastus`."""
        ...

    async def fetch(self) -> tuple[Price, ...]:
        """Return all prices of GPU nodes. Raise Transient if the cloud does not answer, Permanent if it refuses."""
        ...


async def get_json(client: httpx2.AsyncClient, url: str, params: Mapping[str, str] | None = None) -> Any:
    """Return the JSON of a URL. A failure names the host only: URLs may contain keys."""
    host = httpx2.URL(url).host
    try:
        answer = await client.get(url, params=params, timeout=_TIMEOUT_S)
    except httpx2.HTTPError as exc:
        raise errors.Transient(f"{host} does not answer: {type(exc).__name__}") from exc
    if answer.status_code >= 500 or answer.status_code == 429:  # noqa: PLR2004 -- busy or broken
        raise errors.Transient(f"{host} answers with status {answer.status_code}")
    if answer.status_code != 200:  # noqa: PLR2004
        raise errors.Permanent(f"{host} refuses with status {answer.status_code}")
    if len(answer.content) > _MAX_BYTES:
        raise errors.Permanent(f"{host} sends more than {_MAX_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise errors.Transient(f"{host} sends no JSON: {exc}") from exc

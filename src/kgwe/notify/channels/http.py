"""POST of a small JSON body. Redirects, proxies and cookies of the environment are not used."""

from __future__ import annotations

import asyncio
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2

from kgwe import errors
from kgwe.notify.settings import check_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.notify.secrets import SecretReference, Secrets

_MAX_ANSWER: Final = 2048
_SHOWN: Final = 200
_LONGEST_WAIT_S: Final = 3600.0
# Too early, too many requests, request timeout: the server asks for another try.
_TRY_AGAIN: Final = {408, 425, 429}
_OK: Final = range(200, 300)
_SERVER_ERROR: Final = 500


class Poster:
    """Posts to the URL of one channel.

    Uses the transport and not the client of httpx2: the client writes whole URLs to the log, and the URL of a Slack
    webhook is a secret.
    """

    def __init__(
        self, name: str, url: str, url_from: SecretReference | None, secrets: Secrets, timeout_s: float
    ) -> None:
        self._name = name
        self._url = url
        self._url_from = url_from
        self._secrets = secrets
        self._timeout_s = timeout_s
        self._transport = httpx2.AsyncHTTPTransport(trust_env=False)

    async def close(self) -> None:
        await self._transport.aclose()

    async def post(self, body: bytes, headers: Mapping[str, str], path: str = "") -> None:
        """Post a body; raise Transient or Permanent unless the server accepted it."""
        url = await self._find_url()
        host = urlsplit(url).hostname
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        request = httpx2.Request(
            "POST",
            url.rstrip("/") + path if path else url,
            content=body,
            headers={"Content-Type": "application/json", "User-Agent": "kgwe", **headers},
            extensions={"timeout": limits},
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer, wait_s = await self._exchange(request)
        except TimeoutError as exc:
            raise errors.Transient(f"{host} did not answer within {self._timeout_s:g} s") from exc
        except (httpx2.HTTPError, OSError, ssl.SSLError) as exc:
            raise errors.Transient(f"cannot reach {host}: {type(exc).__name__}: {exc}") from exc
        if status in _OK:
            return
        message = f"{host} answered {status}: {answer}"
        if status in _TRY_AGAIN or status >= _SERVER_ERROR:
            raise errors.Transient(message, retry_after_s=wait_s)
        raise errors.Permanent(message)

    async def _find_url(self) -> str:
        if self._url_from is None:
            return self._url
        url = await self._secrets.read(self._url_from)
        try:
            check_url(url, self._name)
        except ValueError as exc:
            raise errors.Permanent(f"{self._url_from}: {exc}") from None
        # A message may contain the path alone.
        self._secrets.remember(urlsplit(url).path)
        return url

    async def _exchange(self, request: httpx2.Request) -> tuple[int, str, float | None]:
        response = await self._transport.handle_async_request(request)
        try:
            answer = b""
            async for part in response.aiter_raw():
                answer += part[:_MAX_ANSWER]
                if len(answer) >= _MAX_ANSWER:
                    break
        finally:
            await response.aclose()
        text = " ".join(answer.decode("utf-8", "replace").split())[:_SHOWN]
        return response.status_code, text, read_retry_after(response.headers.get("Retry-After"), time.time())


def read_retry_after(value: str | None, now_s: float) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date. At most an hour."""
    if not value:
        return None
    try:
        wait_s = float(value) if value.strip().isdecimal() else parsedate_to_datetime(value).timestamp() - now_s
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)

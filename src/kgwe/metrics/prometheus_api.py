"""Prometheus' HTTP API: range queries with authentication, and errors that say what to do.

Prometheus 2 and 3, Thanos, Mimir and VictoriaMetrics respond in the same format.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from kgwe import errors, text_files

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMES: Final = ("http", "https")
_LARGE_BODY: Final = 512 * 1024
# Words of Prometheus, Thanos and Mimir for "ask for less".
_TOO_MUCH: Final = (
    "too many samples",
    "exceeded maximum resolution",
    "max-fetched",
    "max-estimated",
    "exceeded series limit",
    "exceeded samples limit",
    "exceeded chunks limit",
    "query timed out",
)


class TooMuch(errors.Transient):
    """The server refuses the query because it would read too much: ask for a shorter range."""


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Where Prometheus is, and how to be let in. Files are read again for each window, as tokens expire."""

    url: str
    token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    tenant: str = ""
    """`X-Scope-OrgID` of Mimir and others."""
    timeout_s: float = 30.0
    max_body_bytes: int = 512 * 1024 * 1024
    """Per query."""
    range_s: float | None = None
    """Time that each step looks back; None: the step. Set it if Prometheus scrapes less often than the step."""
    matchers: str = ""
    """Label matchers of this cluster's series, such as `cluster="prod"`, if Prometheus has several clusters."""
    node_labels: tuple[str, ...] = ()
    """Labels that name the node, best first; empty for the usual ones."""


class Series(msgspec.Struct):
    """One series of a range query."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[Series] = []
    resultType: str = "matrix"  # noqa: N815 - the name in the API


class _Response(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] | None = None


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The series of a query. A result with warnings is partial."""

    series: list[Series]
    warnings: tuple[str, ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Response)


def make_client(settings: PrometheusSettings) -> httpx2.AsyncClient:
    """Return the HTTP client of these settings; raise Permanent if they are wrong."""
    parts = urlsplit(settings.url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise errors.Permanent(
            f"{settings.url!r} is not the URL of Prometheus; write it as http://HOST:9090 or https://HOST/prometheus"
        )
    verify: ssl.SSLContext | bool = True
    if settings.ca_file is not None:
        try:
            verify = ssl.create_default_context(cafile=settings.ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise errors.Permanent(f"cannot read the certificate authority {settings.ca_file}: {exc}") from exc
    return httpx2.AsyncClient(verify=verify, trust_env=False, follow_redirects=False)


class PrometheusApi:
    """Range queries against one server."""

    def __init__(self, settings: PrometheusSettings, client: httpx2.AsyncClient) -> None:
        self._settings = settings
        self._client = client
        self.url = settings.url.rstrip("/")

    async def query_range(self, query: str, first_s: float, last_s: float, step_s: float) -> RangeResult:
        """Return the values at `first_s`, `first_s + step_s`, … `last_s`; raise Transient, TooMuch or Permanent."""
        parameters = {"query": query, "start": f"{first_s:.3f}", "end": f"{last_s:.3f}", "step": f"{step_s:.3f}"}
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                status, body = await self._get(parameters)
        except TimeoutError as exc:
            raise errors.Transient(f"{self._who()} took longer than {self._settings.timeout_s:g} s") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as exc:
            raise errors.Transient(f"{self._who()} does not respond: {str(exc) or type(exc).__name__}") from exc
        # A large body would block the event loop.
        return (
            await asyncio.to_thread(self._read, status, body) if len(body) > _LARGE_BODY else self._read(status, body)
        )

    async def _get(self, parameters: dict[str, str]) -> tuple[int, bytes]:
        headers, auth = self._make_headers(), self._make_auth()
        async with self._client.stream(
            "GET",
            f"{self.url}/api/v1/query_range",
            params=parameters,
            headers=headers,
            auth=auth,
            timeout=self._settings.timeout_s,
        ) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._settings.max_body_bytes:
                    raise TooMuch(f"{self._who()} sent more than {self._settings.max_body_bytes} bytes")
        return response.status_code, bytes(body)

    def _make_headers(self) -> dict[str, str]:
        headers = {"accept": "application/json"}
        if self._settings.tenant:
            headers["x-scope-orgid"] = self._settings.tenant
        if self._settings.token_file is not None:
            headers["authorization"] = f"Bearer {_read_secret(self._settings.token_file)}"
        return headers

    def _make_auth(self) -> tuple[str, str] | None:
        if not self._settings.username:
            return None
        file = self._settings.password_file
        return self._settings.username, _read_secret(file) if file is not None else ""

    def _read(self, status: int, body: bytes) -> RangeResult:
        try:
            response = _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise self._explain_status(status) from exc
        if response.status == "success" and response.data is not None:
            if response.data.resultType != "matrix":
                raise errors.Transient(f"{self._who()} returned a {response.data.resultType}, not a matrix")
            return RangeResult(response.data.result, _list_partial(response.warnings or []))
        if any(words in response.error for words in _TOO_MUCH):
            raise TooMuch(f"{self._who()}: {response.error}")
        raise errors.Transient(f"{self._who()} returned status {status}: {response.error or 'no reason given'}")

    def _explain_status(self, status: int) -> errors.Transient:
        """Return the error for a body that is not of the query API."""
        advice = {
            401: "check the token file, or the user and the password file",
            403: "check the permissions of the token or user",
            404: "check the path of the URL, such as /prometheus for Mimir",
            200: "the address is not a query API",
        }
        if httpx2.codes.is_redirect(status):
            text = "a login proxy redirects; use the address inside the cluster"
        else:
            text = advice.get(status, "see its log")
        return errors.Transient(f"{self._who()} returned status {status} and no result; {text}")

    def _who(self) -> str:
        parts = urlsplit(self.url)
        return f"Prometheus at {parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()}"


def _list_partial(warnings: list[str]) -> tuple[str, ...]:
    """Return the warnings about missing data. Prometheus 3 also remarks on the query itself, as `PromQL …`."""
    return tuple(each for each in warnings if not each.startswith("PromQL "))


def _read_secret(path: Path) -> str:
    try:
        return text_files.read_text(path).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.Transient(f"cannot read {path}: {exc}") from exc

"""A link that signs a browser in: the console makes a code for the identity of a kubeconfig."""

from __future__ import annotations

import asyncio
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx2
import msgspec

from kgwe import errors
from kgwe.kube.transport.kubeconfig import read_connection

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S: Final = 15.0
_OK: Final = 200


class Link(NamedTuple):
    """A link for a browser."""

    url: str
    user: str
    seconds: float


class _Code(msgspec.Struct):
    code: str
    seconds: float
    user: str


def make_link(
    url: str, kubeconfig: Path | None, *, context: str | None = None, authority: Path | None = None, verify: bool = True
) -> Link:
    """Return a link that signs a browser in as the user of a kubeconfig."""
    return asyncio.run(request_link(url, kubeconfig, context=context, authority=authority, verify=verify))


async def request_link(
    url: str, kubeconfig: Path | None, *, context: str | None = None, authority: Path | None = None, verify: bool = True
) -> Link:
    """Return a link that signs a browser in as the user of a kubeconfig."""
    base = url.rstrip("/")
    parts = urllib.parse.urlsplit(base)
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise errors.Permanent(f"--url {url}: give an address such as https://kgwe.example.com")
    if parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
        raise errors.Permanent(f"--url {url}: without https others could read your token")
    found = read_connection(kubeconfig, context)
    trust: ssl.SSLContext | bool = _make_context(found.context, authority, verify=verify)
    try:
        async with httpx2.AsyncClient(verify=trust, auth=found.auth, timeout=_TIMEOUT_S, trust_env=False) as client:
            reply = await client.post(f"{base}/api/v1/session/code")
    except httpx2.RequestError as exc:
        raise errors.Transient(_explain(base, exc)) from exc
    if reply.status_code != _OK:
        raise errors.Permanent(f"the console at {base} refuses: {_read_detail(reply)}")
    code = msgspec.json.decode(reply.content, type=_Code)
    return Link(f"{base}/sign-in#{code.code}", code.user, code.seconds)


def _make_context(found: ssl.SSLContext | None, authority: Path | None, *, verify: bool) -> ssl.SSLContext:
    """Return the context of the kubeconfig, with its client certificate; it also trusts this machine's authorities."""
    context = found or ssl.create_default_context()
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except OSError as exc:
            raise errors.Permanent(f"--certificate-authority {authority}: {exc}") from exc
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _explain(base: str, exc: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(exc):
        return (
            f"the certificate of {base} is not trusted: {exc}. Give --certificate-authority FILE, or, on a network that"
            " you trust, --insecure-skip-tls-verify"
        )
    return f"the console does not answer at {base}: {exc!s}. Start it with `kgwe console`"


def _read_detail(reply: Any) -> str:
    try:
        return str(msgspec.json.decode(reply.content).get("detail") or reply.status_code)
    except (msgspec.DecodeError, AttributeError):
        return f"HTTP {reply.status_code}"

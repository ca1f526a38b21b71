"""Requests and replies of the HTTP server, and their encoding."""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import httptools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Request(NamedTuple):
    method: str
    #: without the query
    path: str
    #: headers as received
    headers: list[tuple[bytes, bytes]]
    body: bytes
    #: the body was too large and is left out
    too_large: bool
    #: address of the client
    peer: str = ""

    def header(self, name: bytes) -> str:
        """Return the first header with this (lower-case) name; empty if there is none."""
        return next((value.decode("latin-1") for given, value in self.headers if given.lower() == name), "")


class Reply(NamedTuple):
    status: int
    body: bytes
    content_type: str = TEXT


if TYPE_CHECKING:
    App = Callable[[Request], Reply | Awaitable[Reply]]


@functools.lru_cache(maxsize=64)
def _head(status: int, content_type: str, keep: bool) -> bytes:  # noqa: FBT001 - a key of the cache
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {content_type}",
        f"connection: {'keep-alive' if keep else 'close'}",
        "content-length: ",
    )
    return "\r\n".join(lines).encode()


def encode(reply: Reply, *, keep: bool, bodiless: bool = False) -> bytes:
    head = _head(reply.status, reply.content_type, keep)
    return b"%b%d\r\n\r\n%b" % (head, len(reply.body), b"" if bodiless else reply.body)


@functools.lru_cache(maxsize=64)
def path_of(url: bytes) -> str | None:
    """Return the path of a request target; None if it is malformed."""
    try:
        found: bytes | None = httptools.parse_url(url).path
        return unquote(found.decode("ascii"), errors="strict") if found and found.startswith(b"/") else None
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None

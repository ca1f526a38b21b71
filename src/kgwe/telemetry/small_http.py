"""A small HTTP server for processes that must stay small: GET of short answers, nothing else.

It runs the same ASGI applications as `http.serving` without the 5 MB that come with it: one request after another per
connection, answers of known length, no bodies, no TLS. What is larger, slower or stranger than a scrape is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Application = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]

log = structlog.get_logger(__name__)

_LARGEST_HEAD: Final = 16 << 10
_MOST_CONNECTIONS: Final = 64
# A request must be there in this time; a connection without one may wait longer for the next.
_REQUEST_S: Final = 10.0
_IDLE_S: Final = 150.0


class _Bad(Exception):
    """The request is none that is answered."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


@contextlib.asynccontextmanager
async def serving(app: Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context is open; yields the port."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
        try:
            if len(connections) <= _MOST_CONNECTIONS:
                await _converse(app, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # gone, silent, or we are: either way there is nobody to tell
        finally:
            if task is not None:
                connections.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(connected, host, port, limit=_LARGEST_HEAD)
    except OSError as exc:
        raise errors.Permanent(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        open_ones = list(connections)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        await server.wait_closed()


async def _converse(app: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    wait_s = _REQUEST_S
    while True:
        try:
            async with asyncio.timeout(wait_s):
                head = await reader.readuntil(b"\r\n\r\n")
            scope, keep = _parse(head)
        except asyncio.LimitOverrunError:
            await _send(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, [], b"", keep=False)
            return
        except _Bad as bad:
            await _send(writer, bad.status, [], f"{bad.status.phrase}\n".encode(), keep=False)
            return
        status, headers, body = await _ask(app, scope)
        await _send(writer, status, headers, b"" if scope["method"] == "HEAD" else body, keep=keep)
        if not keep:
            return
        wait_s = _IDLE_S


def _parse(head: bytes) -> tuple[dict[str, Any], bool]:
    """(ASGI scope, whether the connection stays open)."""
    first, *lines = head[:-4].split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        pairs = [line.split(b":", 1) for line in lines]
        headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
    except ValueError as exc:
        raise _Bad(HTTPStatus.BAD_REQUEST) from exc
    if not version.startswith("HTTP/1."):
        raise _Bad(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if method not in {"GET", "HEAD"}:
        raise _Bad(HTTPStatus.METHOD_NOT_ALLOWED)
    given = dict(headers)
    if given.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in given:
        raise _Bad(HTTPStatus.BAD_REQUEST)
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "query_string": query.encode(),
        "headers": headers,
    }
    asked = given.get(b"connection", b"").lower()
    return scope, asked == b"keep-alive" if version == "HTTP/1.0" else asked != b"close"


async def _ask(app: Application, scope: dict[str, Any]) -> tuple[HTTPStatus, list[tuple[bytes, bytes]], bytes]:
    status, headers, parts = HTTPStatus.INTERNAL_SERVER_ERROR, [], []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = HTTPStatus(message["status"])
            headers = [(name, value) for name, value in message["headers"] if name.lower() != b"content-length"]
        else:
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:  # the application's fault must not end the connection without an answer
        log.exception("request_failed", path=scope["path"])
        return HTTPStatus.INTERNAL_SERVER_ERROR, [], b"internal error\n"
    return status, headers, b"".join(parts)


async def _send(
    writer: asyncio.StreamWriter, status: HTTPStatus, headers: list[tuple[bytes, bytes]], body: bytes, *, keep: bool
) -> None:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    lines.append(b"content-length: " + str(len(body)).encode())
    lines.append(b"connection: " + (b"keep-alive" if keep else b"close"))
    writer.write(b"\r\n".join((*lines, b"", body)))
    async with asyncio.timeout(_REQUEST_S):
        await writer.drain()

"""The application: authenticates, limits, reads the query, calls the route, and writes the reply."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from kgwe import errors
from kgwe.httpapi import problems
from kgwe.httpapi.limits import MOST_BODY_BYTES, ConcurrencyLimiter, RateLimiter
from kgwe.httpapi.routes import describe_api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from kgwe.httpapi.authentication import Authenticator
    from kgwe.httpapi.routes import Route

log = structlog.get_logger(__name__)

_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
# Replies above this are compressed.
_LARGE: Final = 4096
_PER_S: Final = 20.0
_BURST: Final = 60
_AT_ONCE: Final = 8
# Bodies of one user, or of one address without a user, that are on their way; and the seconds that one may take.
_BODIES_AT_ONCE: Final = 32
_BODY_S: Final = 5.0
# Clients without a valid token, by address: guessing tokens is slow.
_UNKNOWN_PER_S: Final = 5.0
_UNKNOWN_BURST: Final = 20


class Api:
    """The routes of a process as an ASGI application."""

    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        *,
        title: str,
        version: str,
        users: RateLimiter | None = None,
        strangers: RateLimiter | None = None,
        others: Sequence[BaseRoute] = (),
    ) -> None:
        """`others`: routes outside of the API, such as pages; tried last."""
        self._authenticator = authenticator
        self._users = users or RateLimiter(_PER_S, _BURST)
        self._strangers = strangers or RateLimiter(_UNKNOWN_PER_S, _UNKNOWN_BURST)
        self._running = ConcurrencyLimiter(_AT_ONCE)
        self._running_strangers = ConcurrencyLimiter(_AT_ONCE)
        self._reading = ConcurrencyLimiter(_BODIES_AT_ONCE)
        self._reading_strangers = ConcurrencyLimiter(_BODIES_AT_ONCE)
        self.document = describe_api(routes, title=title, version=version)
        self._encoded = msgspec.json.encode(self.document)
        listed = [StarletteRoute(route.path, self._make_endpoint(route), methods=[route.method]) for route in routes]
        document = StarletteRoute("/openapi.json", self._show_document, methods=["GET"])
        self.asgi = Starlette(
            routes=[*listed, document, *others], exception_handlers={404: _answer_unknown, 405: _answer_unknown}
        )

    async def _show_document(self, _request: Request) -> Response:
        return Response(self._encoded, media_type=_JSON, headers=_HEADERS)

    def _make_endpoint(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await self._answer(route, request)
            except errors.KgweError as exc:
                return _reply(problems.from_error(exc))
            except Exception:
                log.exception("api_request_failed", path=route.path)
                return _reply(problems.Problem(500, "Internal Server Error", "the log of the process says more"))

        return answer

    async def _answer(self, route: Route, request: Request) -> Response:
        _check_size(request)
        address = request.client.host if request.client is not None else ""
        try:
            user = await self._authenticator.authenticate(request)
        except problems.Problem:
            self._strangers.take(address)
            raise
        # A client that is about to say who it is counts as unknown.
        self._users.take(user.name) if user.name else self._strangers.take(address)
        reading, running, name = (
            (self._reading, self._running, user.name)
            if user.name
            else (self._reading_strangers, self._running_strangers, address)
        )
        arguments = [read_query(route, request)]
        if route.body is not None:
            # A body that comes slowly holds no place of those that are answered.
            with reading.hold(name):
                arguments.append(await read_body(route.body, request))
        if route.takes_request:
            arguments.append(request)
        with running.hold(name):
            found = await route.handle(user, *arguments)
        if isinstance(found, Response):
            return found
        encoded = found if isinstance(found, bytes) else msgspec.json.encode(found)
        return await asyncio.to_thread(_compress, encoded, request) if len(encoded) > _LARGE else _make_reply(encoded)


def read_query(route: Route, request: Request) -> Any:
    """Return the parameters of a request; raise a Problem with 400 that names the one that is wrong."""
    values: dict[str, str] = dict(request.path_params)
    for name, value in request.query_params.multi_items():
        if name in values:
            raise problems.bad_request(f"{name[:64]} is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as exc:
        raise problems.bad_request(str(exc)) from exc


async def read_body(kind: type[msgspec.Struct], request: Request) -> Any:
    """Return the body of a request; raise a Problem with 400, 408, 413 or 415 if it cannot be used."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        # A form of another site cannot send this type without asking first.
        raise problems.Problem(415, "Unsupported Media Type", f"send the body as {_JSON}")
    try:
        async with asyncio.timeout(_BODY_S):
            found = await _receive_body(request)
    except TimeoutError as exc:
        text = f"the body did not come within {_BODY_S:.0f} seconds"
        raise problems.Problem(408, "Request Timeout", text, {"Connection": "close"}) from exc
    except ClientDisconnect as exc:
        raise problems.bad_request("the client left before its body was complete") from exc
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise problems.bad_request(f"the body cannot be read: {exc}") from exc


async def _receive_body(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_BODY_BYTES:
            raise problems.Problem(413, "Content Too Large", f"a body has at most {MOST_BODY_BYTES >> 10} KiB")
    return bytes(found)


def _make_reply(body: bytes) -> Response:
    return Response(body, media_type=_JSON, headers=_HEADERS)


def _compress(body: bytes, request: Request) -> Response:
    """Return a large reply, compressed if the client takes it."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return _make_reply(body)
    packed = gzip.compress(body, 1, mtime=0)
    return Response(
        packed, media_type=_JSON, headers=_HEADERS | {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    )


def _check_size(request: Request) -> None:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MOST_BODY_BYTES:
        raise problems.Problem(413, "Content Too Large", f"a body has at most {MOST_BODY_BYTES >> 10} KiB")


def _reply(problem: problems.Problem) -> Response:
    body = msgspec.json.encode(problem.document)
    return Response(body, problem.status, headers=_HEADERS | problem.headers, media_type=_PROBLEM)


async def _answer_unknown(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = dict(getattr(error, "headers", None) or {})
    title = "Not Found" if status == 404 else "Method Not Allowed"  # noqa: PLR2004 - HTTP's own numbers
    return _reply(problems.Problem(status, title, "GET /openapi.json lists the paths", headers))

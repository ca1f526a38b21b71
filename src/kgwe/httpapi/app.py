"""The application: authenticates, limits, reads the query, calls the route, and writes the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from kgwe import errors
from kgwe.httpapi import problems
from kgwe.httpapi.limits import MOST_BODY_BYTES, ConcurrencyLimiter, RateLimiter
from kgwe.httpapi.routes import describe_api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from kgwe.httpapi.authentication import Authenticator
    from kgwe.httpapi.routes import Route

log = structlog.get_logger(__name__)

_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_PER_S: Final = 20.0
_BURST: Final = 60
_AT_ONCE: Final = 8
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
    ) -> None:
        self._authenticator = authenticator
        self._users = users or RateLimiter(_PER_S, _BURST)
        self._strangers = strangers or RateLimiter(_UNKNOWN_PER_S, _UNKNOWN_BURST)
        self._running = ConcurrencyLimiter(_AT_ONCE)
        self.document = describe_api(routes, title=title, version=version)
        self._encoded = msgspec.json.encode(self.document)
        listed = [StarletteRoute(route.path, self._make_endpoint(route), methods=["GET"]) for route in routes]
        document = StarletteRoute("/openapi.json", self._show_document, methods=["GET"])
        self.asgi = Starlette(
            routes=[*listed, document], exception_handlers={404: _answer_unknown, 405: _answer_unknown}
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
            user = await self._authenticator.authenticate(request.headers)
        except problems.Problem:
            self._strangers.take(address)
            raise
        self._users.take(user.name)
        with self._running.hold(user.name):
            found = await route.handle(user, read_query(route, request))
        return Response(msgspec.json.encode(found), media_type=_JSON, headers=_HEADERS)


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


def _check_size(request: Request) -> None:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MOST_BODY_BYTES:
        raise problems.Problem(413, "Content Too Large", "a request has no body")


def _reply(problem: problems.Problem) -> Response:
    body = msgspec.json.encode(problem.document)
    return Response(body, problem.status, headers=_HEADERS | problem.headers, media_type=_PROBLEM)


async def _answer_unknown(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = dict(getattr(error, "headers", None) or {})
    title = "Not Found" if status == 404 else "Method Not Allowed"  # noqa: PLR2004 - HTTP's own numbers
    return _reply(problems.Problem(status, title, "GET /openapi.json lists the paths", headers))

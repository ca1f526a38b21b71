"""Who sends a request: a bearer token, a client certificate of the cluster, or the session of a browser."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from starlette.responses import Response

from kgwe.apps.console.sessions import Identity, is_equal
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import User, read_token
from kgwe.httpapi.routes import NoQuery, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from kgwe.apps.console.sessions import Session, Sessions
    from kgwe.httpapi.authentication import TokenAuthenticator

COOKIE: Final = "__Host-kgwe"
#: without TLS, on a loopback address, browsers take no cookie with the prefix
PLAIN_COOKIE: Final = "kgwe"
CSRF_HEADER: Final = "x-kgwe-csrf"
_SAFE: Final = frozenset({"GET", "HEAD"})
#: as the API server adds it to users of certificates
_AUTHENTICATED: Final = "system:authenticated"
_SESSION_PATH: Final = "/api/v1/session"


class SignInCode(msgspec.Struct, frozen=True, rename="camel"):
    """A code that signs a browser in once."""

    code: str
    seconds: Annotated[float, msgspec.Meta(description="How long it works.")]
    user: str


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a browser sends to sign in: the code of a link, or a token."""

    code: Annotated[str, msgspec.Meta(max_length=128)] = ""
    token: Annotated[str, msgspec.Meta(max_length=16_384)] = ""


class SessionReply(msgspec.Struct, frozen=True):
    """The user of the session, and what requests that change something must send."""

    user: str
    groups: list[str]
    csrf: Annotated[str, msgspec.Meta(description=f"Send it as the header {CSRF_HEADER} with POST and DELETE.")] = ""


class ConsoleAuthenticator:
    """Tells who sends a request. A session counts only with a CSRF header, except for reading."""

    def __init__(
        self,
        tokens: TokenAuthenticator,
        sessions: Sessions,
        *,
        secure: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`secure`: the console is served with TLS."""
        self._tokens = tokens
        self._sessions = sessions
        self._clock = clock
        self.cookie = COOKIE if secure else PLAIN_COOKIE
        self._secure = secure

    async def authenticate(self, request: Request) -> User:
        """Return the user; raise a Problem with 401 for a client that is not known."""
        if request.url.path == _SESSION_PATH and request.method == "POST":
            # The body says who it is; the address is limited like that of an unknown client.
            return User("")
        if "authorization" in request.headers:
            return await self._tokens.authenticate(request)
        if request.cookies.get(self.cookie):
            return await self._read_session(request)
        user = read_peer(request)
        if user is not None and user[1] > self._clock():
            return user[0]
        raise problems.unauthorized(
            "run `kgwe console open` to sign in, or send a token of Kubernetes: Authorization: Bearer TOKEN"
        )

    async def _read_session(self, request: Request) -> User:
        # A stream of changes and its polls are no sign of a person.
        is_use = request.url.path != "/api/v1/stream"
        session = self._sessions.find(request.cookies[self.cookie], is_use=is_use)
        if request.method not in _SAFE and not is_equal(request.headers.get(CSRF_HEADER, ""), session.csrf):
            raise problems.forbidden(f"the header {CSRF_HEADER} does not match the session: load the page again")
        return await self.find_user(session.identity)

    async def find_user(self, identity: Identity) -> User:
        """Return the user of a session, as the API server knows the token now."""
        if identity.user is not None:
            return identity.user
        # Strangers who guess tokens do not end sessions: the bucket is the user's own.
        return await self._tokens.authenticate_token(identity.token, f"session of {identity.name}")

    def read_identity(self, request: Request, name: str) -> Identity:
        """Return what a session of this client would be of. `name`: of its user."""
        if "authorization" in request.headers:
            return Identity(name, token=read_token(request))
        user = read_peer(request)
        if user is not None:
            return Identity(name, user=user[0], until_s=user[1])
        raise problems.unauthorized("a code is made for a token or a client certificate, not for a session")

    def find_session(self, request: Request) -> Session | None:
        """Return the session of a browser; None: it has none."""
        name = request.cookies.get(self.cookie, "")
        try:
            return self._sessions.find(name, is_use=False) if name else None
        except problems.Problem:
            return None

    def write_cookie(self, response: Response, name: str) -> None:
        """Set the cookie; an empty name removes it."""
        response.set_cookie(
            self.cookie,
            name,
            max_age=None if name else 0,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )


class SignInRoutes:
    """Signs browsers in and out."""

    def __init__(self, authenticator: ConsoleAuthenticator, sessions: Sessions, tokens: TokenAuthenticator) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._tokens = tokens

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        path = _SESSION_PATH
        return [
            Route(path, "The user that is signed in", NoQuery, SessionReply, self.read, "session", takes_request=True),
            Route(path, "Sign in", NoQuery, SessionReply, self.sign_in, "session", "POST", SignIn, takes_request=True),
            Route(path, "Sign out", NoQuery, SessionReply, self.sign_out, "session", "DELETE", takes_request=True),
            Route(
                f"{path}/code",
                "Make a code that signs a browser in once",
                NoQuery,
                SignInCode,
                self.make_code,
                "session",
                "POST",
                takes_request=True,
            ),
        ]

    async def read(self, user: User, _query: NoQuery, request: Request) -> SessionReply:
        """Return the user, and the CSRF token of its session."""
        session = self._authenticator.find_session(request)
        return SessionReply(user.name, list(user.groups), session.csrf if session is not None else "")

    async def sign_in(self, _user: User, _query: NoQuery, body: SignIn, request: Request) -> Response:
        """Start a session with the code of a link, or with a token."""
        check_origin(request)
        if body.token:
            address = request.client.host if request.client is not None else ""
            known = await self._tokens.authenticate_token(body.token, address)
            name, session = self._sessions.start(Identity(known.name, token=body.token))
        else:
            name, session = self._sessions.redeem(body.code)
        user = await self._authenticator.find_user(session.identity)
        reply = SessionReply(user.name, list(user.groups), session.csrf)
        response = Response(msgspec.json.encode(reply), media_type="application/json")
        response.headers["cache-control"] = "no-store"
        self._authenticator.write_cookie(response, name)
        return response

    async def sign_out(self, user: User, _query: NoQuery, request: Request) -> Response:
        """End the session."""
        self._sessions.end(request.cookies.get(self._authenticator.cookie, ""))
        response = Response(msgspec.json.encode(SessionReply(user.name, [])), media_type="application/json")
        self._authenticator.write_cookie(response, "")
        return response

    async def make_code(self, user: User, _query: NoQuery, request: Request) -> SignInCode:
        """Return a code for the client's own identity."""
        identity = self._authenticator.read_identity(request, user.name)
        return SignInCode(self._sessions.make_code(identity), self._sessions.code_seconds, user.name)


def check_origin(request: Request) -> None:
    """Refuse a request that a page of another site sends."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise problems.forbidden("the request comes from another site")
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise problems.forbidden("the request comes from another site")


def read_peer(request: Request) -> tuple[User, float] | None:
    """Return the user of the connection's client certificate and when it ends; None without one."""
    certificate: Mapping[str, Any] | None = getattr(request.state, "peer", None)
    if not certificate:
        return None
    fields = [pair for part in certificate.get("subject") or () for pair in part]
    name = next((value for key, value in fields if key == "commonName"), "")
    groups = tuple(value for key, value in fields if key == "organizationName")
    until_s = float(ssl.cert_time_to_seconds(certificate["notAfter"])) if "notAfter" in certificate else 0.0
    return (User(name, "", (*groups, _AUTHENTICATED)), until_s) if name else None

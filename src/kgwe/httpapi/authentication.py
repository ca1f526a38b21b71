"""Who a client is: its bearer token, as the API server of Kubernetes judges it (TokenReview)."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgwe.httpapi import problems
from kgwe.httpapi.limits import RateLimiter
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from kgwe.kube.client.client import KubeClient

TOKEN_REVIEW: Final[Resource[Any]] = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False, type=dict[str, Any]
)
# A token that is revoked keeps working for this long; one that was refused is asked about again after the second.
_VALID_S: Final = 10.0
_INVALID_S: Final = 2.0
# A token that was valid so recently is no guess.
_RECENT_S: Final = 600.0
_REFUSALS_PER_S: Final = 5.0
_REFUSALS_BURST: Final = 20
_MOST_TOKENS: Final = 4096
_LONGEST_TOKEN: Final = 16_384


@dataclass(frozen=True, slots=True)
class User:
    """A client as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Asked(Protocol):
    """The part of a request that says who sends it: a Request of Starlette is one."""

    @property
    def headers(self) -> Mapping[str, str]: ...


class Authenticator(Protocol):
    """Tells who a client is."""

    async def authenticate(self, request: Request) -> User:
        """Return the user; raise a Problem with 401 for a client that is not known."""


def read_token(request: Asked) -> str:
    """Return the bearer token of a request; raise a Problem with 401 if there is none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token:
        raise problems.unauthorized("send a token of Kubernetes: Authorization: Bearer TOKEN")
    return token


class TokenAuthenticator:
    """Asks the API server about each token, and remembers answers for some seconds."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        # Hash of a token -> (until when it counts, the user or why there is none).
        self._known: OrderedDict[bytes, tuple[float, User | str]] = OrderedDict()
        # Hash of a token -> until when it counts as valid recently. Strangers cannot fill it.
        self._recent: OrderedDict[bytes, float] = OrderedDict()
        # Refused tokens by address of the client: guessing asks the API server no more often than this.
        self._refusals = RateLimiter(_REFUSALS_PER_S, _REFUSALS_BURST, clock=clock)

    async def authenticate(self, request: Asked) -> User:
        """Return the user of the request's bearer token."""
        client = getattr(request, "client", None)
        return await self.authenticate_token(read_token(request), client.host if client is not None else "")

    async def authenticate_token(self, token: str, address: str) -> User:
        """Return the user of a token; raise a Problem with 401 if it is not valid, 429 for an address that guesses.

        A token that was valid some minutes ago is reviewed in any case: clients of one address do not harm each other.
        """
        if len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise problems.unauthorized("the token is malformed")
        key = hashlib.blake2b(token.encode(), digest_size=32).digest()
        known = self._known.get(key)
        if known is None or known[0] <= self._clock():
            is_recent = self._recent.get(key, 0.0) > self._clock()
            if not is_recent:
                self._refusals.check(address)
            found = await self._review(token)
            known = self._remember(key, found)
            if isinstance(found, str) and not is_recent:
                self._refusals.take(address)
        if isinstance(known[1], str):
            raise problems.unauthorized(known[1])
        return known[1]

    def _remember(self, key: bytes, found: User | str) -> tuple[float, User | str]:
        now = self._clock()
        if isinstance(found, User):
            self._recent[key] = now + _RECENT_S
            self._recent.move_to_end(key)
        else:
            self._recent.pop(key, None)
        known = self._known[key] = now + (_VALID_S if isinstance(found, User) else _INVALID_S), found
        self._known.move_to_end(key)
        for table in (self._known, self._recent):
            while len(table) > _MOST_TOKENS:
                table.popitem(last=False)
        return known

    async def _review(self, token: str) -> User | str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._client.create(TOKEN_REVIEW, body)).get("status") or {}
        if not status.get("authenticated"):
            return "the token is not valid"
        user = status.get("user") or {}
        extra = tuple(sorted((key, tuple(values)) for key, values in (user.get("extra") or {}).items()))
        return User(user.get("username", ""), user.get("uid", ""), tuple(user.get("groups") or ()), extra)

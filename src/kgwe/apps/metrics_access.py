"""Which clients may read /metrics: those whose token may `get` the path /metrics, as Kubernetes says.

    KGWE_METRICS_AUTH=token    always ask (TokenReview, then SubjectAccessReview)
    KGWE_METRICS_AUTH=none     serve to every client that reaches the port
    not set                    ask in a cluster, serve elsewhere

Probes need no token. If the process itself may not ask Kubernetes, `token` refuses every client with 503; without the
setting it serves, and says so in its log, so that an upgrade without the new right loses no metrics.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from kgwe import errors
from kgwe.httpapi import problems
from kgwe.httpapi.authentication import TokenAuthenticator
from kgwe.httpapi.authorization import AccessReviewer, Right
from kgwe.telemetry.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.kube.client.client import KubeClient
    from kgwe.telemetry.messages import Request

log = structlog.get_logger(__name__)

VARIABLE: Final = "KGWE_METRICS_AUTH"
_RIGHT: Final = Right("get", "", "", path="/metrics")
_POD_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_NEXT: Final = "bind the ClusterRole system:auth-delegator to this service account, or set metrics.auth: none"


class Tokens(Protocol):
    """Tells which user a token belongs to."""

    async def authenticate_token(self, token: str, address: str) -> User: ...


class MetricsGuard:
    """Asks Kubernetes about the client of a request."""

    def __init__(self, authenticator: Tokens, authorizer: Authorizer, *, is_strict: bool) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._is_strict = is_strict
        self._warned = False

    async def __call__(self, request: Request) -> Reply | None:
        """Return why the client gets no metrics; None if it does."""
        try:
            kind, _, token = request.header(b"authorization").partition(" ")
            if kind.lower() != "bearer" or not token.strip():
                return Reply(401, b"send a token of Kubernetes: Authorization: Bearer TOKEN\n")
            user = await self._authenticator.authenticate_token(token.strip(), request.peer)
            if await self._authorizer.may(user, _RIGHT):
                return None
        except problems.Problem as exc:
            return Reply(exc.status, f"{exc}\n".encode())
        except errors.KgweError as exc:
            return self._cannot_ask(exc)
        text = f"{user.name} may not get /metrics: bind the ClusterRole kgwe-metrics-reader to it\n"
        return Reply(403, text.encode())

    def _cannot_ask(self, exc: errors.KgweError) -> Reply | None:
        if isinstance(exc, errors.Permanent) and not self._is_strict:
            if not self._warned:
                self._warned = True
                log.warning("metrics_unprotected", error=str(exc), next=_NEXT)
            return None
        return Reply(503, f"cannot ask Kubernetes about the token: {exc}; {_NEXT}\n".encode())


def make_guard(
    client: KubeClient, environment: Mapping[str, str] = os.environ, pod_token: Path = _POD_TOKEN
) -> Callable[[Request], Awaitable[Reply | None]] | None:
    """Return the guard of this process; None if metrics are served to every client."""
    mode = environment.get(VARIABLE, "")
    if mode not in {"", "token", "none"}:
        raise errors.Permanent(f"{VARIABLE} is {mode!r}; it must be token or none")
    if mode == "none" or (not mode and not pod_token.is_file()):
        return None
    return MetricsGuard(TokenAuthenticator(client), AccessReviewer(client), is_strict=mode == "token")

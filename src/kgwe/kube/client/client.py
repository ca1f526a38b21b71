"""A small async client of the Kubernetes API server.

A `Transport` carries the requests. The client adds paths from a `Resource`, bodies as plain JSON values, replies
decoded straight into slim structs, and HTTP errors turned into the exceptions of `kgwe.errors`.

Assumptions callers may rely on: a call either returns the object as stored or raises one of those errors,
whatever went wrong on the way; `delete` raises NotFound when the object is gone; nothing is retried here
except by `retry_conflict`. A write that raised Transient may have been carried out all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import math
import os
import random
import socket
import ssl
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError

from kgwe import errors
from kgwe.kube.transport import nesting
from kgwe.kube.transport.codec import ListPage, read_status
from kgwe.kube.transport.encoding import JSON, PROTOBUF, Status, Unreadable
from kgwe.kube.transport.kubeconfig import connect
from kgwe.kube.transport.transport import ANYTHING, TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.transport.transport import StreamingResponse, Timeouts, Transport

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# JSON is YAML, so server-side apply takes the same bytes.
_encode = msgspec.json.encode

# Whatever the network, TLS or a credential plugin may raise under a call.
_UNREACHABLE = (httpx2.RequestError, ssl.SSLError, ConfigError)

_CONFLICT_PAUSE_S = 0.02

_SUCCESS = range(200, 300)
# The API server sheds load with 429 and asks for patience with 408; 401 is a token about to be rotated.
_RETRYABLE = {httpx2.codes.REQUEST_TIMEOUT, httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.UNAUTHORIZED}


# What the API server says where its Status has neither a reason nor a cause of its own for it.
_QUOTA_MESSAGE = "exceeded quota"
_TWO_BUDGETS_MESSAGE = "more than one PodDisruptionBudget"
_BUDGET_CAUSE = "DisruptionBudget"


class Forbidden(errors.Permanent):
    """Our user may not do that."""


class QuotaExceeded(Forbidden):
    """A ResourceQuota of the namespace does not allow the object."""


class DisruptionBudgetRefused(errors.Transient):
    """A disruption budget forbids the eviction now."""


class NotAcceptable(errors.Permanent):
    """The server does not have the encoding that was asked for."""


class KubeClient:
    """One authenticated connection pool to one API server; close it or use it as a context manager."""

    def __init__(
        self,
        transport: Transport,
        *,
        field_manager: str = "kgwe",
        namespace: str = "default",
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.transport = transport
        self.field_manager = field_manager
        self.namespace = namespace
        self._guard = guard

    def with_guard(self, guard: Callable[[], None]) -> KubeClient:
        """The same connections, but `guard` is asked before every write and may refuse it by raising."""
        return KubeClient(self.transport, field_manager=self.field_manager, namespace=self.namespace, guard=guard)

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | str | None = None,
        *,
        context: str | None = None,
        field_manager: str = "kgwe",
        timeouts: Timeouts = TIMEOUTS,
    ) -> KubeClient:
        """Connect as `kubeconfig` says, else as $KUBECONFIG, ~/.kube/config or the pod's service account say."""
        transport, namespace = connect(kubeconfig, context=context, user_agent=field_manager, timeouts=timeouts)
        return cls(transport, field_manager=field_manager, namespace=namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    # --- reading ---------------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name)
        return _decode(await self.request("GET", path), resource.type, path)

    async def list(self, resource: Resource[T], namespace: str | None = None, **params: str) -> list[T]:
        """Every object, page by page; across all namespaces unless one is given."""
        items: list[T] = []
        page_type: type[ListPage[T]] = ListPage[resource.type]  # type: ignore[name-defined] # a run-time type
        path = resource.path(namespace=namespace)
        query = {"limit": "500", **params}
        while True:
            try:
                body = await self.request("GET", path, params=query)
            except errors.Expired:
                if "continue" not in query:
                    raise
                # The list outlived the version it was reading: take it whole, as client-go does.
                items = []
                query = {name: value for name, value in params.items() if name not in ("limit", "continue")}
                continue
            page = _decode(body, page_type, path)
            items.extend(page.items)
            if not page.metadata.continue_:
                return items
            query["continue"] = page.metadata.continue_

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], read_timeout_s: float, accept: str = ANYTHING
    ) -> AsyncIterator[StreamingResponse]:
        """A streaming GET (a watch or a log); `read_timeout_s` is the longest silence tolerated."""
        try:
            async with self.transport.stream(path, params=params, silence_s=read_timeout_s, accept=accept) as response:
                if response.status_code != httpx2.codes.OK:
                    raise_for_status(response.status_code, await response.aread(), response.headers, f"GET {path}")
                yield response
        except _UNREACHABLE as exc:
            raise self._make_transient(f"streaming {path}", exc) from exc

    # --- writing ---------------------------------------------------------------------------------------

    async def create(
        self,
        resource: Resource[T],
        body: Any,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """POST; `name` and `subresource` for what is created at an object (binding, eviction)."""
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name, subresource=subresource)
        reply = await self.request("POST", path, body=body, params={"fieldManager": self.field_manager})
        return _decode(reply, resource.type, path)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> T:
        """PUT; Conflict when the body's resourceVersion is no longer the stored one."""
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name, subresource=subresource)
        reply = await self.request("PUT", path, body=body, params={"fieldManager": self.field_manager})
        return _decode(reply, resource.type, path)

    async def replace_message(self, resource: Resource[Any], name: str, body: bytes, namespace: str | None) -> None:
        """PUT of an object in protobuf, envelope and all; Conflict as above. The answer is not read."""
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name)
        params = {"fieldManager": self.field_manager}
        await self.request("PUT", path, body=body, params=params, content_type=PROTOBUF, accept=PROTOBUF)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        kind: str = MERGE_PATCH,
    ) -> T:
        """A merge patch (or JSON patch); put `metadata.resourceVersion` in it to be refused when stale."""
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name, subresource=subresource)
        reply = await self.request(
            "PATCH", path, body=body, content_type=kind, params={"fieldManager": self.field_manager}
        )
        return _decode(reply, resource.type, path)

    async def apply(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> T:
        """Server-side apply: create or bring to `body`, owning just the fields it names."""
        name = body["metadata"]["name"]
        named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        path = resource.path(namespace=self._namespace_of(resource, namespace), name=name, subresource=subresource)
        params = {"fieldManager": self.field_manager, "force": "true" if force else "false"}
        reply = await self.request("PATCH", path, body=named, content_type=APPLY_PATCH, params=params)
        return _decode(reply, resource.type, path)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: str = "Background",
        grace_s: int | None = None,
    ) -> None:
        """Ask for deletion; with `uid`, only of that very object (a namesake created since is left alone)."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self.request(
            "DELETE", resource.path(namespace=self._namespace_of(resource, namespace), name=name), body=options
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = ANYTHING,
    ) -> bytes:
        """Any request; a body of bytes is sent as it is, any other as JSON."""
        if self._guard is not None and method != "GET":
            self._guard()
        content = body if body is None or isinstance(body, bytes) else _encode(body)
        try:
            reply = await self.transport.request(
                method, path, params=params, content=content, content_type=content_type, accept=accept
            )
        except _UNREACHABLE as exc:
            raise self._make_transient(f"{method} {path}", exc) from exc
        if reply.status_code not in _SUCCESS:
            raise_for_status(reply.status_code, reply.content, reply.headers, f"{method} {path}")
        return reply.content

    def _make_transient(self, doing: str, exc: Exception) -> errors.Transient:
        if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
            return errors.Unreachable(f"cannot reach the cluster at {self.transport.url} ({_explain_failure(exc)})")
        return errors.Transient(f"{doing}: {exc!r}")

    def _namespace_of(self, resource: Resource[Any], namespace: str | None) -> str | None:
        return (namespace or self.namespace) if resource.namespaced else None


def _explain_failure(exc: BaseException) -> str:
    """Return why a connection failed, in the words of the operating system or of TLS where they are known."""
    if isinstance(exc, httpx2.ConnectTimeout):
        return "timed out"
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate not accepted: {cause.verify_message}"
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
            text = cause.strerror if isinstance(cause, socket.gaierror) else os.strerror(cause.errno)
            return (text or str(cause)).lower()
        cause = cause.__cause__ or cause.__context__
    return str(exc)


def _decode(body: bytes, as_type: type[T], path: str) -> T:
    try:
        return nesting.decode(msgspec.json.Decoder(as_type).decode, body)
    except msgspec.ValidationError as exc:
        raise errors.Permanent(f"reading the reply of {path}: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        # Not JSON at all: something between us and the API server answered in its place.
        raise errors.Transient(f"reading the reply of {path}: {exc}") from exc


def raise_for_status(code: int, body: bytes, headers: Mapping[str, str], doing: str) -> None:
    """Translate a failed reply; the API server's own message is kept, it says what to change."""
    try:
        status = read_status(body)
    except Unreadable:
        status = Status(message=body[:300].decode(errors="replace"))
    raise make_error(code, status, doing, headers.get("Retry-After"))


def make_error(code: int, status: Status, doing: str, retry_after: str | None = None) -> errors.KgweError:
    """The exception for an API error code, from a reply or from a watch's ERROR event."""
    message = f"{doing}: {status.message or f'HTTP {code}'}"
    if code == httpx2.codes.NOT_FOUND:
        return errors.NotFound(message)
    if code == httpx2.codes.CONFLICT:
        return (errors.AlreadyExists if status.reason == "AlreadyExists" else errors.Conflict)(message)
    if code == httpx2.codes.FORBIDDEN:
        return (QuotaExceeded if _QUOTA_MESSAGE in status.message else Forbidden)(message)
    if code == httpx2.codes.NOT_ACCEPTABLE:
        return NotAcceptable(message)
    if code == httpx2.codes.GONE:
        return errors.Expired(message)
    if code in _RETRYABLE or code >= httpx2.codes.INTERNAL_SERVER_ERROR:
        kind = DisruptionBudgetRefused if _is_refused_by_budget(status) else errors.Transient
        return kind(message, retry_after_s=_parse_retry_after(retry_after) if retry_after else None)
    return errors.Permanent(message)


def _is_refused_by_budget(status: Status) -> bool:
    """Whether an eviction was refused by a disruption budget; a pod with two budgets gets a plain error 500."""
    return status.has_cause(_BUDGET_CAUSE) or _TWO_BUDGETS_MESSAGE in status.message


def _parse_retry_after(retry_after: str) -> float | None:
    """Retry-After in seconds: a number (the API server) or a date (proxies); None when it is neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        now = dt.datetime.now(dt.UTC)
        seconds = (until.replace(tzinfo=until.tzinfo or dt.UTC) - now).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


async def retry_conflict(attempt: Callable[[], Awaitable[T]], *, attempts: int = 5) -> T:
    """Run a read-modify-write again while it loses to other writers; `attempt` must read afresh each time."""
    for lost in range(attempts - 1):
        try:
            return await attempt()
        except errors.AlreadyExists:
            raise
        except errors.Conflict:
            # Writers that meet once would meet again if they all came back at once.
            await asyncio.sleep(_CONFLICT_PAUSE_S * 2**lost * random.random())  # noqa: S311 - spreads load, guards nothing
    return await attempt()

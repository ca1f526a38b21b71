"""The extender over HTTP: plain ASGI, for the two calls kube-scheduler makes for every GPU pod are the hot path."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube import extender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.apps.scheduler.answers import Answers
    from kgwe.apps.scheduler.metrics import Metrics

log = structlog.get_logger(__name__)

# 5,000 nodes with long names make half a megabyte of names; whole nodes (nodeCacheCapable: false) a hundred times that.
_LARGEST: Final = 64 * 2**20
_JSON: Final = (b"content-type", b"application/json")


class ExtenderApp:
    """Verbs of the extender, and a look at what it believes."""

    def __init__(
        self,
        answers: Answers,
        metrics: Metrics,
        *,
        bind: Callable[[extender.BindArgs], Awaitable[str]] | None = None,
    ) -> None:
        """`bind`: creates the binding and returns what went wrong; None: kube-scheduler binds."""
        self._answers = answers
        self._metrics = metrics
        self._bind = bind
        self._verbs: dict[str, Callable[[bytes], tuple[bytes, str]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/preempt": self._preempt,
        }

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path == "/debug/snapshot":
            await _reply(send, 200, msgspec.json.encode(self._answers.snapshot()))
            return
        verb = self._verbs.get(path)
        if verb is None and not (path == "/bind" and self._bind):
            await _reply(send, 404, b'{"Error":"try /filter, /prioritize, /preempt or /debug/snapshot"}')
            return
        if scope["method"] != "POST":
            await _reply(send, 405, b'{"Error":"POST"}')
            return
        started = time.perf_counter()
        body = await _body(receive)
        if body is None:
            self._count(path[1:], "too_large", started)
            await _reply(send, 413, extender.error(f"larger than {_LARGEST} bytes"))
            return
        reply, outcome = await self._binding(body) if verb is None else self._answer(path, verb, body)
        self._count(path[1:], outcome, started)
        await _reply(send, 200, reply)

    def _answer(self, path: str, verb: Callable[[bytes], tuple[bytes, str]], body: bytes) -> tuple[bytes, str]:
        try:
            return verb(body)
        except errors.Permanent as exc:
            return _failure(path, str(exc)), "malformed"
        except Exception:  # the boundary of the server: a bad request must not take it down
            log.exception("extender_failed", verb=path)
            return _failure(path, "internal error; the scheduler's log says more"), "error"

    def _filter(self, body: bytes) -> tuple[bytes, str]:
        return self._answers.filter(extender.Args(body))

    def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        return self._answers.prioritize(extender.Args(body)), "scored"

    def _preempt(self, body: bytes) -> tuple[bytes, str]:
        return self._answers.preempt(extender.read_preempt(body)), "answered"

    async def _binding(self, body: bytes) -> tuple[bytes, str]:
        if self._bind is None:
            return extender.bound("not configured to bind"), "refused"
        try:
            problem = await self._bind(extender.read_bind(body))
        except errors.KgweError as exc:
            problem = str(exc)
        return extender.bound(problem), "error" if problem else "bound"

    def _count(self, verb: str, outcome: str, started: float) -> None:
        self._metrics.extender_requests.labels(verb, outcome).inc()
        self._metrics.extender_seconds.labels(verb).observe(time.perf_counter() - started)


def _failure(path: str, message: str) -> bytes:
    """As each verb's caller can read it: a list has no place for an error, so prioritize says nothing."""
    return b"[]" if path == "/prioritize" else extender.error(message)


async def _body(receive: Callable[[], Awaitable[Any]]) -> bytes | None:
    """The whole request; None when it is too large (what is left of it is not read)."""
    event = await receive()
    if not event.get("more_body"):
        body: bytes = event.get("body", b"")
        return body if len(body) <= _LARGEST else None
    parts, size = [event["body"]], len(event["body"])
    while event.get("more_body") and size <= _LARGEST:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
    return b"".join(parts) if size <= _LARGEST else None


async def _reply(send: Callable[[Any], Awaitable[None]], status: int, body: bytes) -> None:
    headers = (_JSON, (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

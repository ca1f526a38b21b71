"""The extender over HTTP: the two calls kube-scheduler makes for every GPU pod are the hot path."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube import extender
from kgwe.telemetry.http import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import Counter, Histogram

    from kgwe.apps.scheduler.answers import Answers
    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.telemetry.http import Request

log = structlog.get_logger(__name__)

#: 5,000 nodes with long names make half a megabyte of names; whole nodes (nodeCacheCapable: false) a hundred times that
LARGEST: Final = 64 * 2**20
_USAGE: Final = Reply(404, b'{"Error":"try /filter, /prioritize, /preempt or /debug/snapshot"}', JSON)


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
        # (path, outcome) -> what counts it: looking that up takes longer than counting
        self._counted: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._verbs: dict[str, Callable[[bytes], tuple[bytes, str]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/preempt": self._preempt,
        }

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path
        if path == "/debug/snapshot":
            return Reply(200, msgspec.json.encode(self._answers.snapshot()), JSON)
        verb = self._verbs.get(path)
        if verb is None and not (path == "/bind" and self._bind):
            return _USAGE
        if request.method != "POST":
            return Reply(405, b'{"Error":"POST"}', JSON)
        started = time.perf_counter()
        if request.too_large:
            self._count(path, "too_large", started)
            return Reply(413, extender.error(f"larger than {LARGEST} bytes"), JSON)
        if verb is None:
            return self._binding(path, request.body, started)
        reply, outcome = self._answer(path, verb, request.body)
        self._count(path, outcome, started)
        return Reply(200, reply, JSON)

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

    async def _binding(self, path: str, body: bytes, started: float) -> Reply:
        if self._bind is None:
            return _USAGE
        try:
            problem = await self._bind(extender.read_bind(body))
        except errors.KgweError as exc:
            problem = str(exc)
        self._count(path, "error" if problem else "bound", started)
        return Reply(200, extender.bound(problem), JSON)

    def _count(self, path: str, outcome: str, started: float) -> None:
        known = self._counted.get((path, outcome))
        if known is None:
            requests, seconds, verb = self._metrics.extender_requests, self._metrics.extender_seconds, path[1:]
            known = self._counted[path, outcome] = requests.labels(verb, outcome), seconds.labels(verb)
        known[0].inc()
        known[1].observe(time.perf_counter() - started)


def _failure(path: str, message: str) -> bytes:
    """As each verb's caller can read it: a list has no place for an error, so prioritize says nothing."""
    return b"[]" if path == "/prioritize" else extender.error(message)

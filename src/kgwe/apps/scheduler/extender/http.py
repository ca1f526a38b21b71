"""The extender over HTTP: the two calls kube-scheduler makes for every GPU pod are the hot path."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.translate import extender_wire
from kgwe.telemetry.http import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import Counter, Histogram

    from kgwe.apps.scheduler.extender.handlers import ExtenderHandlers
    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.cluster.registry.pod_sightings import PodSightings
    from kgwe.telemetry.http import Request

log = structlog.get_logger(__name__)

_USAGE: Final = Reply(404, b'{"Error":"try /filter, /prioritize or /preempt"}', JSON)
# A body of this size is read in a thread: it is larger than any cluster needs, and the loop renews the Lease.
_READ_IN_THREAD: Final = 1 << 20
# kube-scheduler may ask about a pod a moment before our watch shows it. It waits for the answer, and so do all pods
# behind it in its queue; if the watch does not show the pod by then, kube-scheduler has to retry it.
_SIGHT_S: Final = 0.5

A = TypeVar("A", extender_wire.Args, extender_wire.PreemptArgs)

if TYPE_CHECKING:
    Answered = tuple[bytes, str]


class ExtenderApp:
    """Verbs of the extender, and /debug/snapshot."""

    def __init__(
        self,
        answers: ExtenderHandlers,
        metrics: Metrics,
        *,
        bind: Callable[[extender_wire.BindArgs], Awaitable[str]] | None = None,
        sightings: PodSightings | None = None,
        show_snapshot: bool = False,
    ) -> None:
        """`bind`: creates the binding and returns what went wrong; None: kube-scheduler binds."""
        self._answers = answers
        self._metrics = metrics
        self._bind = bind
        self._sightings = sightings
        self._show_snapshot = show_snapshot
        # One thread: large bodies are read one after the other, and the loop gets its turn between them.
        self._reader = ThreadPoolExecutor(1, "extender-reader")
        # (path, outcome) -> its counter, because the lookup takes longer than to count
        self._counted: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._verbs: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], Answered | Awaitable[Answered]]]] = {
            "/filter": (extender_wire.Args, self._filter),
            "/prioritize": (extender_wire.Args, self._prioritize),
            "/preempt": (extender_wire.read_preempt, self._preempt),
        }
        if bind is not None:
            self._verbs["/bind"] = (extender_wire.read_bind, self._bind_pod)

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path
        if path == "/debug/snapshot" and self._show_snapshot:
            return Reply(200, msgspec.json.encode(self._answers.snapshot()), JSON)
        verb = self._verbs.get(path)
        if verb is None:
            return _USAGE
        if request.method != "POST":
            return Reply(405, b'{"Error":"POST"}', JSON)
        started = time.perf_counter()
        if request.too_large:
            self._count_call(path, "too_large", started)
            return Reply(413, extender_wire.reply_with_error(f"larger than {extender_wire.LARGEST} bytes"), JSON)
        read, decide = verb
        if len(request.body) > _READ_IN_THREAD:
            return self._in_thread(path, request.body, started)
        try:
            answered = decide(read(request.body))
        except Exception as exc:  # noqa: BLE001 - the boundary of the server: a bad request must not take it down
            answered = _reply_to_error(path, exc)
        if isinstance(answered, tuple):
            return self._reply(path, answered, started)
        return self._reply_later(path, answered, started)

    async def _in_thread(self, path: str, body: bytes, started: float) -> Reply:
        read, decide = self._verbs[path]
        try:
            answered = decide(await asyncio.get_running_loop().run_in_executor(self._reader, read, body))
        except Exception as exc:  # noqa: BLE001 - as above
            answered = _reply_to_error(path, exc)
        if isinstance(answered, tuple):
            return self._reply(path, answered, started)
        return await self._reply_later(path, answered, started)

    async def _reply_later(self, path: str, coming: Awaitable[Answered], started: float) -> Reply:
        try:
            answered = await coming
        except Exception as exc:  # noqa: BLE001 - as above
            answered = _reply_to_error(path, exc)
        return self._reply(path, answered, started)

    def _reply(self, path: str, answered: Answered, started: float) -> Reply:
        self._count_call(path, answered[1], started)
        return Reply(200, answered[0], JSON)

    def _filter(self, args: extender_wire.Args) -> Answered | Awaitable[Answered]:
        return self._when_seen(args, self._answers.filter)

    def _prioritize(self, args: extender_wire.Args) -> Answered:
        return self._answers.prioritize(args), "scored"

    def _preempt(self, args: extender_wire.PreemptArgs) -> Answered | Awaitable[Answered]:
        # kube-scheduler asks for victims without asking for a node first when it sees itself that no node has room.
        return self._when_seen(args, lambda args: (self._answers.preempt(args), "answered"))

    def _when_seen(self, args: A, decide: Callable[[A], Answered]) -> Answered | Awaitable[Answered]:
        """Decide at once, or when the watch shows the pod."""
        if self._sightings is None or self._answers.pod(args) is not None or not self._sightings.may_come(args.uid):
            return decide(args)
        return self._wait_for_pod(args, decide, self._sightings)

    async def _wait_for_pod(self, args: A, decide: Callable[[A], Answered], sightings: PodSightings) -> Answered:
        # The watch may have shown it between the call and this task's first step.
        if self._answers.pod(args) is None:
            self._metrics.extender_waits.inc()
            await sightings.wait(args.uid, _SIGHT_S)
        return decide(args)

    async def _bind_pod(self, args: extender_wire.BindArgs) -> Answered:
        problem = self._answers.refuse_binding(args)
        try:
            if not problem and self._bind is not None:
                problem = await self._bind(args)
        except errors.KgweError as exc:
            problem = str(exc)
        return extender_wire.reply_to_bind(problem), "error" if problem else "bound"

    def _count_call(self, path: str, outcome: str, started: float) -> None:
        known = self._counted.get((path, outcome))
        if known is None:
            requests, seconds, verb = self._metrics.extender_requests, self._metrics.extender_seconds, path[1:]
            known = self._counted[path, outcome] = requests.labels(verb, outcome), seconds.labels(verb)
        known[0].inc()
        known[1].observe(time.perf_counter() - started)


def _reply_to_error(path: str, exc: Exception) -> Answered:
    if isinstance(exc, errors.Permanent):
        return _encode_error(path, str(exc)), "malformed"
    log.error("extender_failed", verb=path, exc_info=exc)
    return _encode_error(path, "internal error; see the scheduler's log"), "error"


def _encode_error(path: str, message: str) -> bytes:
    """The error in the format of the verb. The reply to prioritize is a list, which has no place for an error."""
    return b"[]" if path == "/prioritize" else extender_wire.reply_with_error(message)

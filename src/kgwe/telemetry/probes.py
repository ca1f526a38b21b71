"""Metrics and probes over HTTP: /metrics, /healthz, /readyz, and /standbyz of processes with a standby.

/healthz fails if the process must be restarted, /readyz while it is not ready; both return the reason. /standbyz also
succeeds on a standby that could take over: a rolling update waits for it, and /readyz would make it wait forever.

The metrics of a large fleet take milliseconds to render on the event loop, and any client may request them. So they
are rendered about once per second, and less often if rendering takes long; other requests get the last text.
Rendering thus takes a small part of the loop's time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import choose_encoder

from kgwe.telemetry.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import prometheus_client

    from kgwe.telemetry.messages import App, Request


_OPEN_METRICS: Final = "application/openmetrics-text"
# Seconds between two renderings in the long run, and the minimum multiple of the rendering time.
_PAUSE_S: Final = 1.0
_PAUSE_TIMES: Final = 20.0
# Seconds by which renderings may be ahead: two scrapers, or two requests of a user, get the newest text.
_AHEAD_S: Final = 4.0


class ProbeApp:
    """The application of a process with probes and metrics."""

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        *,
        live: Callable[[], str | None],
        ready: Callable[[], str | None],
        standby: Callable[[], str | None] | None = None,
        others: App | None = None,
        guard: Callable[[Request], Awaitable[Reply | None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` is the application for all other paths. `guard` returns why a client gets no metrics."""
        self._guard = guard
        self._clock = clock
        #: whether it is OpenMetrics -> the newest text
        self._rendered: dict[bool, Reply] = {}
        #: time at which the pauses of all renderings so far are over
        self._rested_s = 0.0
        self._others = others
        self._registry = registry
        self._probes = {"/healthz": live, "/readyz": ready}
        if standby is not None:
            self._probes["/standbyz"] = standby

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path
        if path == "/metrics":
            return self._metrics(request) if self._guard is None else self._check_client(request, self._guard)
        if path in self._probes:
            problem = self._probes[path]()
            return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        if self._others is not None:
            return self._others(request)
        return Reply(404, b"not found: try /metrics, /healthz or /readyz\n")

    async def _check_client(self, request: Request, guard: Callable[[Request], Awaitable[Reply | None]]) -> Reply:
        return await guard(request) or self._metrics(request)

    def _metrics(self, request: Request) -> Reply:
        # Only two formats, whichever versions and escapings a client accepts: each would be rendered separately.
        is_open = _OPEN_METRICS in request.header(b"accept").lower()
        now_s = self._clock()
        known = self._rendered.get(is_open)
        if known is not None and self._rested_s - now_s > _AHEAD_S:
            return known
        encode, content_type = choose_encoder(_OPEN_METRICS if is_open else "")
        reply = self._rendered[is_open] = Reply(200, encode(self._registry), content_type)
        took_s = self._clock() - now_s
        self._rested_s = max(self._rested_s, now_s) + max(_PAUSE_S, _PAUSE_TIMES * took_s)
        return reply

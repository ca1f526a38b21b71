"""Metrics and probes over HTTP: /metrics, /healthz, /readyz.

/healthz fails when the process should be restarted, /readyz while it should not be relied on; both say why.

The metrics of a large fleet take milliseconds to render, on the event loop that does the work, and anyone who reaches
the port may ask for them. So they are rendered once per second in the long run, and less often where rendering takes
long; other requests get the last text. However many ask, rendering takes a small part of the loop's time.
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
# Between two renderings in the long run, and at least so many times what one takes.
_PAUSE_S: Final = 1.0
_PAUSE_TIMES: Final = 20.0
# Renderings may be ahead of that by so much: two scrapers, or a user who asks twice, see the newest.
_AHEAD_S: Final = 4.0


class ProbeApp:
    """The application of a process that is probed and scraped."""

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        *,
        live: Callable[[], str | None],
        ready: Callable[[], str | None],
        others: App | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others`: the application for every other path."""
        self._clock = clock
        #: whether it is OpenMetrics -> the newest text
        self._rendered: dict[bool, Reply] = {}
        #: when the pauses of all renderings so far are over
        self._rested_s = 0.0
        self._others = others
        self._registry = registry
        self._probes = {"/healthz": live, "/readyz": ready}

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path
        if path == "/metrics":
            return self._metrics(request)
        if path in self._probes:
            problem = self._probes[path]()
            return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        if self._others is not None:
            return self._others(request)
        return Reply(404, b"not found: try /metrics, /healthz or /readyz\n")

    def _metrics(self, request: Request) -> Reply:
        # Two formats, whatever versions and escapings a client lists: each would be rendered for itself.
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

"""Metrics and probes over HTTP: /metrics, /healthz, /readyz.

/healthz fails when the process should be restarted, /readyz while it should not be relied on; both say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder

from kgwe.telemetry.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import prometheus_client

    from kgwe.telemetry.messages import App, Request


class ProbeApp:
    """The application of a process that is probed and scraped."""

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        *,
        live: Callable[[], str | None],
        ready: Callable[[], str | None],
        others: App | None = None,
    ) -> None:
        """`others`: the application for every other path."""
        self._others = others
        self._registry = registry
        self._probes = {"/healthz": live, "/readyz": ready}

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path
        if path == "/metrics":
            encode, content_type = choose_encoder(request.header(b"accept"))
            return Reply(200, encode(self._registry), content_type)
        if path in self._probes:
            problem = self._probes[path]()
            return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        if self._others is not None:
            return self._others(request)
        return Reply(404, b"not found: try /metrics, /healthz or /readyz\n")

"""`kgwe cost-engine`: the process. All replicas watch the cluster; the leader counts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe.apps import background, leading, metrics_access
from kgwe.apps.cost.budgets.alert_sender import AlertSender
from kgwe.apps.cost.budgets.metrics import BudgetMetrics
from kgwe.apps.cost.budgets.publisher import BudgetPublisher
from kgwe.apps.cost.cluster_view import ClusterView
from kgwe.apps.cost.engine import CostEngine
from kgwe.apps.cost.metrics import Metrics
from kgwe.apps.leading import LeaderLoop
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.notify.metrics import NotifyMetrics
from kgwe.telemetry import http, logs, probes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from kgwe.apps.cost.settings import Settings
    from kgwe.apps.leading import Term

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-cost-engine"


class CostProcess:
    """One replica of the cost engine."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        identity: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._client = client
        self.api_port = 0
        self.identity = identity or leading.make_identity()
        self.metrics = Metrics()
        self._elector = leading.make_elector(client, settings, self.identity) if settings.leader_elect else None
        self.cluster = ClusterView(client)
        self.leading = LeaderLoop(self._elector, lambda: self.cluster.informers)
        acting = client.with_guard(self.leading.check_leading)
        self._events = EventRecorder(acting, controller=FIELD_MANAGER, instance=self.identity)
        self._sender = AlertSender(
            settings.notifications,
            acting,
            self._events,
            settings.lease_namespace,
            NotifyMetrics(self.metrics.registry),
        )
        self.budgets = BudgetPublisher(acting, settings.rules, self._sender, BudgetMetrics(self.metrics.registry))
        self._problem: Callable[[], str | None] = lambda: "standby: another replica is the leader"

    def problem(self) -> str | None:
        """Return why this replica is not ready: it is on standby, or costs are not counted."""
        return self.leading.describe_unsynced() or self._problem()

    async def run(self, stop: asyncio.Event, on_port: Callable[[int], None] = lambda _port: None) -> None:
        """Count while this replica is the leader, until `stop` is set. `on_port`: called with the port of metrics."""
        app = probes.ProbeApp(
            self.metrics.registry, live=lambda: None, ready=self.problem, guard=metrics_access.make_guard(self._client)
        )
        async with http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as port:
            on_port(port)
            await self.cluster.add_optional_kinds()
            if await self.budgets.is_served():
                self.cluster.informers.append(self.budgets.informer)
            log.info("cost_engine_started", id=self.identity, port=port)
            async with background.run_in_background(self._list_background_tasks()), self._serve_api():
                await self.leading.run(stop, self._lead_once)
        log.info("cost_engine_stopped", id=self.identity)

    @contextlib.asynccontextmanager
    async def _serve_api(self) -> AsyncIterator[None]:
        """Serve the HTTP API, if the settings give it an address."""
        if not self.settings.api_bind_address:
            yield
            return
        from kgwe.apps.cost.api import serve_api  # noqa: PLC0415 - loads Starlette and uvicorn

        async with serve_api(self.settings, self._client, lambda: self.budgets.informer.store) as port:
            self.api_port = port
            log.info("cost_api_listening", port=port)
            yield

    def _list_background_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from (informer.run() for informer in self.cluster.informers)
        yield self._events.run()
        if self._elector is not None:
            yield self._elector.run()

    async def _lead_once(self, term: Term) -> None:
        """Lead until the Lease is lost."""
        if not await term.resync():
            return
        standby = self._problem
        publish = self.budgets.publish
        engine = CostEngine(self.settings, self.cluster, self.metrics, clock=self._clock, on_counted=publish)
        try:
            async with self._sender, engine:
                self._problem = engine.problem
                await term.wait_end()
                await engine.count()
        finally:
            self._problem = standby


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await CostProcess(settings, client).run(stop)

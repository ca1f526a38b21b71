"""`kgwe optimizer`: the process. All replicas watch the cluster; the leader keeps the history and answers.

The scheduler works unchanged without it: it uses the run times that users declare.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe.apps import background, leading, metrics_access
from kgwe.apps.leading import LeaderLoop
from kgwe.apps.optimizer.cluster_view import ClusterView
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.apps.optimizer.leader import OptimizerLeader
from kgwe.apps.optimizer.metrics import Metrics
from kgwe.apps.optimizer.run_times import RunTimeModel
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.model.network.domains import nearest_domain
from kgwe.telemetry import http, logs, probes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from kgwe.apps.leading import Term
    from kgwe.apps.optimizer.settings import Settings

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-optimizer"


class Optimizer:
    """One replica of the optimizer."""

    def __init__(self, settings: Settings, client: KubeClient, *, identity: str | None = None) -> None:
        self.settings = settings
        self.identity = identity or leading.make_identity()
        self.metrics = Metrics()
        self._elector = leading.make_elector(client, settings, self.identity) if settings.leader_elect else None
        self.run_times = RunTimeModel()
        self.tracker = RunTracker(
            domain_of=lambda node: nearest_domain(self.cluster.view.fleet.tree, node),
            predict=self.run_times.predict_run,
        )
        self.cluster = ClusterView(client, self.tracker)
        self._metrics_guard = metrics_access.make_guard(client)
        self.leading = LeaderLoop(self._elector, lambda: self.cluster.informers)
        self._acting_client = client.with_guard(self.leading.check_leading)
        self.events = EventRecorder(self._acting_client, controller=FIELD_MANAGER, instance=self.identity)
        self._problem: Callable[[], str | None] = lambda: "standby: another replica is the leader"

    def problem(self) -> str | None:
        """Return why this replica is not ready: it is on standby, or data is missing."""
        return self.leading.describe_unsynced() or self._problem()

    async def run(self, stop: asyncio.Event, on_port: Callable[[int], None] = lambda _port: None) -> None:
        """Act while this replica is the leader, until `stop` is set. `on_port`: called with the port of gRPC."""
        app = probes.ProbeApp(self.metrics.registry, live=lambda: None, ready=self.problem, guard=self._metrics_guard)
        async with http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as port:
            await self.cluster.add_state()
            log.info("optimizer_started", id=self.identity, port=port)
            async with background.run_in_background(self._list_background_tasks()):
                await self.leading.run(stop, lambda term: self._lead_once(term, on_port))
                await self.events.flush()
        log.info("optimizer_stopped", id=self.identity)

    def _list_background_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from (informer.run() for informer in self.cluster.informers)
        yield self.events.run()
        if self._elector is not None:
            yield self._elector.run()

    async def _lead_once(self, term: Term, on_port: Callable[[int], None]) -> None:
        """Lead until the Lease is lost."""
        if not await term.resync():
            return
        standby, leader = self._problem, self._make_leader()
        async with leader:
            self._problem = leader.problem
            on_port(leader.port)
            await term.wait_end()
        self._problem = standby

    def _make_leader(self) -> OptimizerLeader:
        return OptimizerLeader(
            self.settings,
            client=self._acting_client,
            events=self.events,
            cluster=self.cluster,
            tracker=self.tracker,
            run_times=self.run_times,
            metrics=self.metrics,
        )


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await Optimizer(settings, client).run(stop)

"""`kgwe autoscaler`: the process. All replicas watch the cluster; the leader buys and removes nodes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.apps import background, leading, metrics_access
from kgwe.apps.autoscaler.cluster_view import ClusterView
from kgwe.apps.autoscaler.controller import FIELD_MANAGER, Controller
from kgwe.apps.autoscaler.gpu_use import open_gpu_use
from kgwe.apps.autoscaler.metrics import Metrics
from kgwe.apps.autoscaler.providers import make_providers
from kgwe.apps.leading import LeaderLoop
from kgwe.cluster.checkpoint.caller import CheckpointCaller, FetchedReports
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.kube.translate import podspec
from kgwe.store.ledger.price_files import load_book
from kgwe.telemetry import http, logs, probes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from kgwe.apps.autoscaler.settings import Settings
    from kgwe.apps.leading import Term
    from kgwe.cloud.provider import Provider
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change

log = structlog.get_logger(__name__)


class AutoscalerProcess:
    """One replica of the autoscaler."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        identity: str | None = None,
        make: Callable[[KubeClient, Settings], Mapping[str, Provider]] = make_providers,
    ) -> None:
        self.settings = settings
        self.client = client
        self.identity = identity or leading.make_identity()
        self.cluster = ClusterView(client)
        self._elector = leading.make_elector(client, settings, self.identity) if settings.leader_elect else None
        self.leading = LeaderLoop(self._elector, lambda: self.cluster.informers)
        acting = client.with_guard(self.leading.check_leading)
        self.events = EventRecorder(acting, controller=FIELD_MANAGER, instance=self.identity)
        self.metrics = Metrics()
        self.providers = make(acting, settings)
        self.use = open_gpu_use(settings)
        self._checkpoints = CheckpointCaller(acting, FetchedReports(acting))
        self.controller = Controller(
            acting,
            self.cluster,
            self.providers,
            load_book(settings.price_paths),
            self.metrics,
            record=self.events.record,
            dry_run=settings.dry_run,
            uses=self.use.by_node,
            checkpoint=self._ask_for_checkpoint,
            timeout_s=settings.cloud_timeout_seconds,
        )
        self._wake = asyncio.Event()
        self._acting = False

    async def _ask_for_checkpoint(self, node: str, pods: Sequence[core.Pod], /) -> None:
        seconds = self.settings.checkpoint_seconds
        await self._checkpoints.call(f"scale-down/{node}", pods, seconds=seconds, reason=f"node {node} is removed")

    def _listen(self) -> None:
        """Start a round early for changes that matter."""
        for informer in self.cluster.informers:
            kind = informer.resource
            if kind in _MATTERS:
                informer.on_change(functools.partial(self._on_change, _MATTERS[kind]))

    def _on_change(self, matters: Callable[[Any], Any], change: Change[Any]) -> None:
        old, new = (None if each is None else matters(each) for each in (change.old, change.new))
        if old != new:
            self._wake.set()

    def find_problem(self) -> str | None:
        """Return why this replica is not ready."""
        if unsynced := self.leading.describe_unsynced():
            return unsynced
        return None if self._acting else "standby: another replica is the leader"

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Act while this replica is the leader, until `stop` is set."""
        await self.cluster.watch()
        self._listen()
        app = probes.ProbeApp(
            self.metrics.registry,
            live=lambda: None,
            ready=self.find_problem,
            guard=metrics_access.make_guard(self.client),
        )
        try:
            async with (
                http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as port,
                self.use.running(),
                background.run_in_background(self._background()),
            ):
                log.info("autoscaler_started", id=self.identity, port=port)
                await self.leading.run(stop, self._lead_once)
                await self.events.flush()
        finally:
            for provider in self.providers.values():
                await provider.close()
        log.info("autoscaler_stopped", id=self.identity)

    def _background(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from (informer.run() for informer in self.cluster.informers)
        yield self.events.run()
        if self._elector is not None:
            yield self._elector.run()

    async def _lead_once(self, term: Term) -> None:
        """Lead until the Lease is lost. Nothing is decided before everything was read again."""
        if not await term.resync():
            return
        self._acting = True
        self.controller.start_term()
        try:
            await background.wait_first(self._run_rounds(), term.stop.wait())
        finally:
            self._acting = False

    async def _run_rounds(self) -> None:
        while self.leading.is_leading():
            await self._run_round()

    async def _run_round(self) -> None:
        self._wake.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with self.metrics.rounds.measure():
                await self.controller.reconcile()
        except errors.KgweError as exc:
            self.metrics.errors += 1
            log.warning("round_failed", error=str(exc))
        except Exception:  # a malformed object must not crash the process repeatedly
            self.metrics.errors += 1
            log.exception("round_crashed")
        took_s = loop.time() - began
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.reconcile_seconds):
                await self._wake.wait()
        # Changes within this time are decided together; in a large fleet deciding may take a third of the time.
        await asyncio.sleep(max(self.settings.gather_seconds, 2 * took_s))


def _of_node(node: Any) -> Any:
    return (
        node.metadata.labels,
        node.spec,
        node.status.allocatable,
        podspec.is_ready(node),
        node.metadata.deletionTimestamp,
    )


def _of_pod(pod: Any) -> Any:
    said = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    return pod.spec.nodeName, said and (said.status, said.reason), pod.metadata.deletionTimestamp


#: Kind -> what of an object matters to a decision. Other changes wait for the next round.
_MATTERS: dict[Any, Callable[[Any], Any]] = {
    resources.AUTOSCALING_POLICY: lambda policy: (policy.metadata.generation, policy.metadata.deletionTimestamp),
    resources.NODE: _of_node,
    resources.POD: _of_pod,
    resources.GPU_WORKLOAD: lambda workload: (workload.metadata.generation, workload.status.phase),
}


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await AutoscalerProcess(settings, client).run(stop)

"""`kgwe mig`: the MIG controller process. All replicas watch; the leader decides.

It is separate from the scheduler, so neither delays the other. They communicate through the API only: the scheduler
reads which layouts will change and assigns none of those slices. The agent resolves races: it never takes a slice from
a pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kgwe import errors
from kgwe.apps import background, leading, metrics_access
from kgwe.apps.leading import LeaderLoop
from kgwe.apps.mig import demand, drains
from kgwe.apps.mig.claims import Claims
from kgwe.apps.mig.controller import FIELD_MANAGER, Controller
from kgwe.apps.mig.stores import Stores
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.kube.client.informer import Informer
from kgwe.kube.translate import podspec
from kgwe.kube.translate.resource_slices import DeviceSlices
from kgwe.model.units import amounts
from kgwe.telemetry import http, logs, probes
from kgwe.telemetry.reconciles import ReconcileMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from prometheus_client import Metric

    from kgwe.apps.leading import Term
    from kgwe.apps.mig.settings import Settings
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.client.informer import Change

log = structlog.get_logger(__name__)


class MigController:
    """One replica of the controller."""

    def __init__(self, settings: Settings, client: KubeClient, *, identity: str | None = None) -> None:
        self.settings = settings
        self.client = client
        self.identity = identity or leading.make_identity()
        self._elector = leading.make_elector(client, settings, self.identity) if settings.leader_elect else None
        self.leading = LeaderLoop(self._elector, lambda: self.informers)
        strategies = Informer(client, resources.MIG_STRATEGY)
        nodes = Informer(client, resources.NODE)
        gpu_nodes = Informer(client, resources.GPU_NODE)
        pods = Informer(client, resources.POD, field_selector="status.phase!=Succeeded,status.phase!=Failed")
        workloads = Informer(client, resources.GPU_WORKLOAD)
        self.informers: list[Informer[Any]] = [strategies, nodes, gpu_nodes, pods, workloads]
        self._devices = DeviceSlices()
        self._claimed = Informer(client, resources.RESOURCE_CLAIM)
        self._claims = Claims(self._claimed.store, self._devices.find_device)
        acting = client.with_guard(self.leading.check_leading)
        self.events = EventRecorder(acting, controller=FIELD_MANAGER, instance=self.identity)
        self.controller = Controller(
            acting,
            settings,
            Stores(strategies.store, nodes.store, gpu_nodes.store, pods.store, workloads.store, self._claims),
            record=self.events.record,
        )
        self._wake = asyncio.Event()
        for informer, matters in zip(self.informers, _MATTERS, strict=True):
            informer.on_change(functools.partial(self._on_change, matters))
        pods.on_change(self._on_pod)
        self._acting = False
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.registry.register(_Gauges(self.controller))
        self._rounds = ReconcileMetrics(self.registry, FIELD_MANAGER)

    async def _watch_claims(self) -> None:
        """Watch ResourceClaims for allocated and requested slices, if the cluster has them."""
        kinds = (resources.RESOURCE_SLICE, resources.RESOURCE_CLAIM)
        if len(await dialects.find_served(self.client, kinds)) < len(kinds):
            return
        slices = Informer(self.client, resources.RESOURCE_SLICE)
        slices.on_change(self._on_slice)
        self._claimed.on_change(functools.partial(self._on_change, lambda claim: (claim.spec, claim.status)))
        self.informers += [slices, self._claimed]

    def _on_change(self, matters: Callable[[Any], Any], change: Change[Any]) -> None:
        """Decide again only for relevant changes; heartbeats and pods without GPUs are not."""
        old, new = (None if each is None else matters(each) for each in (change.old, change.new))
        if old != new:
            self._wake.set()

    def _on_slice(self, change: Change[ResourceSlice]) -> None:
        if self._devices.set_slice(change.key, change.new):
            self._wake.set()

    def _on_pod(self, change: Change[core.Pod]) -> None:
        if change.new is None and change.old is not None:
            self.controller.forget(change.old.metadata.uid)

    def problem(self) -> str | None:
        """Return why this replica is not ready: it is on standby, or has not read the cluster yet."""
        if unsynced := self.leading.describe_unsynced():
            return unsynced
        return None if self._acting else "standby: another replica is the leader"

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Act while this replica is the leader, until `stop` is set."""
        await self._watch_claims()
        app = probes.ProbeApp(
            self.registry, live=lambda: None, ready=self.problem, guard=metrics_access.make_guard(self.client)
        )
        async with (
            http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as port,
            background.run_in_background(self._background()),
        ):
            log.info("mig_controller_started", id=self.identity, port=port)
            await self.leading.run(stop, self._lead_once)
            await self.events.flush()
        log.info("mig_controller_stopped", id=self.identity)

    def _background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Run informers, events and the leader election."""
        yield from (informer.run() for informer in self.informers)
        yield self.events.run()
        if self._elector is not None:
            yield self._elector.run()

    async def _lead_once(self, term: Term) -> None:
        """Lead until the Lease is lost."""
        if not await term.resync():
            return
        self._acting = True
        try:
            await background.wait_first(self._run_rounds(), term.stop.wait())
        finally:
            self._acting = False

    async def _run_rounds(self) -> None:
        """Decide until the Lease is lost; complete a started round."""
        while self.leading.is_leading():
            await self._run_round()

    async def _run_round(self) -> None:
        self._wake.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with self._rounds.measure():
                await self.controller.reconcile()
        except errors.KgweError as exc:
            log.warning("round_failed", error=str(exc))
        except Exception:  # a malformed object must not crash the process repeatedly
            log.exception("round_crashed")
        took_s = loop.time() - began
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.interval_seconds):
                await self._wake.wait()
        # Changes within this time are decided together; in a large fleet deciding may take a third of the time.
        await asyncio.sleep(max(self.settings.gather_seconds, 2 * took_s))


def _of_node(node: core.Node) -> Any:
    return node.metadata.labels, node.spec, podspec.is_ready(node), node.metadata.deletionTimestamp


def _of_gpu_node(node: GPUNode) -> Any:
    told = [(each.type, each.status) for each in node.status.conditions]
    return node.spec, node.status.gpus, node.status.held, told, node.metadata.uid


def _of_pod(pod: core.Pod) -> Any:
    wanted = [name for each in pod.spec.containers for name in each.resources.limits if amounts.is_gpu(name)]
    if not wanted and not pod.spec.resourceClaims:
        return None
    consents = pod.metadata.annotations.get(drains.ANNOTATION)
    is_leaving = pod.metadata.deletionTimestamp is not None
    return wanted, pod.spec.nodeName, pod.status.phase, demand.is_waiting_pod(pod), consents, is_leaving


def _of_workload(workload: GPUWorkload) -> Any:
    wanted = demand.find_slices(workload)
    consents = workload.metadata.annotations.get(drains.ANNOTATION)
    return wanted and (wanted, workload.status.phase, demand.is_waiting_workload(workload), consents)


# Whether a change of each kind can change a decision, in the order of the informers.
_MATTERS: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda strategy: (strategy.spec, strategy.metadata.generation),
    _of_node,
    _of_gpu_node,
    _of_pod,
    _of_workload,
)


class _Gauges(Collector):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        controller, planner = self._controller, self._controller.planner
        recuts = CounterMetricFamily("kgwe_mig_recuts", "Requested MIG layout changes of GPUs")
        recuts.add_metric([], planner.recuts)
        yield recuts
        waiting = GaugeMetricFamily("kgwe_mig_waiting", "Waiting requests for MIG slices that no GPU can serve now")
        waiting.add_metric([], planner.waiting)
        yield waiting
        moved = CounterMetricFamily(
            "kgwe_mig_drained_pods", "Pods evicted for a new MIG layout, by outcome", labels=["outcome"]
        )
        for outcome, count in sorted(controller.drain_executor.asked.items()):
            moved.add_metric([outcome], count)
        yield moved
        cards = GaugeMetricFamily("kgwe_mig_cards", "GPUs selected by MIGStrategies, by phase", labels=["phase"])
        for phase, count in sorted(planner.phases.items()):
            cards.add_metric([phase], count)
        yield cards


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await MigController(settings, client).run(stop)

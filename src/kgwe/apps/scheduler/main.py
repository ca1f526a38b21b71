"""`kgwe scheduler`: the process. Wires informers to state, state to planner, planner to reconciler, and the extender.

Every replica watches; the leader acts. A term of leadership starts with a fresh read of everything it
decides on, runs workers over a queue of keys, and leaves nothing behind in memory when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import random
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kgwe.apps import background, gc_pauses, leading, metrics_access
from kgwe.apps.leading import LeaderLabel, LeaderLoop
from kgwe.apps.scheduler import preflight
from kgwe.apps.scheduler.budgets.objects import BudgetObjects
from kgwe.apps.scheduler.budgets.rates import BookRates
from kgwe.apps.scheduler.deps import BudgetSource, Deps
from kgwe.apps.scheduler.extender.http import ExtenderApp
from kgwe.apps.scheduler.fleet_metrics import FleetGauges
from kgwe.apps.scheduler.leader import Leader
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.local_predictions import LocalPredictions
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.pods import admission
from kgwe.apps.scheduler.pods.admission import AdmissionApp
from kgwe.apps.scheduler.preflight import ExtenderPort
from kgwe.apps.scheduler.recording.recorder import Recorder
from kgwe.apps.scheduler.sharing.decisions import SharingDecisions
from kgwe.apps.scheduler.signing_key import SigningKeys
from kgwe.cluster.gangs.gang_kinds import GangKinds
from kgwe.cluster.state.cluster_state import ClusterState, selector_of
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.cluster.workload.signatures import Signer
from kgwe.costing.split import parse_method
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.kube.client.informer import Change, Informer
from kgwe.kube.translate import extender_wire
from kgwe.kube.translate.quota_room import QUOTAS
from kgwe.store.ledger.price_files import load_book
from kgwe.telemetry import http, logs, probes, stalls, tracing
from kgwe.telemetry.tls import ReloadingContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from kgwe.apps.leading import Term
    from kgwe.apps.scheduler.deps import PredictionSource
    from kgwe.apps.scheduler.planning.remote_predictions import RemotePredictions
    from kgwe.apps.scheduler.settings import Settings
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.translate.extender_wire import BindArgs
    from kgwe.kube.translate.quota_room import Quota
    from kgwe.placement.planning.custom_strategies import Chooser

log = structlog.get_logger(__name__)

STRATEGIES_GROUP = "kgwe.strategies"
_LAG_STEP_S = 0.1
_DRA_KINDS = (resources.RESOURCE_SLICE, resources.RESOURCE_CLAIM)
_EXPIRE_S = 1.0
# How often a replica whose port is taken looks whether it is free.
_PORT_PAUSE_S = 2.0


def load_choosers() -> dict[str, Chooser]:
    """Strategies of installed packages; one that does not load is reported and left out."""
    found: dict[str, Chooser] = {}
    for entry in importlib.metadata.entry_points(group=STRATEGIES_GROUP):
        try:
            found[entry.name] = entry.load()()
        except Exception:  # code of another package
            log.exception("strategy_not_loaded", strategy=entry.name, source=entry.value)
    return found


class Scheduler:
    """One replica."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        identity: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: the time by which periods of budgets begin and end."""
        self.settings = settings
        self._clock = clock
        self.metrics = Metrics()
        self.signer = Signer(on_forged=lambda kind: self.metrics.forged.labels(kind).inc())
        self.faults = PlanningErrors(self.metrics)
        self.sharing = SharingDecisions(settings.default_image, time.monotonic)
        self.state = ClusterState(self.signer, self.faults.record, (self.sharing,))
        if settings.scheduler_name:
            self.state.scheduler_name = settings.scheduler_name
        self.sharing.attach(self.state)
        self.gangs = self.state.gangs
        FleetGauges(self.state).register(self.metrics)
        self.tracer = tracing.make_tracer(
            settings.otlp_endpoint,
            settings.trace_share,
            service=metadata_keys.CONTROLLER_NAME,
            instance=socket.gethostname(),
        )
        self.recorder = self._build_recorder()
        self._acting = False
        self._planning_problem: Callable[[], str | None] = lambda: None
        self._port_problem = ""
        self.client = client
        self.identity = identity or leading.make_identity()
        self._elector = leading.make_elector(client, settings, self.identity) if settings.leader_elect else None
        self.leading = LeaderLoop(self._elector, lambda: self.informers)
        self._acting_client = client.with_guard(self.leading.check_leading)
        self.rng = random.Random(settings.random_seed)  # noqa: S311 - spreads load, guards nothing
        self.port = ExtenderPort(settings, client, self.identity) if settings.extender_bind_address else None
        self.tls = ReloadingContext(settings.extender_tls) if self.port and settings.extender_tls else None
        self.admission_tls = ReloadingContext(settings.admission_tls) if settings.admission_tls else None
        self.events = EventRecorder(
            self._acting_client, controller=metadata_keys.CONTROLLER_NAME, instance=self.identity
        )
        self.choosers = load_choosers()
        live = selector_of(resources.POD).field
        self.pods = Informer(
            client,
            resources.POD,
            field_selector=live,
            keep=placement_annotations.is_gated,
            on_error=self._count_listener_error,
        )
        self.quotas: Informer[Quota] = Informer(client, QUOTAS, on_error=self._count_listener_error)
        self.informers = self._build_informers()
        self.budgets = self._build_budgets()
        self.keys = SigningKeys(client, self.signer, settings.lease_namespace, on_change=self._read_again)
        self.kinds = GangKinds(
            client, self.state.group_objects, self.gangs, self.informers, look_again_s=settings.group_kinds_seconds
        )

    def _build_recorder(self) -> Recorder | None:
        settings = self.settings
        if not settings.record_directory:
            return None
        directory, version = Path(settings.record_directory), importlib.metadata.version("kgwe")
        return Recorder(directory, settings.record_max_mb, version=version, registry=self.metrics.registry)

    def _build_informers(self) -> list[Informer[Any]]:
        """Informers of every kind that feeds the state, but for those of DRA, which a cluster need not serve."""
        informers: dict[Resource[Any], Informer[Any]] = {resources.POD: self.pods}
        listeners = self.state.listeners()
        for kind in listeners:
            if kind not in _DRA_KINDS:
                informer = informers.get(kind) or Informer(
                    self.client, kind, label_selector=selector_of(kind).label, on_error=self._count_listener_error
                )
                informers[kind] = informer
                informer.on_change(listeners[kind])
        return [*informers.values(), *((self.quotas,) if self.admission_tls is not None else ())]

    def _build_budgets(self) -> BudgetSource | None:
        """Prices, and watches of GPUBudgets; None: budgets are not enforced."""
        settings = self.settings
        if not settings.enable_budgets:
            return None
        book = load_book(tuple(map(Path, settings.price_files)), with_defaults=settings.builtin_prices)
        objects = BudgetObjects(self.client, settings.attribution, book.currency)
        self.informers += objects.informers
        return BudgetSource(objects, BookRates(book, parse_method(settings.split_method)), self._clock)

    def _count_listener_error(self, _key: str, _error: Exception) -> None:
        """Count an error of a listener; the informer has logged it."""
        self.metrics.planning_errors.labels("listener").inc()

    def _read_again(self) -> None:
        """Keys were replaced: read objects again that another replica signed with a new key."""
        listeners = self.state.listeners()
        for kind in (resources.JOB, resources.DEPLOYMENT, resources.POD):
            informer = next(each for each in self.informers if each.resource == kind)
            for key, obj in list(informer.store.items()):
                listeners[kind](Change(key, None, obj))

    async def _watch_devices(self) -> None:
        """Watch the devices of DRA drivers and their allocations, if the cluster serves these kinds."""
        if len(await dialects.find_served(self.client, _DRA_KINDS)) == len(_DRA_KINDS):
            listeners = self.state.listeners()
            self.state.claim_names.is_watched = True
            for kind in _DRA_KINDS:
                informer: Informer[Any] = Informer(self.client, kind)
                informer.on_change(listeners[kind])
                self.informers.append(informer)

    async def _watch_policies(self) -> None:
        """Watch GPUSharingPolicies and the labels of namespaces, if the kind is installed."""
        if await dialects.find_served(self.client, (resources.GPU_SHARING_POLICY,)):
            for kind, listen in (
                (resources.NAMESPACE_LABELS, self.sharing.on_namespace),
                (resources.GPU_SHARING_POLICY, self.sharing.on_policy),
            ):
                informer: Informer[Any] = Informer(self.client, kind, on_error=self._count_listener_error)
                informer.on_change(listen)
                self.informers.append(informer)

    # --- probes -----------------------------------------------------------------------------------------

    def problem(self) -> str | None:
        """Why this replica is not ready: the Service sends kube-scheduler's calls to the leader only."""
        if self._port_problem:
            return self._port_problem
        if unsynced := self.leading.describe_unsynced():
            return unsynced
        return self._planning_problem() if self._acting else "standby: another replica is the leader"

    def find_standby_problem(self) -> str | None:
        """Why this replica could not take over."""
        return self._port_problem or self.leading.describe_unsynced() or None

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Act whenever this replica leads, until `stop` is set."""
        # The same event loop answers the probes: if it hangs, they fail, and the kubelet restarts the process.
        app = probes.ProbeApp(
            self.metrics.registry, live=lambda: None, ready=self.problem, standby=self.find_standby_problem
        )
        async with http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as port:
            await preflight.check_kinds(self.client, [informer.resource for informer in self.informers])
            if self.port is not None:
                await self.port.check_port()
            await background.wait_first(self.keys.wait(), stop.wait())
            await self.kinds.add_served()
            await self._watch_devices()
            await self._watch_policies()
            log.info("scheduler_started", id=self.identity, port=port, strategies=sorted(self.choosers))
            with stalls.watch_stalls(self.settings.log_stalls_ms / 1e3):
                await self._lead_in_terms(stop)
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        await asyncio.to_thread(self.tracer.close)
        log.info("scheduler_stopped", id=self.identity)

    async def _lead_in_terms(self, stop: asyncio.Event) -> None:
        """Watch the cluster, and act on it in terms of leadership."""
        async with background.run_in_background(self._list_background_tasks()):
            await self.leading.run(stop, self._lead_once)
            await self.events.flush()

    def _list_background_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Informers, events and the campaign for the Lease."""
        yield from (informer.run() for informer in self.informers)
        yield self.kinds.run()
        yield self.keys.run()
        yield self.events.run()
        yield _measure_lag(self.metrics.loop_lag.set)
        yield self._expire_assumed()
        if self.recorder is not None:
            yield self.recorder.watch_ends(self.state.ledger)
        if self._elector is not None:
            yield self._elector.run()
        if (label := LeaderLabel.from_environment(self.client, lambda: self._acting)) is not None:
            yield label.run()

    async def _expire_assumed(self) -> None:
        """Release the places of pods that were not bound in time."""
        while True:
            await asyncio.sleep(_EXPIRE_S)
            self.state.expire_assumed(time.monotonic())

    async def _lead_once(self, term: Term) -> None:
        """One term of leadership."""
        self.metrics.leader.set(1)
        try:
            await self._act_as_leader(term)
        except http.PortTaken as exc:
            self._acting = False
            await self._give_way(exc, term.stop)
        finally:
            self._acting = False
            self.metrics.leader.set(0)

    async def _act_as_leader(self, term: Term) -> None:
        """Act until the term ends. The port comes first: kube-scheduler must be able to call a leader."""
        with await self.port.take_port() if self.port else contextlib.nullcontext() as sock:
            if await term.resync():
                async with (
                    gc_pauses.keep_pauses_short(),
                    Leader(self.make_deps()) as leader,
                    self._serve_extender(leader, sock),
                    self._serve_admission(leader),
                ):
                    self._planning_problem = leader.problem
                    self._acting = True
                    await term.wait_end()

    async def _give_way(self, problem: http.PortTaken, stop: asyncio.Event) -> None:
        """Leave the Lease to other replicas until the port is free."""
        self.metrics.leader.set(0)
        self._port_problem = f"{problem}; the Lease is left to other replicas until the port is free"
        log.error("extender_port_taken", error=str(problem), next="the Lease is given back; trying again")
        try:
            if self._elector is not None:
                await self._elector.withdraw()
            while self.port is not None and not stop.is_set():
                await background.wait_first(asyncio.sleep(_PORT_PAUSE_S), stop.wait())
                if await self.port.is_worth_campaigning():
                    break
        finally:
            self._port_problem = ""
            if self._elector is not None:
                self._elector.campaign()

    @contextlib.asynccontextmanager
    async def _serve_extender(self, leader: Leader, sock: socket.socket | None) -> AsyncIterator[None]:
        """Answer kube-scheduler, for as long as this replica leads and no longer."""
        settings = self.settings
        if self.port is None:
            yield
            return
        app = probes.ProbeApp(
            self.metrics.registry,
            live=lambda: None,
            ready=self.problem,
            guard=metrics_access.make_guard(self.client),
            others=ExtenderApp(
                leader.handlers,
                self.metrics,
                bind=self._bind_pod if settings.extender_binds else None,
                sightings=self.state.pod_index.sightings,
                show_snapshot=settings.debug_snapshot,
            ),
        )
        limits = http.Limits(body=extender_wire.LARGEST, bodies=4 * extender_wire.LARGEST)
        async with http.serving(app, self.port.address, tls=self.tls, limits=limits, sock=sock) as port:
            log.info("extender_listening", port=port, client_certificates=self.tls is not None)
            yield

    @contextlib.asynccontextmanager
    async def _serve_admission(self, leader: Leader) -> AsyncIterator[None]:
        """Answer the API server about pods of gangs that are being created, while this replica leads."""
        if self.admission_tls is None:
            yield
            return
        app, address = AdmissionApp(leader.offers, self.metrics), self.settings.admission_bind_address
        async with http.serving(
            app, http.Address.parse(address), tls=self.admission_tls, limits=admission.LIMITS
        ) as port:
            log.info("admission_listening", port=port)
            yield

    async def _bind_pod(self, args: BindArgs) -> str:
        """Bind the pod, and write its GPUs on it in the same request."""
        holding = self.state.ledger.fleet.holding(args.PodUID)
        pod = self.state.pods.get(args.PodUID)
        is_told = pod is not None and placement_annotations.SIGNATURE_ANNOTATION in pod.metadata.annotations
        annotations = placement_annotations.device_annotations(holding) if holding is not None and not is_told else {}
        if annotations and holding is not None:
            signature = self.signer.sign_binding(args.PodNamespace, args.PodUID, holding)
            annotations[placement_annotations.SIGNATURE_ANNOTATION] = signature
        body = {
            "metadata": {"name": args.PodName, "uid": args.PodUID, "annotations": annotations},
            "target": {"kind": "Node", "name": args.Node},
        }
        await self._acting_client.create(
            resources.BINDING, body, args.PodNamespace, name=args.PodName, subresource="binding"
        )
        return ""

    def _connect_optimizer(self) -> RemotePredictions | None:
        """Return the optimizer for one term; None without its address, or if predictions are off."""
        settings = self.settings
        if not settings.enable_predictions or not settings.optimizer_address:
            return None
        from kgwe.apps.scheduler.planning.remote_predictions import RemotePredictions  # noqa: PLC0415 - loads gRPC
        from kgwe.optimizerapi.client import Access  # noqa: PLC0415
        from kgwe.rpc.tls import parse_files  # noqa: PLC0415

        files = parse_files(
            settings.optimizer_tls_cert_file, settings.optimizer_tls_key_file, settings.optimizer_tls_ca_file
        )
        return RemotePredictions(
            Access(settings.optimizer_address, files, deadline_s=settings.optimizer_timeout_seconds)
        )

    def _predict_locally(self) -> PredictionSource | None:
        """Return a predictor in this process; None if predictions are off."""
        settings = self.settings
        if not settings.enable_predictions:
            return None
        return LocalPredictions(self.state, settings.default_image, time.time)

    def make_deps(self) -> Deps:
        optimizer = self._connect_optimizer()
        return Deps(
            client=self._acting_client,
            state=self.state,
            gangs=self.gangs,
            tracer=self.tracer,
            settings=self.settings,
            events=self.events,
            metrics=self.metrics,
            faults=PlanningErrors(self.metrics),
            rng=self.rng,
            choosers=self.choosers,
            recorder=self.recorder,
            predictions=optimizer or self._predict_locally(),
            hints=optimizer,
            budgets=self.budgets,
            bytes_of=self.pods.bytes_of,
            list_quotas=lambda: list(self.quotas.store.values()),
            sharing=self.sharing,
        )


async def _measure_lag(report: Callable[[float], None]) -> None:
    """Measure how late the event loop runs, as a maximum per second."""
    loop = asyncio.get_running_loop()
    while True:
        worst, until = 0.0, loop.time() + 1.0
        while loop.time() < until:
            due = loop.time() + _LAG_STEP_S
            await asyncio.sleep(_LAG_STEP_S)
            worst = max(worst, loop.time() - due)
        report(worst)


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=metadata_keys.CONTROLLER_NAME) as client:
        await Scheduler(settings, client).run(stop)

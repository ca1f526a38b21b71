"""What runs only on the leader: scraping, recording, judging, reporting and the gRPC service."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from kgwe import errors
from kgwe.apps import background
from kgwe.apps.optimizer import sources
from kgwe.apps.optimizer.demand import DemandForecasts
from kgwe.apps.optimizer.forecasts import WorkloadForecasts, is_preallocator
from kgwe.apps.optimizer.history.peaks import PeakTracker
from kgwe.apps.optimizer.history.recorder import HistoryRecorder
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.idle.actions import IdleActions, Outlets
from kgwe.apps.optimizer.idle.ledger import IdleLedger
from kgwe.apps.optimizer.inbox import TelemetryInbox
from kgwe.apps.optimizer.owner_notices import OwnerNotices
from kgwe.apps.optimizer.placement_hints import PlacementHints
from kgwe.apps.optimizer.rightsizing.controller import Evidence, RightsizingController
from kgwe.apps.optimizer.run_times import HISTORY_S
from kgwe.apps.optimizer.service import OptimizerService
from kgwe.apps.optimizer.training import ModelRegistry, train_apart
from kgwe.apps.optimizer.waste.allocations import AllocationReader
from kgwe.apps.optimizer.waste.detector import Assessment, WasteDetector
from kgwe.apps.optimizer.waste.feasibility import Feasibility
from kgwe.apps.optimizer.waste.lookback import LookbackJudge
from kgwe.apps.optimizer.waste.needs import HistoryNeeds
from kgwe.apps.optimizer.waste.reporter import FindingReporter
from kgwe.apps.optimizer.waste.savings import SavingsLedger
from kgwe.apps.optimizer.waste.verifier import SavingsVerifier, VerifyRules
from kgwe.cluster.suspension.suspender import Suspender
from kgwe.forecast.domains import rate_domains
from kgwe.forecast.rightsizing.decide import Offer
from kgwe.forecast.rightsizing.decide import Rules as RightsizingRules
from kgwe.forecast.rightsizing.faults import find_p95
from kgwe.forecast.runtime.training import Untrained
from kgwe.forecast.waste.idle_policy import IdlePolicy
from kgwe.forecast.waste.recommend import Prices
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.score import Formula
from kgwe.metrics.embedded import EmbeddedSource
from kgwe.notify.notifier import Notifier
from kgwe.optimizerapi.calls import CALLS, SERVICE
from kgwe.rpc import server, tls
from kgwe.rpc.server import Service
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from kgwe.apps.optimizer.cluster_view import ClusterView
    from kgwe.apps.optimizer.history.runs import RunTracker
    from kgwe.apps.optimizer.metrics import Metrics
    from kgwe.apps.optimizer.run_times import RunTimeModel
    from kgwe.apps.optimizer.settings import Settings
    from kgwe.forecast.domains import DomainHistory
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.events import EventRecorder
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import Run
    from kgwe.model.usage.window import UsageWindow

log = structlog.get_logger(__name__)

_NEEDS_S: Final = 300.0
_MINUTE_S: Final = 60.0
_NOTIFY_GRACE_S: Final = 2.0
_SUSPENDED_BY: Final = "kgwe-optimizer"
# Usage that a new leader reads from the store, so that it can judge at once.
_SEED_S: Final = 1800.0


class OptimizerLeader:
    """The parts of one term of leadership. Use it as a context manager."""

    def __init__(
        self,
        settings: Settings,
        *,
        client: KubeClient,
        events: EventRecorder,
        cluster: ClusterView,
        tracker: RunTracker,
        run_times: RunTimeModel,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._tracker = tracker
        self._metrics = metrics
        self._store = StoreThread(lambda: HistoryStore.open(settings.store), on_loss=metrics.store_losses.inc)
        self._recorder = HistoryRecorder(tracker, PeakTracker(), self._store)
        self._source = sources.make_source(settings, cluster, self._take_minute)
        self._embedded = self._source if isinstance(self._source, EmbeddedSource) else None
        self._poller = sources.MinutePoller(self._source, self._take_minute)
        self._inbox = TelemetryInbox(
            self._embedded, size=settings.telemetry_buffer_size, find_node=cluster.find_node, now=time.time
        )
        self._needs = HistoryNeeds(self._store, is_preallocator=is_preallocator, is_spot=cluster.is_spot)
        self._rules = Rules(
            interval_s=settings.waste_interval_seconds,
            window_s=settings.waste_window_seconds,
            min_age_s=settings.waste_window_seconds,
            underused_for_s=settings.waste_underused_seconds,
        )
        self._feasibility = Feasibility(cluster.view)
        self._detector = self._make_detector(self._rules)
        self._lookback = LookbackJudge(self._load_lookback, self._judge_lookback, now=time.time)
        self._reporter = (
            FindingReporter(client, events.record, lambda: tracker.pods) if settings.report_findings else None
        )
        self._notifier = Notifier(settings.notifications)
        self._notices = OwnerNotices(cluster.view.state, self._notifier.notify, time.time)
        self._idle = self._make_idle_actions(client, events) if settings.enable_idle_actions else None
        self._run_p95: Mapping[str, float] = {}
        self._rightsizing = self._make_rightsizing(client) if settings.enable_rightsizing else None
        self._allocations = AllocationReader(lambda: cluster.view.fleet)
        self._verifier = self._make_verifier(client, events)
        self._demand = DemandForecasts(self._store, self._measure_demand)
        self._assessment = Assessment()
        self._run_times = run_times
        self._models = ModelRegistry(self._store)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_loaded = False
        self._domains: Mapping[str, DomainHistory] = {}
        self._stack: Any = None
        self.port = 0

    def _make_detector(self, rules: Rules) -> WasteDetector:
        settings = self._settings
        return WasteDetector(
            self._source,
            rules,
            list_pods=lambda: self._tracker.pods,
            needs=self._needs,
            prices=Prices(settings.prices, settings.spot_prices),
            check=self._feasibility.check,
            start_round=self._feasibility.start_round,
            formula=Formula(settings.waste_formula),
            step_s=settings.waste_step_seconds,
        )

    def _make_verifier(self, client: KubeClient, events: EventRecorder) -> SavingsVerifier:
        settings = self._settings
        return SavingsVerifier(
            client,
            SavingsLedger(self._store),
            VerifyRules(settings.waste_interval_seconds, settings.verify_after_seconds),
            prices=Prices(settings.prices, settings.spot_prices),
            list_pods=lambda: self._tracker.pods,
            find_allocation=self._allocations.find,
            record=events.record if settings.report_findings else lambda _: None,
        )

    def _make_rightsizing(self, client: KubeClient) -> RightsizingController:
        settings, cluster = self._settings, self._cluster
        room = Feasibility(cluster.view)
        evidence = Evidence(
            list_pods=self._tracker.pods.values,
            list_namespaces=cluster.list_namespaces,
            history_of=self._needs.find_history,
            run_p95_of=self._find_run_p95,
            is_preallocator=is_preallocator,
            find_offer=lambda: Offer(cluster.sum_offered(), cluster.list_share_sizes()),
            check=room.check,
        )
        rules = RightsizingRules(
            least_hours=settings.rightsizing_least_hours, least_confidence=settings.rightsizing_least_confidence
        )
        made = RightsizingController(
            client, evidence, rules=rules, count=lambda what: self._metrics.rightsizing.labels(what).inc()
        )
        cluster.on_pod_facts = made.observe
        return made

    def _find_run_p95(self, fingerprint: str) -> float | None:
        return self._run_p95.get(fingerprint)

    def _make_idle_actions(self, client: KubeClient, events: EventRecorder) -> IdleActions:
        settings = self._settings
        return IdleActions(
            client,
            Suspender(client, _SUSPENDED_BY),
            IdleLedger(self._store),
            policy=IdlePolicy(
                idle_after_s=settings.idle_after_seconds,
                grace_s=settings.idle_grace_seconds,
                interval_s=settings.waste_interval_seconds,
            ),
            list_pods=lambda: self._tracker.pods,
            find_namespace=self._cluster.find_namespace,
            outlets=Outlets(
                events.record, self._notifier.notify, lambda action: self._metrics.idle_actions.labels(action).inc()
            ),
        )

    def _make_service(self) -> OptimizerService:
        forecasts = WorkloadForecasts(
            self._run_times,
            self._tracker,
            Prices(self._settings.prices, self._settings.spot_prices),
            histories=self._needs.find_history,
            hints=PlacementHints(
                lambda: self._cluster.view.fleet,
                list_pods=self._tracker.pods.values,
                histories=self._needs.find_history,
                domains=lambda: self._domains,
            ).find,
            assessment=lambda: self._assessment,
            on_prediction=self._metrics.count_prediction,
        )
        return OptimizerService(
            forecasts,
            self._inbox,
            assessment=lambda: self._assessment,
            assess=self._lookback.assess,
            load_histories=self._needs.add,
            savings=self._verifier,
            demand=self._demand,
            find_cluster_uid=self._cluster.find_cluster_uid,
            now=time.time,
        )

    def problem(self) -> str | None:
        """Return why this leader is not ready: the store or the source of usage does not work."""
        return self._store.problem() or self._source.problem()

    # --- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        settings = self._settings
        await self._seed_source()
        await self._repeat_once("history", self._load_history)
        if self._reporter is not None:
            self._reporter.restore(self._cluster.pods.store.values(), self._cluster.view.state.workloads.values())
        files = tls.parse_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
        service = Service(SERVICE, CALLS, self._make_service())
        self._stack = server.serving([service], settings.grpc_bind_address, files=files)
        self.port = await self._stack.__aenter__()
        await self._notifier.__aenter__()
        self._notices.start()
        loops: tuple[Coroutine[Any, Any, None], ...] = (
            background.keep_running("scrape", self._embedded.run)
            if self._embedded
            else self._repeat("usage", self._poll_minutes, _MINUTE_S),
            background.keep_running("telemetry", self._inbox.run),
            self._repeat("record", self._record, settings.record_seconds),
            self._repeat("needs", self._refresh_needs, _NEEDS_S),
            self._repeat("domains", self._rate_domains, _NEEDS_S),
            self._repeat("demand", self._record_demand, _MINUTE_S),
            self._repeat("judge", self._judge, settings.waste_interval_seconds),
            self._repeat("rightsizing", self._rightsize, settings.rightsizing_interval_seconds),
            self._train_again(),
        )
        self._tasks = [asyncio.create_task(each) for each in loops]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.__aexit__(*exc)
        await self._lookback.close()
        self._notices.stop()
        await self._notifier.close(_NOTIFY_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._repeat_once("record", self._record)
        await self._source.close()
        await self._store.close()

    async def _seed_source(self) -> None:
        """Start from stored minutes: a restart must not hide ten minutes of usage. Prometheus has its own."""
        if self._embedded is None:
            return
        now_s = time.time()
        try:
            window = await self._store.call(lambda store: store.load_minutes(now_s - _SEED_S, now_s, _MINUTE_S))
        except errors.KgweError as exc:
            log.warning("usage_not_restored", error=str(exc))
            return
        self._embedded.seed(window)

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Do the work again and again. An error is logged; the next round tries again."""
        while True:
            await self._repeat_once(name, work)
            await asyncio.sleep(every_s)

    async def _repeat_once(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._metrics.rounds.measure():
                await work()
        except errors.KgweError as exc:
            log.warning("round_failed", round=name, error=str(exc))
        except Exception:  # one malformed object must not stop the process
            log.exception("round_crashed", round=name)

    # --- rounds -----------------------------------------------------------------------------------------

    async def _take_minute(self, window: UsageWindow) -> None:
        for reason, count in window.rejected.items():
            self._metrics.samples_rejected.labels(reason).inc(count)
        self._recorder.add_window(window)

    async def _poll_minutes(self) -> None:
        await self._poller.poll(time.time())

    async def _load_history(self) -> None:
        """Replay the stored runs, and take the newest model that fits."""
        now_s = time.time()

        def load(store: HistoryStore) -> tuple[list[Run], list[Fingerprint]]:
            return store.load_runs(now_s - HISTORY_S), store.load_fingerprints()

        runs, fingerprints = await self._store.call(load)
        self._run_times.load(runs, {each.key: each for each in fingerprints}, now_s)
        found = await self._models.load_newest() if self._settings.enable_ml_predictions else None
        if found is not None:
            self._run_times.use_model(found[1], found[0])
        self._is_loaded = True

    async def _train_again(self) -> None:
        """Train every now and then, until cancelled."""
        while self._settings.enable_ml_predictions:
            await asyncio.sleep(self._settings.model_update_s)
            await self._repeat_once("train", self._train)

    async def _train(self) -> None:
        now_s = time.time()
        runs = await self._store.call(lambda store: store.load_runs(now_s - HISTORY_S))
        fingerprints = await self._store.call(lambda store: store.load_fingerprints())
        try:
            made = await train_apart(runs, {each.key: each for each in fingerprints}, now_s)
        except errors.KgweError:
            self._metrics.trainings.labels("failure").inc()
            raise
        if isinstance(made, Untrained):
            log.info("model_not_trained", reason=made.reason)
            return
        self._run_times.use_model(made, await self._models.save(made, now_s))
        self._metrics.trainings.labels("success").inc()
        log.info("model_trained", rows=made.header.rows, **made.header.metrics)

    async def _record(self) -> None:
        if not self._is_loaded:
            await self._load_history()
        now_s = time.time()
        try:
            runs, fingerprints = await self._recorder.record(now_s)
            self._run_times.observe(runs, {each.key: each for each in fingerprints}, now_s)
        finally:
            self._metrics.unstored.set(self._recorder.waiting)
            self._metrics.fingerprints.set(self._run_times.fingerprints)

    async def _refresh_needs(self) -> None:
        kept = self._rightsizing.kept_fingerprints if self._rightsizing is not None else frozenset[str]()
        await self._needs.refresh({facts.fingerprint.key for facts in self._tracker.pods.values()} | kept)

    async def _rate_domains(self) -> None:
        now_s = time.time()

        def load(store: HistoryStore) -> tuple[list[Run], dict[str, str]]:
            return store.load_runs(now_s - HISTORY_S), {each.key: each.namespace for each in store.load_fingerprints()}

        runs, namespaces = await self._store.call(load)
        self._domains = await asyncio.to_thread(rate_domains, runs, now_s, namespaces)

    async def _rightsize(self) -> None:
        """Decide on smaller requests in namespaces that opt in."""
        if (controller := self._rightsizing) is None:
            return
        now_s = time.time()
        wanted = {facts.fingerprint.key for facts in self._tracker.pods.values()} | controller.kept_fingerprints
        await self._needs.add(wanted)

        def load(store: HistoryStore) -> dict[str, float]:
            runs: dict[str, list[float]] = {}
            for run in store.load_runs(now_s - HISTORY_S):
                if run.fingerprint in wanted and run.succeeded:
                    runs.setdefault(run.fingerprint, []).append(run.lasted_s)
            return {key: found for key, seconds in runs.items() if (found := find_p95(seconds)) is not None}

        self._run_p95 = await self._store.call(load)
        await controller.decide_all(now_s)

    async def _record_demand(self) -> None:
        await self._demand.record(time.time())

    def _measure_demand(self) -> dict[str, float]:
        return self._allocations.sum_by_model(facts.uid for facts in self._tracker.pods.values() if not facts.is_ended)

    async def _judge(self) -> None:
        started = time.perf_counter()
        assessment = await self._detector.assess(time.time())
        self._metrics.judge_seconds.observe(time.perf_counter() - started)
        # First of all: advice can be followed as soon as it is visible, and must be remembered by then.
        await self._repeat_once("verify", lambda: self._verifier.verify(assessment))
        self._assessment = assessment
        self._metrics.show_assessment(assessment)
        self._metrics.show_savings(self._verifier.entries)
        if (reporter := self._reporter) is not None:
            await self._repeat_once("report", lambda: reporter.report(assessment))
        if (idle := self._idle) is not None:
            await self._repeat_once("idle", lambda: idle.act(assessment, time.time(), time.monotonic()))

    async def _load_lookback(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        """Return usage from Prometheus, or from stored minutes."""
        if self._embedded is None:
            return await self._source.read_window(end_s, length_s, step_s)
        return await self._store.call(lambda store: store.load_minutes(end_s - length_s, end_s, step_s))

    async def _judge_lookback(self, window: UsageWindow, end_s: float, length_s: float) -> Assessment:
        rules = replace(self._rules, window_s=length_s, min_age_s=min(length_s, self._rules.min_age_s))
        return await self._make_detector(rules).judge_apart(window, end_s)

"""What runs only on the leader, from winning to losing the Lease: its controllers, and workers over a queue of keys."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

import structlog

from kgwe import errors
from kgwe.apps.scheduler.budgets.gate import BudgetGate
from kgwe.apps.scheduler.budgets.keeper import BudgetKeeper
from kgwe.apps.scheduler.budgets.offers import OfferFinder
from kgwe.apps.scheduler.budgets.overspend import OverspendController
from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.apps.scheduler.disruption.interruptions import InterruptionController
from kgwe.apps.scheduler.disruption.preemption import PreemptionController
from kgwe.apps.scheduler.disruption.recovery import RecoveryController
from kgwe.apps.scheduler.disruption.unbound_gangs import UnboundGangs
from kgwe.apps.scheduler.extender.handlers import ExtenderHandlers
from kgwe.apps.scheduler.planning.gather_window import GatherWindow
from kgwe.apps.scheduler.planning.hints import PlacementHints
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning.predictions import (
    PredictedRunTimes,
    list_ending_workloads,
    list_waiting_workloads,
)
from kgwe.apps.scheduler.planning.refresher import Refresher
from kgwe.apps.scheduler.pods.pinner import Pinner
from kgwe.apps.scheduler.pods.seat_offers import SeatOffers
from kgwe.apps.scheduler.reporting.outcome_history import OutcomeHistory
from kgwe.apps.scheduler.reporting.periodic import PeriodicTasks
from kgwe.apps.scheduler.reporting.sharing_reports import SharingReports
from kgwe.apps.scheduler.workloads.reconciler import Reconciler
from kgwe.apps.scheduler.workloads.rejected_pods import RejectedPods
from kgwe.cluster.checkpoint.caller import CheckpointCaller, StoredReports
from kgwe.cluster.gangs import plain_pods
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.registry.announcer import ClusterListener, ignore
from kgwe.cluster.workload.description import describe_workload
from kgwe.cluster.workload.owner import parse_gang, parse_replacement
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.events import Event
from kgwe.kube.client.worker_pool import WorkerPool
from kgwe.kube.client.workqueue import WorkQueue
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.cluster.workload.workload import Key, Workload
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.refusal import Refusal
    from kgwe.telemetry.tracing import Attribute

log = structlog.get_logger(__name__)

# What a worker may take to finish its workload when the process stops.
_GRACE_S = 5.0
# Pods of one gang that are created within this time are handled together.
_GATHER_S = 0.01
# A large workload is reconciled less often: after 0.2 s with 2,048 pods, where reconciling takes 4 ms.
_FEW_PODS = 64
_GATHER_PER_POD_S = 0.0001
_GATHER_MOST_S = 2.0
# Failures in a row after which the reservation of a workload is released.
_PATIENCE = 5


def _make_gate(deps: Deps) -> BudgetGate | None:
    if deps.budgets is None:
        return None
    rates = deps.budgets.rates
    return BudgetGate(
        deps.state,
        deps.budgets.objects,
        rates,
        unknown_s=deps.settings.budget_unknown_seconds,
        offer=OfferFinder(deps.state, rates).find,
        clock=deps.budgets.clock,
    )


class Leader:
    """The controllers of one term of leadership."""

    def __init__(self, deps: Deps) -> None:
        self._state = deps.state
        self._gangs = deps.gangs
        self._settings = deps.settings
        self._metrics = deps.metrics
        self._events = deps.events
        self._faults = deps.faults
        self._tracer = deps.tracer
        self._queue: WorkQueue[Key] = WorkQueue()
        self._workers = WorkerPool(
            self._queue, self._reconcile, workers=deps.settings.workers, on_error=self._handle_crash
        )
        self._gathering: set[Key] = set()  # large workloads that are about to be reconciled
        self._hints = PlacementHints(deps.hints, self._describe) if deps.hints is not None else None
        self._gate = _make_gate(deps)
        self._planner = Planner(
            deps.state,
            deps.choosers,
            deps.rng,
            deps.metrics,
            faults=deps.faults,
            on_decided=self._handle_decision,
            on_refused=self._handle_refusal,
            recorder=deps.recorder,
            window=GatherWindow(
                deps.gangs.last_growth,
                quiet_s=deps.settings.gang_gather_quiet_seconds,
                limit_s=deps.settings.gang_gather_limit_seconds,
            ),
            find_hint=self._hints.find if self._hints is not None else lambda _owner: {},
            budgets=self._gate,
        )
        self.handlers = ExtenderHandlers(
            deps.state,
            deps.gangs,
            assume_s=deps.settings.assume_seconds,
            blocked=self._planner.blocked_nodes,
            on_decision=self._count_pod_decision,
            recorder=deps.recorder,
        )
        history = OutcomeHistory(deps.state)
        self._pinner = Pinner(deps)
        self._evictor = Evictor(deps)
        self._unbound_gangs = UnboundGangs(deps, revoke=self._pinner.unpin, remove=self._evictor.remove_pod)
        self.offers = SeatOffers(
            deps,
            request_plan=self._planner.request_place,
            withdraw_request=self._planner.forget,
            track=self._unbound_gangs.track_gang,
        )
        self._checkpoints = CheckpointCaller(deps.client, StoredReports(deps.state.reader.gpu_node_annotations))
        self._interruptions = InterruptionController(
            deps,
            self._checkpoints,
            self._evictor,
            on_ready=self._move_pods_off,
        )
        self._recovery = RecoveryController(
            deps,
            self._planner,
            self._evictor,
            seat=self._pinner.pin,
            may_leave=self._interruptions.is_ready,
            on_trouble=self._queue_owner,
            on_lost=history.record_lost,
        )
        self._preemption = PreemptionController(
            deps, self._planner, self._recovery.census, checkpoints=self._checkpoints
        )
        self._rejected_pods = RejectedPods(deps, leave=self._recovery.move_seats)
        self._reconciler = Reconciler(
            deps,
            self._planner,
            self._recovery,
            self._rejected_pods,
            requeue=self._queue.add_after,
            on_completed=history.record_completed,
            describe_cost=self._gate.describe_cost if self._gate is not None else lambda _uid: None,
        )
        self._sharing = deps.sharing
        others = () if deps.sharing is None else (SharingReports(deps, deps.sharing).write_due,)
        self._periodic = PeriodicTasks(deps, history, self._reconciler.renew_attempts, *others)
        self._refreshers = tuple(self._make_refreshers(deps))
        self._keeper = self._make_keeper(deps)
        self._forecasting: list[asyncio.Task[None]] = []
        self._ending = False
        self._is_room_due = False
        self._unsubscribe: Callable[[], None] = ignore

    def _make_keeper(self, deps: Deps) -> BudgetKeeper | None:
        if deps.budgets is None or self._gate is None:
            return None
        objects, gate = deps.budgets.objects, self._gate
        overspend = OverspendController(deps.client, deps.events, deps.state, objects, gate)
        return BudgetKeeper(deps.client, objects, gate, overspend, review=self._planner.review_budgets)

    def _make_refreshers(self, deps: Deps) -> Iterator[Refresher]:
        """What asks the optimizer, where one is configured."""
        every_s = deps.settings.optimizer_refresh_seconds
        if deps.predictions is not None:
            yield Refresher(
                PredictedRunTimes(deps.predictions, self._describe, self._planner.set_run_times),
                lambda: list_ending_workloads(deps.state, self._planner.list_waiting()),
                every_s=every_s,
                on_result=lambda outcome: deps.metrics.predictions.labels(outcome).inc(),
            )
        if self._hints is not None:
            yield Refresher(
                self._hints,
                lambda: list_waiting_workloads(deps.state, self._planner.list_waiting()),
                every_s=every_s,
            )

    def _describe(self, workload: Workload) -> WorkloadDescription | None:
        return describe_workload(workload, self._settings.default_image)

    def _handle_decision(self, owner: str, decision: Plan | Refusal) -> None:
        """Deliver a decision of the planner to the controller of its owner."""
        self._trace_decision(owner, decision)
        if parse_replacement(owner) is not None:
            if isinstance(decision, Plan):
                self._recovery.handle_found_place(owner)
        elif parse_gang(owner) is not None:
            self._decide_gang(owner, decision)
        else:
            if isinstance(decision, Plan):
                self._reconciler.deliver_plan(owner, decision)
            elif self._sharing is not None:
                self._sharing.handle_refusal(owner)
            self._queue_owner(owner)

    def _decide_gang(self, owner: str, decision: Plan | Refusal) -> None:
        if self.offers.is_asking(owner):
            if isinstance(decision, Plan):
                self._planner.confirm_plan(owner)
            self.offers.decide(owner, decision)
            return
        if not isinstance(decision, Plan):
            self._report_waiting_gang(owner, decision)
            self._unbound_gangs.handle_refusal(owner)
            return
        self._planner.confirm_plan(owner)
        try:
            self._gangs.assign_plan(owner, decision)
            self._unbound_gangs.track_gang(owner)
        except Exception:
            self._gangs.forget_plan(owner, decision)
            raise

    def _handle_refusal(self) -> None:
        """The planner refused an owner: preemption may help."""
        self._preemption.look_soon()

    def _count_pod_decision(self, strategy: str, placed: bool, took_s: float) -> None:  # noqa: FBT001 - a listener
        self._metrics.count_pod_decision(strategy, placed=placed, took_s=took_s)
        self._tracer.record("filter", took_s, {"strategy": strategy, "placed": placed})

    def _trace_decision(self, owner: str, decision: Plan | Refusal) -> None:
        attributes: dict[str, Attribute] = {"owner": owner, "placed": isinstance(decision, Plan)}
        if isinstance(decision, Plan):
            pods, nodes = len(decision.seats), len(decision.nodes)
            attributes |= {"pods": pods, "nodes": nodes, "level": decision.level, "score": decision.score}
        else:
            attributes |= {"reason": str(decision.code)}
        self._tracer.record("plan", self._planner.last_pass_s, attributes)

    def _report_waiting_gang(self, owner: str, held: Refusal) -> None:
        """kube-scheduler reports nothing on gated pods: one Event on the first says what the gang waits for."""
        group = self._gangs.group(owner)
        if group is not None and group.unseated:
            pod, member = group.members[group.unseated[0].metadata.uid]
            title = "Pod" if plain_pods.is_queued(member) else f"Gang {group.key.title}"
            note = f"{title} is waiting. {held.message}"
            self._events.record(Event(resources.POD, pod.metadata, "Warning", held.code, note, "Scheduling"))

    def problem(self) -> str | None:
        """Why this leader is not ready: its planning passes fail."""
        return self._faults.problem

    async def __aenter__(self) -> Self:
        self._state.run_registry.drop_unfit_seats()
        self._unsubscribe = self._state.announcer.subscribe(
            ClusterListener(
                workload_changed=self._handle_workload,
                workload_touched=self._reconcile_soon,
                workload_removed=self._forget_workload,
                pod_unseated=self._pinner.pin,
                pod_ending=self._rejected_pods.handle_ending,
                capacity_freed=self._handle_freed_capacity,
                health_changed=self._handle_node_health,
                budgets_changed=self._preemption.look_soon,
            )
        )
        self._count_running()
        if self._gate is not None:
            self._gate.refresh_rules()
            self._gate.restore()
        self._gangs.start_leading(
            LeaderActions(
                request_plan=self._planner.request_place,
                withdraw_request=self._planner.forget,
                assign_seat=self._pinner.pin,
                remove_gate=self._pinner.remove_gate,
                find_refusal=self._planner.refusal_of,
                call_soon=lambda call: asyncio.get_running_loop().call_later(_GATHER_S, call),
                call_later=lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
            )
        )
        self._planner.start()
        self._pinner.start()
        self._evictor.start()
        self._recovery.start()
        for node in self._state.reader.node_names():
            self._interruptions.handle_node(node)
        self._rejected_pods.start()
        self._unbound_gangs.start()
        self._periodic.start()
        for key in sorted(self._state.workloads):
            self._queue.add(key)
        for owner in list(self._state.runs):
            for pod in self._state.run_registry.list_unseated(owner):
                self._pinner.pin(owner, pod)
        self._metrics.queue.set_function(lambda: len(self._queue))
        self._workers.start()
        tasks = (*self._refreshers, *((self._keeper,) if self._keeper is not None else ()))
        self._forecasting = [asyncio.create_task(each.run()) for each in tasks]
        log.info("term_started", workloads=len(self._state.workloads), runs=len(self._state.runs))
        return self

    def _count_running(self) -> None:
        """Count workloads that were placed before this term against their namespaces."""
        ledger = self._state.ledger
        for owner in list(ledger.owners()):
            namespace = self._state.owners.namespace(owner)
            if not namespace:
                continue
            milli = sum(plain_pods.milli_of(each.amounts) for each in ledger.reserved_seats(owner).values())
            started_s, declared_s = self._find_times(owner)
            self._planner.count_running(owner, namespace, max(milli, 1), started_s, declared_s)

    def _find_times(self, owner: str) -> tuple[float, float | None]:
        """Return when the run of a workload started and how long it should take; 0 and None if unknown."""
        run, key = self._state.runs.get(owner), self._state.keys.get(owner)
        workload = self._state.workloads.get(key) if key is not None else None
        if run is None or workload is None or workload.serves:
            return 0.0, None
        return timestamp.epoch_seconds(run.start_time or ""), workload.expected_s

    def _handle_workload(self, key: Key) -> None:
        """The object was added or changed: reconcile it, unless the watch only shows our own write."""
        workload = self._state.workloads.get(key)
        if workload is None or not self._reconciler.is_echo(workload):
            self._reconcile_soon(key)

    def _reconcile_soon(self, key: Key) -> None:
        """Reconcile the workload; one with many pods a little later, because each of its pods causes a call."""
        workload = self._state.workloads.get(key)
        run = self._state.runs.get(workload.meta.uid) if workload is not None else None
        if run is None or len(run.seats) <= _FEW_PODS:
            self._reconcile_now(key)
        elif key not in self._gathering:
            self._gathering.add(key)
            delay_s = min(len(run.seats) * _GATHER_PER_POD_S, _GATHER_MOST_S)
            asyncio.get_running_loop().call_later(delay_s, self._reconcile_now, key)

    def _reconcile_now(self, key: Key) -> None:
        self._gathering.discard(key)
        if self._ending:
            return
        self._queue.add(key)
        workload = self._state.workloads.get(key)
        if workload is not None:
            self._recovery.handle_change(workload.meta.uid)

    def _queue_owner(self, owner: str) -> None:
        """Reconcile the workload: its place, or what its status should say, has changed."""
        key = self._state.keys.get(owner)
        if key is not None:
            self._queue.add(key)

    def _handle_freed_capacity(self) -> None:
        """Capacity was freed, perhaps by several changes in a row: act once, after the caller's change is complete."""
        if not self._is_room_due:
            self._is_room_due = True
            asyncio.get_running_loop().call_soon(self._use_freed_capacity)

    def _use_freed_capacity(self) -> None:
        self._is_room_due = False
        if self._ending:
            return
        self._recovery.handle_freed_capacity()
        self._preemption.handle_freed_capacity()
        self._planner.plan_soon()

    def _forget_workload(self, uid: str) -> None:
        self._recovery.forget(uid)
        self._rejected_pods.forget(uid)
        self._preemption.forget(uid)
        self._reconciler.forget(uid)
        if self._sharing is not None:
            self._sharing.forget(uid)

    def _move_pods_off(self, node: str) -> None:
        """The pods of a node whose end is announced have checkpointed: recovery moves them."""
        self._recovery.handle_node_health(node)

    def _handle_node_health(self, node: str) -> None:
        self._interruptions.handle_node(node)
        self._recovery.handle_node_health(node)

    async def __aexit__(self, *exc: object) -> None:
        self.offers.stop()
        self._gangs.stop_leading()
        self._unsubscribe()
        self._ending = True
        # Let writes that have begun finish.
        await self._workers.stop(grace_s=_GRACE_S)
        self._metrics.queue.set_function(lambda: 0)
        for task in self._forecasting:
            task.cancel()
        await asyncio.gather(*self._forecasting, return_exceptions=True)
        await self._periodic.stop()
        await self._interruptions.stop()
        await self._preemption.stop()
        self._unbound_gangs.stop()
        await self._rejected_pods.stop()
        await self._recovery.stop()
        await self._evictor.stop()
        await self._pinner.stop()
        self._planner.close()
        log.info("term_ended")

    def _handle_crash(self, key: Key, error: Exception) -> None:
        """`_reconcile` handles the errors of a workload; this is an error of `_reconcile` itself."""
        self._queue.retry(key)
        log.error("reconcile_crashed", workload=key, exc_info=error)

    async def _reconcile(self, key: Key) -> None:
        started = time.perf_counter()
        result = "error"
        try:
            result = await self._reconciler.reconcile(key)
            self._queue.forget(key)
        except errors.Conflict:
            # Our view was stale: the watch brings the new one, and the retry makes sure.
            result = "retry"
            self._queue.retry(key)
        except errors.NotFound:
            result = "done"  # deleted meanwhile
        except errors.KgweError as exc:
            if self._queue.failures(key) >= _PATIENCE:
                self._reconciler.release_place(key)
            delay_s = self._queue.retry(key)
            log.warning("reconcile_failed", workload=key, error=str(exc), retry_in_s=round(delay_s, 2))
        except Exception as exc:  # noqa: BLE001 - one bad workload must not stop the others
            self._reconciler.release_place(key)
            self._faults.record("reconcile", str(key), exc)
            self._queue.retry(key)
            await self._reconciler.report_error(key, exc)
        finally:
            took_s = time.perf_counter() - started
            self._metrics.reconcile_seconds.labels(result).observe(took_s)
            self._metrics.rounds.observe(took_s)
            if result == "error":
                self._metrics.rounds.count_error()
